"""The compiled build: with SHOAL_COMPILED=1 in the environment, mypyc compiles the modules of a request's path to C.

Without it, setuptools builds the pure package of pyproject.toml and needs no compiler. A compiled wheel has the sources
beside the extension modules, which Python prefers. An editable installation stays pure: extension modules beside the
sources in a checkout would run in their place, however old.

`python setup.py translate` does what comes before the C compiler, and keeps nothing: `scripts/check` sees by it what
would break the compiled build.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

#: By package, the modules that are compiled; all together or none. What is left out is rare, or only waits for others.
COMPILED = {
    "shoal": ["fault", "memo", "request"],
    "shoal.shm": [
        "awaited_segments", "counters", "doorbell", "layout", "port", "records", "reply", "ring", "slab", "spinning",
    ],
    "shoal.batcher": [
        "arrivals", "batcher", "bells", "blocks", "dispatch", "ensemble", "exchange", "executions", "finished_requests",
        "holders", "inner_client", "late_clients", "open_requests", "peers", "split_requests", "statistics",
        "templates",
    ],
    "shoal.batcher.scheduling": [
        "batch_account", "contract", "deadlines", "default", "dynamic", "forwarding", "goal", "instances", "lengths",
        "payload", "policy_queue", "queue", "queue_scheduler", "rate_limited", "sequence", "trials",
    ],
    "shoal.frontend": ["lane_loop", "prepared"],
    "shoal.frontend.http": [
        "connection", "http_head", "http_lane", "json_template", "known_request", "lane_api", "outgoing", "responses",
        "submission", "templates",
        "tls_lane",    # it inherits from compiled classes
    ],
    "shoal.frontend.grpc": [
        "call_lane", "connection", "framing", "grpc_lane", "inference", "known_call", "submission",
        "tls_lane", "wire",
    ],
    "shoal.frontend.grpc.http2": [
        "abuse_limits", "connection", "data_frames", "events", "expected_frames", "frames", "header_blocks",
        "hpack_decoder", "huffman", "receiving", "sending", "streams",
    ],
    "shoal.frontend.road": ["kept_reply"],    # it inherits from a compiled class
    "shoal.frontend.v2": ["json_tensors"],
    "shoal.testing": ["instances"],    # it inherits from compiled classes
    "shoal.workers": ["answers", "gpu_answers", "loop", "memory", "plans", "requests", "response_sender", "segments"],
    "shoal.workers.backends": ["backend", "identity"],
}  # fmt: skip

#: mypy's settings for the compilation. It reads no cache, and no installed package: a wheel is built in an environment
#: that has none. So an alias of a type of numpy's is one only where it is annotated as a TypeAlias.
SETTINGS = f"""\
[mypy]
cache_dir = {os.devnull}
ignore_missing_imports = True
no_site_packages = True
"""


class BuildExtensions(build_ext):
    """The compilation; refused where its results would lie beside the sources."""

    def run(self) -> None:
        """Compile. Exits with a sentence if the installation is editable."""
        if self.inplace or self.editable_mode:
            raise SystemExit("SHOAL_COMPILED=1: an editable installation stays pure. See scripts/test --compiled.")
        super().run()


def translate(directory: str, *options: str) -> list[Extension]:
    """The compiled modules as mypyc writes them in C, below a directory. Where it refuses one, it says so and exits."""
    from mypyc.build import mypycify

    settings = Path(directory, "compiled.ini")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(SETTINGS)
    paths = [f"{package.replace('.', '/')}/{name}.py" for package, names in COMPILED.items() for name in names]
    extensions: list[Extension] = mypycify(
        [f"--config-file={settings}", *options, *paths],
        opt_level="1", debug_level="0", multi_file=True, group_name="shoal", target_dir=directory,
    )  # fmt: skip
    return extensions


def compiled() -> dict[str, object]:
    """The arguments of `setup` for a compiled build."""
    if not {"build_ext", "bdist_wheel"} & set(sys.argv):
        return {"setup_requires": ["mypy[mypyc]>=1.15"]}
    # Nothing that an earlier build has left can get into the wheel.
    build_lib = tempfile.mkdtemp(prefix="shoal-build-")
    atexit.register(shutil.rmtree, build_lib, ignore_errors=True)
    return {
        "ext_modules": translate("build"),
        "cmdclass": {"build_ext": BuildExtensions},
        "options": {"build": {"build_lib": build_lib}},
    }


if sys.argv[1:] == ["translate"]:
    with tempfile.TemporaryDirectory(prefix="shoal-build-") as kept_for_now:
        translate(kept_for_now, "--skip-c-gen")
    sys.stdout.flush()
    os._exit(0)  # an orderly end takes 10 s, since it frees all syntax trees one by one
setup(**(compiled() if os.environ.get("SHOAL_COMPILED") == "1" else {}))

"""The Python examples of Triton's client repository, run unmodified against the sample repository.

`scripts/triton-examples DIRECTORY` runs them: DIRECTORY is `src/python/examples` of a checkout of
https://github.com/triton-inference-server/client, whose files are not kept here. test_triton_examples.py needs no
checkout: it makes those calls of the examples that no other test makes.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, serving

HTTP = ("-u", "{http}")
GRPC = ("-u", "{grpc}")
#: Example → its arguments, once per run. Each has to end with status 0, and to print PASS where its source does.
EXAMPLES: dict[str, list[tuple[str, ...]]] = {
    "grpc_explicit_byte_content_client.py": [GRPC],
    "grpc_explicit_int8_content_client.py": [GRPC],
    "grpc_explicit_int_content_client.py": [GRPC],
    "reuse_infer_objects_client.py": [(*HTTP, "-i", "http"), (*GRPC, "-i", "grpc")],
    "simple_grpc_aio_custom_args_client.py": [GRPC],
    "simple_grpc_aio_health_metadata.py": [GRPC],
    "simple_grpc_aio_infer_client.py": [GRPC],
    "simple_grpc_aio_keepalive_client.py": [GRPC],
    "simple_grpc_aio_model_control.py": [GRPC],
    "simple_grpc_aio_sequence_stream_infer_client.py": [GRPC, (*GRPC, "-d")],
    "simple_grpc_aio_sequence_sync_infer_client.py": [GRPC, (*GRPC, "-d")],
    "simple_grpc_aio_shm_client.py": [GRPC],
    "simple_grpc_aio_shm_string_client.py": [GRPC],
    "simple_grpc_aio_string_infer_client.py": [GRPC],
    "simple_grpc_async_infer_client.py": [GRPC],
    "simple_grpc_custom_args_client.py": [GRPC],
    "simple_grpc_custom_repeat.py": [GRPC],
    "simple_grpc_health_metadata.py": [GRPC],
    "simple_grpc_infer_client.py": [GRPC, (*GRPC, "-C", "gzip"), (*GRPC, "-C", "deflate")],
    "simple_grpc_keepalive_client.py": [GRPC, (*GRPC, "--grpc-keepalive-time", "10000")],
    "simple_grpc_model_control.py": [GRPC],
    "simple_grpc_sequence_stream_infer_client.py": [GRPC, (*GRPC, "-d")],
    "simple_grpc_sequence_sync_infer_client.py": [GRPC, (*GRPC, "-d")],
    "simple_grpc_shm_client.py": [GRPC],
    "simple_grpc_shm_string_client.py": [GRPC],
    "simple_grpc_string_infer_client.py": [GRPC],
    "simple_http_aio_health_metadata.py": [HTTP],
    "simple_http_aio_infer_client.py": [HTTP],
    "simple_http_aio_model_control.py": [HTTP],
    "simple_http_aio_sequence_sync_infer_client.py": [HTTP, (*HTTP, "-d")],
    "simple_http_aio_shm_client.py": [HTTP],
    "simple_http_aio_shm_string_client.py": [HTTP],
    "simple_http_aio_string_infer_client.py": [HTTP],
    "simple_http_async_infer_client.py": [HTTP],
    "simple_http_health_metadata.py": [HTTP],
    "simple_http_infer_client.py": [
        HTTP,
        (*HTTP, "--request-compression-algorithm", "gzip", "--response-compression-algorithm", "gzip"),
        (*HTTP, "--request-compression-algorithm", "deflate", "--response-compression-algorithm", "deflate"),
    ],
    "simple_http_model_control.py": [HTTP],
    "simple_http_sequence_sync_infer_client.py": [HTTP, (*HTTP, "-d")],
    "simple_http_shm_client.py": [HTTP],
    "simple_http_shm_string_client.py": [HTTP],
    "simple_http_string_infer_client.py": [HTTP],
}
#: Example → why it is not run.
LEFT_OUT = {
    "ensemble_image_client.py": "asks models whose files have to be downloaded",
    "grpc_client.py": "asks densenet_onnx, whose file has to be downloaded, for an output that it does not have",
    "grpc_image_client.py": "asks a model whose file has to be downloaded",
    "image_client.py": "asks a model whose file has to be downloaded",
    "memory_growth_test.py": "asks custom_identity_int32, a test's model, on ports 8000 and 8001 alone",
    "simple_grpc_aio_cudashm_client.py": "needs a GPU, and regions of its memory",
    "simple_grpc_cudashm_client.py": "needs a GPU, and regions of its memory",
    "simple_http_aio_cudashm_client.py": "needs a GPU, and regions of its memory",
    "simple_http_cudashm_client.py": "needs a GPU, and regions of its memory",
    "vllm_client.py": "asks a model of vLLM's backend",
}
#: The models that the examples ask, and the first that a repository of so many models is made of.
MODELS = (
    "simple",
    "simple_dyna_sequence",
    "simple_identity",
    "simple_int8",
    "simple_sequence",
    "simple_string",
    "repeat_int32",
    "simple_string_dyna_sequence",
)
FLAGS = ("--grpc-port=0", "--allow-client-shm=true")  # the second is a default that Triton changed
NUMBERS = {"six": 6, "seven": 7, "eight": 8}


@contextmanager
def control_server(num_models: int) -> Iterator[Server]:
    """A server in explicit mode on a repository of so many of the samples: the examples of model control count them."""
    with tempfile.TemporaryDirectory() as directory:
        for model in MODELS[:num_models]:
            (Path(directory) / model).symlink_to(SAMPLES / model)
        with serving(Path(directory), "--model-control-mode=explicit", *FLAGS) as server:
            yield server


def run(path: Path, arguments: tuple[str, ...], server: Server) -> str:
    """What is wrong with one run of an example; nothing where it passes."""
    addresses = {"http": server.url, "grpc": f"127.0.0.1:{server.grpc_port}"}
    command = [sys.executable, str(path), *(each.format_map(addresses) for each in arguments)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        return f"no end within {DEADLINE_S:g} s: {(error.stdout or b'').decode()[-1000:]}"
    if done.returncode:
        return f"status {done.returncode}: {done.stdout[-1000:]}"
    if "PASS" in path.read_text() and "PASS" not in done.stdout:
        return f"did not print PASS: {done.stdout[-1000:]}"
    return ""


def differences(directory: Path) -> list[str]:
    """The examples to run that this directory lacks, and those in it that the table neither runs nor leaves out."""
    found = {path.name for path in directory.glob("*.py")}
    missing = [f"{name}: MISSING in {directory}" for name in EXAMPLES if name not in found]
    unknown = sorted(found - EXAMPLES.keys() - LEFT_OUT.keys())
    return missing + [f"{name}: UNKNOWN, neither in EXAMPLES nor in LEFT_OUT of {__file__}" for name in unknown]


def run_all(directory: Path) -> int:
    """Run the examples that lie in this directory, print how each went and where the table differs from the directory,
    and return the number of runs that failed and of differences."""
    wrong = differences(directory)
    for difference in wrong:
        print(difference)
    failed = len(wrong)
    with ExitStack() as stack:
        served = stack.enter_context(serving(SAMPLES, *FLAGS))
        controlled: dict[int, Server] = {}
        for name, runs in EXAMPLES.items():
            path = directory / name
            if not path.exists():
                continue
            server = served
            if found := re.search(r"There are (\w+) models", path.read_text()):
                count = NUMBERS[found[1]]
                if count not in controlled:
                    controlled[count] = stack.enter_context(control_server(count))
                server = controlled[count]
            for arguments in runs:
                fault = run(path, arguments, server)
                failed += bool(fault)
                print(f"{name} {' '.join(arguments)}: {f'FAILED, {fault}' if fault else 'passed'}", flush=True)
    for name, reason in LEFT_OUT.items():
        print(f"{name}: not run, it {reason}")
    return failed


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/triton-examples", description=__doc__)
    parser.add_argument("directory", type=Path, help="src/python/examples of a checkout of Triton's client repository")
    directory = parser.parse_args().directory
    if not any((directory / name).exists() for name in EXAMPLES):
        parser.error(f"none of the examples lies in {directory}; is it src/python/examples of that repository?")
    return 1 if run_all(directory) else 0


if __name__ == "__main__":
    sys.exit(main())

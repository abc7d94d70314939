"""A server for trials alone: the model's repository, a free port, and one model that is loaded again and again."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.cli.bench.measurement import Level, Plan, measure
from shoal.cli.bench.targets import target
from shoal.cli.bench.window import Window
from shoal.cli.remote import NoResponseError, RemoteServer
from shoal.cli.run_inputs import RunRequest
from shoal.cli.tune.search import Settings, applied
from shoal.model_config.signature import Signature

#: The most seconds that a server may take to load the model, and to stop (ours).
START_TIMEOUT_S, STOP_TIMEOUT_S = 300.0, 30.0
_LOOK_S = 0.05
_STARTED = "Started HTTPService at "


@contextmanager
def trial_server(repository: Path, model: str) -> Iterator[RemoteServer]:
    """A server that has loaded the model, and that is stopped at the end. Raises NoResponseError if it does not start.

    The server reads the repository, and changes nothing there: each trial's configuration comes with its load.
    """
    flags = ["--model-control-mode=explicit", f"--load-model={model}", "--http-port=0"]
    flags += ["--allow-grpc=false", "--allow-metrics=false", f"--model-repository={repository}"]
    program = "from shoal.cli import main; raise SystemExit(main())"
    with tempfile.TemporaryDirectory(prefix="shoal-tune-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            command = [sys.executable, "-c", program, "serve", *flags, f"--client-socket={folder}/socket"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            server = RemoteServer(_url(process, log), timeout_s=START_TIMEOUT_S, headers={})
            try:
                yield server
            finally:
                server.close()
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The server's URL, once the server listens. Raises NoResponseError with the end of its log if it does not
    start."""
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        text = log.read_text(encoding="utf-8", errors="replace")
        _, found, rest = text.partition(_STARTED)
        if found and "\n" in rest:
            return "http://" + rest.partition("\n")[0].strip('"')
        if process.poll() is not None:
            break
        time.sleep(_LOOK_S)
    raise NoResponseError(
        f"The server for the trials did not start:\n{log.read_text(encoding='utf-8', errors='replace')[-4000:]}"
    )


@dataclass(frozen=True, slots=True)
class TrialModel:
    """The model of a server for trials: its own configuration, and the requests that measure it."""

    server: RemoteServer
    config: Mapping[str, Any]
    requests: Sequence[RunRequest]

    def load(self, settings: Settings) -> dict[str, Any]:
        """Load the model with these settings; returns its configuration. Raises RefusedError if it cannot be
        loaded."""
        wanted = applied(self.config, settings)
        self.server.load(self.config["name"], json.dumps(wanted))
        return wanted

    def measure(self, config: dict[str, Any], concurrency: int, plan: Plan) -> Window:
        """Measure one level of load, while the model is loaded with this configuration."""
        with ExitStack() as stack:
            asked = stack.enter_context(closing(target(self.server.url, None, config["name"], "", plan.timeout_s)))
            transport = stack.enter_context(closing(asked.connect(Signature.from_config(config), self.requests)))
            (found,) = measure([asked], [transport], Level(concurrency), plan)
        return found.whole

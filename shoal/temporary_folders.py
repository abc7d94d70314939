"""Folders in the directory for temporary files that a killed process leaves, and a later one removes.

Every process that needs such a folder holds a shared lock on it. A folder without a lock was left by a killed process,
and the next `sweep` of the same user's removes it. Names need the id of the machine's boot in them, since some file
systems, NFS among them, do not show locks of directories to other machines.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def boot_id() -> str:
    """The id of this machine's boot; "" where the system does not show it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def hold(directory: Path | str) -> int:
    """Lock a directory until the descriptor that is returned is closed, at the latest when the process ends; no effect
    on a file system without such locks. Raises FileNotFoundError if the directory has been removed, BlockingIOError if
    it is being removed, other OSErrors."""
    lock = os.open(directory, _FLAGS)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    except OSError:
        return lock  # the file system has no locks, so a sweep cannot lock, and does not remove, the directory
    try:
        os.stat(directory)  # fails if it was removed; not every file system shows that in the number of links
    except OSError:
        os.close(lock)
        raise
    return lock


def sweep(prefix: str) -> None:
    """Remove the directories of this user with this prefix that no process has locked; no effect where nothing can be
    listed."""
    with suppress(OSError):  # tempfile, too, raises it, where no directory can be written to, as on a read-only disk
        for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError):
        lock = os.open(path, _FLAGS)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)

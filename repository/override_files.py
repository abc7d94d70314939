"""Directories of files that came with a load, in the directory for temporary files. A front end or a worker makes them;
they belong to the supervisor until no version needs them. At an upgrade the old server makes copies, and the new one
adopts them.

Every process that needs a directory holds a shared lock on it. A directory without a lock was left by a killed process,
and the next `sweep`, by the poller of any server of this user, removes it. Names have the id of the machine's boot,
since some file systems, NFS among them, do not show locks of directories to other machines.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

#: Longer than `shoal-override-`, the prefix of versions of Shoal that did not lock their directories: a sweep must not
#: remove those.
PREFIX = "shoal-override-files-"
#: The prefix of a copy for a new server. A sweep does not remove it, since a version of Shoal that locks no directories
#: may use it.
_COPY_PREFIX = "shoal-override-copy-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make() -> tuple[str, int]:
    """A new directory that only this user can enter, and the descriptor of its lock. Raises OSError."""
    while True:
        directory = tempfile.mkdtemp(prefix=_prefix() or PREFIX)
        with suppress(FileNotFoundError, BlockingIOError):  # a sweep has removed it, or is about to
            return directory, hold(directory)


def make_copy(directory: Path) -> Path:
    """A copy of a directory for a new server, which takes no space where links are possible. Raises OSError."""
    copy = Path(tempfile.mkdtemp(prefix=_COPY_PREFIX))

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    try:
        shutil.copytree(directory, copy, copy_function=link, dirs_exist_ok=True)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return copy


def adopt(copy: str) -> tuple[str, int]:
    """Lock a copy, and rename it so that a sweep removes it once no process needs it; returns its path and the
    descriptor of its lock. Raises OSError."""
    lock = hold(copy)
    adopted = os.path.join(os.path.dirname(copy), f"{_prefix() or PREFIX}{copy.rpartition('-')[2]}")
    try:
        os.rename(copy, adopted)
    except OSError:
        os.close(lock)
        raise
    return adopted, lock


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


def sweep() -> None:
    """Remove the directories of this user that no process has locked, if they were made since this machine's boot; no
    effect where nothing can be listed."""
    if not (prefix := _prefix()):
        return
    with suppress(OSError):  # tempfile, too, raises it, where no directory can be written to, as on a read-only disk
        for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_unlocked(path)


def _prefix() -> str:
    """The prefix of the directories that a sweep may remove on this machine; "" where the system does not show the id
    of its boot."""
    try:
        return f"{PREFIX}{_BOOT_ID.read_text().strip()}-"
    except OSError:
        return ""


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError):
        lock = os.open(path, _FLAGS)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)

"""Directories of files that came with a load, in the directory for temporary files. A front end or a worker makes them;
they belong to the supervisor until no version needs them. At an upgrade the old server makes copies, and the new one
adopts them.

Every process that needs a directory holds a lock on it (shoal/temporary_folders.py). What a killed process leaves, the
poller of this user's next server removes.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from shoal.temporary_folders import boot_id, hold
from shoal.temporary_folders import sweep as sweep_folders

#: Longer than `shoal-override-`, the prefix of versions of Shoal that did not lock their directories: a sweep must not
#: remove those.
PREFIX = "shoal-override-files-"
#: The prefix of a copy for a new server. A sweep does not remove it, since a version of Shoal that locks no directories
#: may use it.
_COPY_PREFIX = "shoal-override-copy-"


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


def sweep() -> None:
    """Remove the directories of this user that no process has locked, if they were made since this machine's boot."""
    if prefix := _prefix():
        sweep_folders(prefix)


def _prefix() -> str:
    """The prefix of the directories that a sweep may remove on this machine; "" where the system does not show the id
    of its boot."""
    boot = boot_id()
    return f"{PREFIX}{boot}-" if boot else ""

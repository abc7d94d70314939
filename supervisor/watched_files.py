"""Files that are read again when they change: the API keys, the certificates. Runs in the supervisor.

A file is checked once a second, by its inode, size and time: a mounted secret is replaced by renaming a link, which no
event reports.
"""

import os
from collections.abc import Callable, Sequence

from shoal.supervisor.event_loop import EventLoop

#: Seconds between two looks (ours).
LOOK_S = 1.0

_Identity = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles:
    """A group of files. `reload`, a function, is called when one of them has changed, and by the method of this
    name."""

    def __init__(self, loop: EventLoop, paths: Sequence[str], reload: Callable[[], None]) -> None:
        self._loop = loop
        self._paths = [path for path in paths if path]
        self._reload = reload
        # Changed by look and reload.
        self._seen: _Identity = self._identity()

    def watch(self) -> None:
        """Start to check the files."""
        if self._paths:
            self._loop.every(LOOK_S, lambda _late_s: self.look())

    def look(self) -> None:
        """Read the files again if they have changed."""
        if self._identity() != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read the files again, changed or not."""
        if self._paths:
            self._seen = self._identity()
            self._reload()

    def _identity(self) -> _Identity:
        return tuple([_identity(path) for path in self._paths])


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns

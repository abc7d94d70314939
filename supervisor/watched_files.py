"""Files that are read again when they change: the API keys, the certificates. Runs in the supervisor.

A file is checked once a second, by its inode, size and time: a mounted secret is replaced by renaming a link, which no
event reports. A thread checks and reads: a disk that is slow, or one over a network that hangs, must not hold up the
event loop.
"""

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from shoal.supervisor.event_loop import EventLoop, first
from shoal.supervisor.memory.measuring import MeasuringThread

_log = logging.getLogger(__name__)

#: Seconds between two looks; seconds after which the log says that a look has not ended (ours).
LOOK_S, SLOW_S = 1.0, 5.0

_Identity = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles:
    """A group of files. When one of them has changed, or `reload` is called, a thread calls `read`, and the event
    loop calls what `read` has returned: a function that puts the contents in force, or logs why they cannot be."""

    def __init__(self, loop: EventLoop, paths: Sequence[str], read: Callable[[], Callable[[], None]]) -> None:
        self._loop = loop
        self._paths = [path for path in paths if path]
        self._read = read
        self._thread = MeasuringThread("files")
        # Changed by look, reload and _look. The first identity is taken here, before the event loop runs.
        self._seen: _Identity = self._identity()
        self._is_due = False  # whether the files are to be read, changed or not
        self._looked = loop.done_future()

    def watch(self) -> None:
        if self._paths:
            self._loop.every(LOOK_S, lambda _late_s: self.look())

    def look(self) -> None:
        """Have the files read again if they have changed, unless the last look has not ended."""
        if self._looked.done():
            self._looked = self._loop.start(self._look())

    async def reload(self) -> bool:
        """Read the files again, changed or not. False where that takes longer than SLOW_S, which is logged, or the
        system is short of descriptors or threads; then they are read as soon as they can be."""
        if self._paths:
            self._is_due = True
            self.look()
            await first(self._looked, limit_s=SLOW_S)
        return self._looked.done() and not self._is_due

    async def _look(self) -> None:
        while True:
            is_due, self._is_due = self._is_due, False
            look = partial(self._read_if_changed, None if is_due else self._seen)
            try:
                looked = self._thread.answer(look, self._loop)
            except OSError:  # the system is short of descriptors or threads: the next look is in a second
                self._is_due = is_due
                return
            if not await first(looked, limit_s=SLOW_S):
                _log.error(
                    "%s: not read within %g s, their disk is slow or hangs. What was read before stays in force",
                    ", ".join(self._paths), SLOW_S,
                )  # fmt: skip
            self._seen, put_in_force = await looked
            put_in_force()
            if not self._is_due:
                return

    def _read_if_changed(self, seen: _Identity | None) -> tuple[_Identity, Callable[[], None]]:
        """The files' identity now, and a function for the event loop to call. Runs in the thread."""
        identity = self._identity()
        if identity == seen:
            return identity, lambda: None
        try:
            return identity, self._read()
        except Exception as error:  # noqa: BLE001 - the event loop raises it, in the failure domain of the files
            return identity, partial(_raise, error)

    def _identity(self) -> _Identity:
        return tuple([_identity(path) for path in self._paths])


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _raise(error: Exception) -> None:
    raise error

"""An object opened from a path, and opened again once another file has taken that path, by rename, which is atomic.

The path is looked at before each batch (one stat, 1.5 us), so that a request which is sent after the rename is answered
from the new file. Runs in a worker.
"""

import logging
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from shoal.errors import ShoalError, UnavailableError

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: Returns the properties of a file that differ once another file has taken its path.
Stamp = Callable[[os.stat_result], tuple[int, ...]]


def contents(stat: os.stat_result) -> tuple[int, ...]:
    """The stamp of a file that is replaced as a whole: it also changes when the file is written in place."""
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def place(stat: os.stat_result) -> tuple[int, ...]:
    """The stamp of a file or directory that a database writes into while it is read: writing does not change it."""
    return (stat.st_dev, stat.st_ino)


class Replaceable(Generic[T]):
    """The newest object that could be opened at `path`."""

    def __init__(self, path: str, what: str, open_: Callable[[str], T], stamp: Stamp = contents) -> None:
        self._path = path
        self._what = what  # name of the object in messages
        self._open = open_
        self._stamp_of = stamp
        # Changed by refresh: the object in use; the stamp of the file seen last, and whether that file could be opened.
        self._current: T | None = None
        self._stamp: tuple[int, ...] = ()
        self._is_good = False
        self._logged: tuple[int, ...] = ()  # the stamp of the refused file that the log has named

    @property
    def current(self) -> T:
        """The object that `refresh` has opened last."""
        assert self._current is not None
        return self._current

    def refresh(self) -> bool:
        """Open the file again if another one is at the path. False if that one cannot be opened, for which the log has
        the error, or if none is there: the former one stays in use.

        A file that cannot be opened for now (UnavailableError) is tried again at the next call. If no file was opened
        before, raises the error, or UnavailableError if there is no file.
        """
        try:
            stamp = self._stamp_of(os.stat(self._path))
        except OSError as error:
            if self._current is None:
                raise UnavailableError(f"unable to find {self._what}: {error}") from error
            return False
        if stamp != self._stamp:
            self._stamp, self._is_good = stamp, False
            self._is_good = self._replace(stamp)
        return self._is_good

    def _replace(self, stamp: tuple[int, ...]) -> bool:
        try:
            opened = self._open(self._path)
        except ShoalError as error:
            if self._current is None:
                raise type(error)(f"{self._what}: {error}") from error
            if stamp != self._logged:
                _log.error("%s is served as it was, the new one is refused: %s", self._what, error)
            self._logged = stamp
            if isinstance(error, UnavailableError):
                self._stamp = ()
            return False
        if self._current is not None:
            _log.info("%s has been replaced", self._what)
        self._current = opened
        return True

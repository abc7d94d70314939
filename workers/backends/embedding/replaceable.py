"""An object opened from a path, and opened anew once another file stands there: by rename, which is atomic.

Looking costs one stat per batch (1.5 us), so that a request which is sent after the rename meets the new file. Runs in
a worker.
"""

import logging
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from shoal.errors import ShoalError, UnavailableError

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: What distinguishes a file from the one that stood there before.
Stamp = Callable[[os.stat_result], tuple[int, ...]]


def contents(stat: os.stat_result) -> tuple[int, ...]:
    """The stamp of a file that is replaced as a whole."""
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def place(stat: os.stat_result) -> tuple[int, ...]:
    """The stamp of a file or directory that a database writes into while it is read."""
    return (stat.st_dev, stat.st_ino)


class Replaceable(Generic[T]):
    """The newest object that could be opened at `path`."""

    def __init__(self, path: str, what: str, open_: Callable[[str], T], stamp: Stamp = contents) -> None:
        self._path = path
        self._what = what  # in sentences
        self._open = open_
        self._stamp_of = stamp
        # Changed by refresh.
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
        """Look whether another file is there. False if it is not in use, because it cannot be opened; the log says why.

        A file that cannot be opened now is tried again the next time. Raises the error if the first one cannot be
        opened; UnavailableError if there is none.
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

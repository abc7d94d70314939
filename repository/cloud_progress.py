"""Progress of a download: a line in the log from time to time, and an error for one that has stalled. Pure."""

import logging
from typing import Any

from shoal.errors import UnavailableError

_log = logging.getLogger(__name__)

#: Seconds between two lines in the log (ours).
REPORT_EVERY_S = 10.0
#: Seconds between two looks at a download (ours): for so long an object without end may go on to fill the disk.
LOOK_S = 0.25
_MB = 1_000_000
#: Bytes that may come beyond twice the listed ones (ours): a library may count those of a repeated request twice.
_SPARE_NBYTES = 64 * _MB


class CopyProgress:
    """The progress of one model's copy, all its objects together. Times are seconds of the monotonic clock."""

    def __init__(self, what: str, nbytes: int, stall_s: float, now_s: float) -> None:
        self._what = what
        self._nbytes = nbytes
        self._stall_s = stall_s
        self.look_s = min(LOOK_S, stall_s / 4)  # between two calls of `look`
        self._started_s = now_s
        # Changed by watch and look: fsspec's counts; their sum, when it last grew, and when it was last logged.
        self._callbacks: list[Any] = []
        self._done_nbytes = 0
        self._grown_s = now_s
        self._reported_s = now_s

    @property
    def is_beyond(self) -> bool:
        """Whether far more bytes have come than the objects had in the listing: they have changed, or never end."""
        return self._done_nbytes > 2 * self._nbytes + _SPARE_NBYTES

    def watch(self, callback: Any) -> Any:
        """Count the bytes of an fsspec callback, and return the callback."""
        self._callbacks.append(callback)
        return callback

    def look(self, now_s: float) -> None:
        """Log the progress, if it is time. Raises UnavailableError where no byte has arrived for too long."""
        done_nbytes = sum(callback.value for callback in self._callbacks)
        if done_nbytes != self._done_nbytes:
            self._done_nbytes, self._grown_s = done_nbytes, now_s
        elif now_s - self._grown_s > self._stall_s:
            raise UnavailableError(
                f"the copy of {self._what} stands still: no byte for {self._stall_s:g} s after "
                f"{done_nbytes / _MB:.1f} of {self._nbytes / _MB:.1f} MB; check the network, it is tried again"
            )
        if now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            _log.info("copying %s", self._figures(now_s))

    def summary(self, now_s: float) -> str:
        """The line for the log when the download is complete."""
        return f"copied {self._figures(now_s)} in {now_s - self._started_s:.1f} s"

    def _figures(self, now_s: float) -> str:
        rate = self._done_nbytes / _MB / max(now_s - self._started_s, 0.001)
        return f"{self._what}: {self._done_nbytes / _MB:.1f} of {self._nbytes / _MB:.1f} MB, {rate:.1f} MB/s"

"""The log of requests that gunicorn refuses: a few lines a second, and a count of the rest. Runs on the road.

A client that sends one bad request after another would otherwise fill the log with lines of its own making.
"""

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("shoal")

#: Lines about refused requests in any second (ours).
LINES_PER_S = 5
#: How gunicorn's messages about refused requests begin.
_REFUSED = ("Invalid request", "Error handling request", "Socket error processing request")


class RefusalLog(logging.Filter):
    """A filter for gunicorn's log that passes LINES_PER_S lines about refused requests in a second; the others are
    counted, and the count is logged when the second is over. Any thread may log."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._lock = threading.Lock()
        # Changed under the lock.
        self._second_ends_s = 0.0
        self._num_lines = 0
        self._num_dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is to be logged. Not if it is about a socket's timeout: a client that stops in the middle of
        a request would cost twenty lines."""
        if record.exc_info and isinstance(record.exc_info[1], BlockingIOError):
            return False
        if not str(record.msg).startswith(_REFUSED):
            return True
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._second_ends_s:
                self._second_ends_s, self._num_lines = now_s + 1.0, 0
            self._num_lines += 1
            if self._num_lines <= LINES_PER_S:
                return True
            self._num_dropped += 1
            is_first = self._num_dropped == 1
        if is_first:
            self._summarise_after(1.0)
        return False

    def _summarise_after(self, delay_s: float) -> None:
        timer = threading.Timer(delay_s, self.summarise)
        timer.daemon = True
        timer.start()

    def summarise(self) -> None:
        """Log how many lines were dropped since the last summary."""
        with self._lock:
            num_dropped, self._num_dropped = self._num_dropped, 0
        if num_dropped:
            _log.warning("%d more requests were refused, of which there is no line", num_dropped)

"""A warning of which a client could cause many: the log has one line a second, and says how often it was due. Pure but
for the log. One thread at a time.
"""

import logging

_log = logging.getLogger("shoal")

#: What is added within this time shares a line.
_LOG_S = 1.0


class CountedWarning:
    """A sentence with "%d" for how often it was due; what else is said of the last time follows it."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        # Changed by add and log.
        self._num = 0
        self._last = ""
        self._logged_s = 0.0

    def add(self, now_s: float, last: str = "") -> None:
        """Count one time; it is logged now, or by a later call of `log`."""
        self._num += 1
        self._last = last
        self.log(now_s)

    def log(self, now_s: float) -> None:
        """Log what has been added, at most once a second."""
        if self._num and now_s - self._logged_s >= _LOG_S:
            _log.warning(self._sentence + "%s", self._num, self._last)
            self._num, self._logged_s = 0, now_s

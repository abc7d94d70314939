"""A warning of which a client could cause many: the log has at most one line a second, with the number of occurrences.
Pure but for the log. One thread at a time.
"""

import logging

_log = logging.getLogger("shoal")

#: Seconds whose occurrences share a line.
_LOG_S = 1.0


class CountedWarning:
    """The warning's sentence, with "%d" for the number of occurrences since the last line, followed by details of the
    latest occurrence."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        # The fields below are changed by add and log.
        self._num = 0
        self._last = ""
        self._logged_s = 0.0

    def add(self, now_s: float, last: str = "") -> None:
        """Count an occurrence, with its details; the line is logged now, or by a later call of `log`."""
        self._num += 1
        self._last = last
        self.log(now_s)

    def log(self, now_s: float) -> None:
        """Log the occurrences since the last line, at most once a second."""
        if self._num and now_s - self._logged_s >= _LOG_S:
            _log.warning(self._sentence + "%s", self._num, self._last)
            self._num, self._logged_s = 0, now_s

"""Slow readers of responses: how long they may hold a worker's block, and which are disconnected.

A response leaves from the worker's block. A reader that has not taken it after HOLD_S gets a copy of the rest, as does
any that is still reading when the worker lacks memory, within what a front end keeps (kept_memory.py). Beyond that a
block stays with its reader until the worker can have memory nowhere else: then the slowest readers are given up.
"""

import logging

_log = logging.getLogger("shoal")

#: How long a reader may hold a worker's block before what it has not read is copied, or before it is given up for a
#: worker that lacks memory; and how long it may take nothing at all before its connection ends (ours).
HOLD_S, SEND_S = 1.0, 30.0
#: One line in the log for all readers that were given up in so long.
_LOG_S = 1.0


class SlowReaderLog:
    """The readers that a front end has given up, for the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        # Changed by add and log.
        self._num = 0
        self._logged_s = 0.0

    def add(self, now_s: float) -> None:
        """Count a disconnected reader."""
        self._num += 1
        self.log(now_s)

    def log(self, now_s: float) -> None:
        """Log their number, at most once a second."""
        if self._num and now_s - self._logged_s >= _LOG_S:
            _log.warning(
                "a model lacks memory for its results: ended %d %s of clients that read too slowly, longest first "
                "(they held results in shared memory; --shm-worker-slab-mib, --shm-oversize-mib)",
                self._num,
                self._what,
            )
            self._num, self._logged_s = 0, now_s

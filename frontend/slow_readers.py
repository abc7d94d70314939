"""Limits for clients that read responses slowly: how long one may hold a worker's block, and when its connection is
closed.

A response is sent straight from the worker's block. If the client has not read it after HOLD_S, or still reads when the
worker lacks memory, the rest is copied, within what a front end may keep (kept_memory.py). Where there is no room for
the copy, the block stays in use until the worker can get memory nowhere else: then the slowest clients' connections are
closed.
"""

import logging

_log = logging.getLogger("shoal")

#: How long a reader may hold a worker's block before what it has not read is copied, or before it is given up for a
#: worker that lacks memory; and how long it may take nothing at all before its connection ends (ours).
HOLD_S, SEND_S = 1.0, 30.0
#: Clients that were given up within this time share a line in the log.
_LOG_S = 1.0


class SlowReaderLog:
    """Counts the clients whose responses a front end has given up, for the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        # Changed by add and log.
        self._num = 0
        self._logged_s = 0.0

    def add(self, now_s: float) -> None:
        """Count one client."""
        self._num += 1
        self.log(now_s)

    def log(self, now_s: float) -> None:
        """Log how many there were, at most once a second."""
        if self._num and now_s - self._logged_s >= _LOG_S:
            _log.warning(
                "a model lacks memory for its results: ended %d %s of clients that read too slowly, longest first "
                "(they held results in shared memory; --shm-worker-slab-mib, --shm-oversize-mib)",
                self._num,
                self._what,
            )
            self._num, self._logged_s = 0, now_s

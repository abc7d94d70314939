"""The log lines of requests that an instance died of: which request, which model and instance, its pid, and its end.

The supervisor logs the death once, and does not know requests; here each request that was being executed has a line, a
few in any second, and a count of the rest: poison comes again and again. Front-end processes; any thread.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from shoal.errors import ShoalError
from shoal.reasons import DeathDetail, Reason, WorkerDiedError, end_fields
from shoal.shm.port import Reply
from shoal.star import refusal
from shoal.star.models import ModelEntry
from shoal.star.refusal import Answered

_log = logging.getLogger("shoal")

#: Lines of a process in any second (ours).
LINES_PER_S = 5


class FailedRequests:
    """The lines of a process about requests that an instance died of."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        # Changed under the lock.
        self._second_ends_s = 0.0
        self._num_lines = 0
        self._num_silent = 0

    def log(self, entry: ModelEntry, request_id: str, reply: Reply, error: ShoalError) -> None:
        """Log a request to a model that has got this reply, of which the client is told this error."""
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._second_ends_s:
                self._second_ends_s, self._num_lines = now_s + 1.0, 0
            self._num_lines += 1
            if self._num_lines > LINES_PER_S:
                self._num_silent += 1
                return
            num_silent, self._num_silent = self._num_silent, 0
        more = f" ({num_silent} more requests failed so before it, without a line)" if num_silent else ""
        _log.error("%s%s", error, more, extra=_fields(entry, request_id, reply))


#: The process's own.
FAILED_REQUESTS = FailedRequests()


def answered(entry: ModelEntry, request_id: str, reply: Reply, correlation_id: int | str = 0) -> Answered:
    """As `shoal.star.refusal.answered`; a request that an instance died of is logged."""
    try:
        return refusal.answered(entry, request_id, reply, correlation_id)
    except WorkerDiedError as error:
        FAILED_REQUESTS.log(entry, request_id, reply, error)
        raise


def _fields(entry: ModelEntry, request_id: str, reply: Reply) -> dict[str, Any]:
    death = DeathDetail.unpack(reply.detail)
    fields: dict[str, Any] = {"stage": "execute", "model": entry.name, "version": str(entry.version)}
    fields |= {"instance": death.instance_name(entry.groups), "worker_pid": death.pid, "request_id": request_id}
    return fields | (end_fields(death.code) if reply.reason == Reason.INSTANCE_DIED else {})

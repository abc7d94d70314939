"""The audit log: a line for each request that changes the server, or was to, and who has sent it. Never a key's text.

    admin: POST /v2/repository/models/simple/load by key 'deploy' at 10.1.2.3: 200

Lines about refused requests are bounded, or strangers would fill the log. Front-end processes; any thread.
"""

import logging
import threading
import time
from collections.abc import Callable

from shoal.api_keys import ApiKey
from shoal.frontend.access_log import printable

_log = logging.getLogger("shoal")

#: Lines about refused requests in any second of a process (ours).
REFUSED_PER_S = 5


class Audit:
    """The audit log of a process."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        # Changed under the lock.
        self._second_ends_s = 0.0
        self._num_refused = 0
        self._num_silent = 0

    def answered(self, what: str, key: ApiKey | None, address: str, outcome: object) -> None:
        """Log a request that was let in, and how it was answered: an HTTP status, or a gRPC code's number."""
        _log.info("admin: %s by %s: %s", printable(what), _who(key, address), outcome)

    def refused(self, what: str, address: str, outcome: object) -> None:
        """Log a request that was not let in."""
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._second_ends_s:
                self._second_ends_s, self._num_refused = now_s + 1.0, 0
            self._num_refused += 1
            if self._num_refused > REFUSED_PER_S:
                self._num_silent += 1
                return
            num_silent, self._num_silent = self._num_silent, 0
        more = f"; {num_silent} more before it, of which there is no line" if num_silent else ""
        _log.warning("admin: %s by %s refused: %s%s", printable(what), _who(None, address), outcome, more)


#: The process's own.
AUDIT = Audit()


def _who(key: ApiKey | None, address: str) -> str:
    return f"key '{key.name}' at {address or 'this host'}" if key is not None else address or "this host"

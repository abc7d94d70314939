"""A result that many threads ask for and that is computed at most once an interval. Runs in the road's threads."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_NS_PER_MS = 1_000_000

T = TypeVar("T")


class Reused(Generic[T]):
    """Calls `read` at most once an interval, and returns its last result in between; any number of threads may ask."""

    def __init__(self, read: Callable[[], T], interval_ms: int) -> None:
        self._read = read
        self._interval_ns = interval_ms * _NS_PER_MS
        self._lock = threading.Lock()
        # Changed under the lock: when `read` was last called, in ns, and its result.
        self._last: tuple[int, T] | None = None

    def get(self, now_ns: int) -> T:
        """The result of `read` now, or of an earlier call within the interval."""
        with self._lock:
            if self._last is None or now_ns - self._last[0] >= self._interval_ns:
                self._last = now_ns, self._read()
            return self._last[1]

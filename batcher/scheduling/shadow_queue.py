"""The mirrored requests of one pair of versions: which are chosen, which wait, and when one is executed.

Rules: a mirrored request never runs while a request of either version waits, and runs in place of an instance of the
primary that is idle, one at a time for each; one that has waited for its patience leaves; so does one for which there
is no room. Every request that was added leaves exactly once: by `take` and then `end`, by `expire`, or by `remove`.
Pure policy, runs in the batcher.
"""

from typing import NamedTuple

#: Mirrored requests of a pair that wait at once (ours: some batches).
MAX_WAITING = 16
#: How long one waits for an idle instance (ours: beyond the pauses between bursts, and far below a client's patience).
PATIENCE_NS = 200_000_000
_WORD_MASK = (1 << 64) - 1
#: Multiples of it, modulo 2^64, are spread evenly: 2^64 divided by the golden ratio.
_GOLDEN = 0x9E3779B97F4A7C15


class Load(NamedTuple):
    """The load of a version: its requests that wait, and its idle instances."""

    num_pending: int
    num_idle: int


class ShadowQueue:
    """The mirrored requests of a pair, by key. Each method is O(1), but those that return what left."""

    __slots__ = ("_max_nbytes", "_running", "_threshold", "_waiting", "nbytes")

    def __init__(self, share: float, max_nbytes: int) -> None:
        """`share` of the requests is chosen; those that wait or run have at most `max_nbytes` bytes together."""
        self._threshold = round(share * (1 << 64))
        self._max_nbytes = max_nbytes
        # Changed by every method but `chooses`: key → bytes, and when the request leaves (monotonic ns); in the order
        # of their arrival.
        self._waiting: dict[int, tuple[int, int]] = {}
        self._running: dict[int, int] = {}
        #: Bytes of all requests that wait or run.
        self.nbytes = 0

    def __len__(self) -> int:
        """The number of requests that wait or run."""
        return len(self._waiting) + len(self._running)

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def chooses(self, number: int) -> bool:
        """Whether a request with this number, which ascends, belongs to the share that is mirrored."""
        return number * _GOLDEN & _WORD_MASK < self._threshold

    def add(self, key: int, nbytes: int, now_ns: int) -> bool:
        """Have a request wait. False, and no effect, if there is no room."""
        if len(self._waiting) >= MAX_WAITING or self.nbytes + nbytes > self._max_nbytes:
            return False
        self._waiting[key] = nbytes, now_ns + PATIENCE_NS
        self.nbytes += nbytes
        return True

    def take(self, primary: Load, shadow: Load) -> int | None:
        """The next request to be executed, running from now on; None if none may now. To be called until None."""
        if not self._waiting or primary.num_pending or shadow.num_pending:
            return None
        if primary.num_idle <= len(self._running) or not shadow.num_idle:
            return None
        key = next(iter(self._waiting))
        nbytes, _ = self._waiting.pop(key)
        self._running[key] = nbytes
        return key

    def expire(self, now_ns: int) -> list[int]:
        """Remove and return the requests that have waited for too long."""
        expired = []
        for key, (_, leave_ns) in self._waiting.items():
            if leave_ns > now_ns:
                break
            expired.append(key)
        for key in expired:
            self.remove(key)
        return expired

    def remove(self, key: int) -> bool:
        """Remove a request that waits. False, and no effect, if it does not."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return False
        self.nbytes -= waiting[0]
        return True

    def end(self, key: int) -> None:
        """Note that a running request has been executed, or given up."""
        self.nbytes -= self._running.pop(key, 0)

    def next_deadline_ns(self) -> int | None:
        """When `expire` must be called again; None: not before another request waits."""
        return next(iter(self._waiting.values()))[1] if self._waiting else None

"""The mirrored requests of one pair of versions: which requests are chosen, which wait, and when they are executed.

Rules: a mirrored request never runs while a request of either version waits, and at most one batch runs for each idle
instance of the primary. A request that has waited for PATIENCE_NS leaves; one for which there is no room is not added.
Every request that was added leaves exactly once: by `take` and then `end`, by `expire`, or by `remove`. Pure policy,
runs in the batcher.
"""

from typing import NamedTuple

from shoal.batcher.scheduling.split import spread

#: Mirrored requests of a pair that wait at once (ours: as many as a few batches have).
MAX_WAITING = 16
#: How long a request waits for an idle instance (ours: longer than a burst, far shorter than clients wait).
PATIENCE_NS = 200_000_000


class _Waiting(NamedTuple):
    """A mirrored request that waits."""

    nbytes: int
    leave_ns: int  # monotonic
    rows: int
    shape_key: int


class Load(NamedTuple):
    """The load of a version: its requests that wait, and its idle instances."""

    num_pending: int
    num_idle: int


class ShadowQueue:
    """The mirrored requests of a pair, by key. Each method is O(1), except those that return requests."""

    __slots__ = ("_batches", "_max_nbytes", "_running", "_threshold", "_waiting", "nbytes")

    def __init__(self, share: float, max_nbytes: int) -> None:
        """`share` is the part of the requests that is chosen (0 to 1). Requests that wait or run have at most
        `max_nbytes` bytes together."""
        self._threshold = round(share * (1 << 64))
        self._max_nbytes = max_nbytes
        # Changed by every method but `chooses`, by key. Waiting requests, in the order of their arrival; for each
        # running request, its bytes and the key of the first request of its batch; by the key of a batch's first
        # request, how many requests of the batch still run.
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, tuple[int, int]] = {}
        self._batches: dict[int, int] = {}
        #: Bytes of all requests that wait or run.
        self.nbytes = 0

    def __len__(self) -> int:
        """The number of requests that wait or run."""
        return len(self._waiting) + len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def chooses(self, number: int) -> bool:
        """Whether a request belongs to the mirrored share; requests are numbered consecutively."""
        return spread(number) < self._threshold

    def add(self, key: int, nbytes: int, now_ns: int, rows: int = 1, shape_key: int = 0) -> bool:
        """Queue a request. False, and no effect, if there is no room."""
        if len(self._waiting) >= MAX_WAITING or self.nbytes + nbytes > self._max_nbytes:
            return False
        self._waiting[key] = _Waiting(nbytes, now_ns + PATIENCE_NS, rows, shape_key)
        self.nbytes += nbytes
        return True

    def take(self, primary: Load, shadow: Load, batch_rows: int = 0) -> list[int]:
        """The next requests to be executed as one batch: the oldest, and those behind it of the same shape, up to
        `batch_rows` rows together. They are running from now on. Empty if none may run; to be called until it returns
        none."""
        if not self._waiting or primary.num_pending or shadow.num_pending:
            return []
        if primary.num_idle <= len(self._batches) or not shadow.num_idle:
            return []
        keys, rows, shape_key = list[int](), 0, next(iter(self._waiting.values())).shape_key
        for key, waiting in self._waiting.items():
            if keys and (waiting.shape_key != shape_key or rows + waiting.rows > batch_rows):
                break
            keys.append(key)
            rows += waiting.rows
        for key in keys:
            self._running[key] = self._waiting.pop(key).nbytes, keys[0]
        self._batches[keys[0]] = len(keys)
        return keys

    def expire(self, now_ns: int) -> list[int]:
        """Remove and return the requests that have waited for too long."""
        expired = []
        for key, waiting in self._waiting.items():
            if waiting.leave_ns > now_ns:
                break
            expired.append(key)
        for key in expired:
            self.remove(key)
        return expired

    def remove(self, key: int) -> bool:
        """Remove a waiting request. False, and no effect, if the request does not wait."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return False
        self.nbytes -= waiting.nbytes
        return True

    def end(self, key: int) -> None:
        """Note that a running request has been executed, or given up."""
        if (running := self._running.pop(key, None)) is None:
            return
        nbytes, batch = running
        self.nbytes -= nbytes
        self._batches[batch] -= 1
        if not self._batches[batch]:
            del self._batches[batch]

    def next_deadline_ns(self) -> int | None:
        """When `expire` must be called again; None: no request waits."""
        return next(iter(self._waiting.values())).leave_ns if self._waiting else None

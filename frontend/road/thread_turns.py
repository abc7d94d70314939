"""Requests of one kind of work that have come whole and wait for a thread of the road: each model's in their order, one
model after the other.

A request keeps its thread until its model has answered. So the threads are shared as places in flight are
(shm/shares.py): one model's requests have a number of threads at most, and something stays free for another model. What
waits keeps its body in memory, so a model that has much of that memory already may not have more requests wait. Pure;
one thread, the event loop's.
"""

from collections import Counter, OrderedDict, deque
from typing import Generic, Protocol, TypeVar

from shoal.shm.shares import may_take


class Waiting(Protocol):
    """A request that needs a thread."""

    #: What it shares threads with: its model's name, or the path of a request that names none.
    share: str
    #: Bytes that it keeps in memory.
    share_nbytes: int
    #: When it came whole, in monotonic seconds.
    queued_s: float


Request = TypeVar("Request", bound=Waiting)


class ThreadTurns(Generic[Request]):
    """The threads for one kind of work, and the requests that wait for one."""

    def __init__(self, num_threads: int, num_of_model: int) -> None:
        self._num_threads = num_threads
        self._num_of_model = num_of_model
        # Changed by begin, end and expire: threads in use, by model and in all; bytes of requests that wait or have a
        # thread, by model; what waits, by model, in the order of the models' turns.
        self._running: Counter[str] = Counter()
        self._num_running = 0
        self._nbytes: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Request]] = OrderedDict()

    def begin(self, request: Request, free_nbytes: int) -> bool | None:
        """Whether a request may have a thread now. If not it waits for one, or (None) is to be refused, since its model
        has too much of the memory of which `free_nbytes` are free."""
        share = request.share
        if share not in self._waiting and self._has_thread(share):
            self._count(request, 1)
            self._nbytes[share] += request.share_nbytes
            return True
        if not may_take(self._nbytes[share], max(0, free_nbytes)):
            return None
        self._nbytes[share] += request.share_nbytes
        self._waiting.setdefault(share, deque()).append(request)
        return False

    def end(self, request: Request) -> list[Request]:
        """Note that a request has given back its thread. Returns those that may have one now."""
        self._count(request, -1)
        self._forget(request)
        begun: list[Request] = []
        while (share := next(filter(self._has_thread, self._waiting), None)) is not None:
            begun.append(self._take(share))
            self._count(begun[-1], 1)
            if share in self._waiting:
                self._waiting.move_to_end(share)
        return begun

    def expire(self, came_by_s: float) -> list[Request]:
        """Remove and return the requests that had come by this time and wait still."""
        late = []
        for share in tuple(self._waiting):
            while share in self._waiting and self._waiting[share][0].queued_s <= came_by_s:
                late.append(self._take(share))
        for request in late:
            self._forget(request)
        return late

    def _has_thread(self, share: str) -> bool:
        num = self._running[share]
        return num < self._num_of_model and may_take(num, self._num_threads - self._num_running)

    def _take(self, share: str) -> Request:
        waiting = self._waiting[share]
        request = waiting.popleft()
        if not waiting:
            del self._waiting[share]
        return request

    def _count(self, request: Request, change: int) -> None:
        self._num_running += change
        self._running[request.share] += change
        if not self._running[request.share]:
            del self._running[request.share]

    def _forget(self, request: Request) -> None:
        self._nbytes[request.share] -= request.share_nbytes
        if not self._nbytes[request.share]:
            del self._nbytes[request.share]

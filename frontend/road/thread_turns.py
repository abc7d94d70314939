"""The queue of requests for the road's threads: first come, first served within a model, round robin between models.

A request keeps its thread until its model has answered. So the number of threads of one model's requests is bounded,
and some stay free for other models; shm/shares.py has the same rule for places in flight. A request that waits keeps
its body in memory; if its model's requests take much of that memory already, the request is refused. Pure; one thread,
the event loop's.
"""

from collections import Counter, OrderedDict, deque
from enum import Enum
from typing import Generic, Protocol, TypeVar

from shoal.shm.shares import may_take


class Waiting(Protocol):
    """A request that needs a thread; it has been received in full."""

    #: The name of the model, or the path of a request that names none: the requests of one group share threads.
    group: str
    #: Bytes of the body, which is kept in memory until the request has been answered.
    body_nbytes: int
    #: When the request had been received, in monotonic seconds.
    queued_s: float


Request = TypeVar("Request", bound=Waiting)


class Turn(Enum):
    """The answer to a request for a thread."""

    NOW = "now"  # the request has a thread
    LATER = "later"  # the request is queued; `end` or `expire` returns it
    REFUSED = "refused"  # the group's requests take too much memory already


class ThreadTurns(Generic[Request]):
    """The threads for one kind of work, and the requests that wait for them. One group has at most `max_per_group`
    threads."""

    def __init__(self, num_threads: int, max_per_group: int) -> None:
        self._num_threads = num_threads
        self._max_per_group = max_per_group
        # Changed by begin, end and expire. By group: threads in use, and bytes of requests that wait or have a thread.
        self._running: Counter[str] = Counter()
        self._nbytes: Counter[str] = Counter()
        self._num_running = 0
        # The requests that wait, by group; the group whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[Request]] = OrderedDict()

    def begin(self, request: Request, free_nbytes: int) -> Turn:
        """Give a request a thread, queue it, or refuse it. `free_nbytes` are left for the bodies of all requests."""
        group = request.group
        if group not in self._waiting and self._has_thread(group):
            self._count(request, 1)
            self._nbytes[group] += request.body_nbytes
            return Turn.NOW
        if not may_take(self._nbytes[group], max(0, free_nbytes)):
            return Turn.REFUSED
        self._nbytes[group] += request.body_nbytes
        self._waiting.setdefault(group, deque()).append(request)
        return Turn.LATER

    def end(self, request: Request) -> list[Request]:
        """Take back the thread of a request that has ended. Returns the queued requests that have a thread now."""
        self._count(request, -1)
        self._forget(request)
        begun: list[Request] = []
        while (group := next(filter(self._has_thread, self._waiting), None)) is not None:
            begun.append(self._dequeue(group))
            self._count(begun[-1], 1)
            if group in self._waiting:
                self._waiting.move_to_end(group)
        return begun

    def expire(self, queued_by_s: float) -> list[Request]:
        """Remove and return the requests that have waited since `queued_by_s` (monotonic) or longer."""
        late = []
        for group in tuple(self._waiting):
            while group in self._waiting and self._waiting[group][0].queued_s <= queued_by_s:
                late.append(self._dequeue(group))
        for request in late:
            self._forget(request)
        return late

    def _has_thread(self, group: str) -> bool:
        num = self._running[group]
        return num < self._max_per_group and may_take(num, self._num_threads - self._num_running)

    def _dequeue(self, group: str) -> Request:
        waiting = self._waiting[group]
        request = waiting.popleft()
        if not waiting:
            del self._waiting[group]
        return request

    def _count(self, request: Request, change: int) -> None:
        self._num_running += change
        self._running[request.group] += change
        if not self._running[request.group]:
            del self._running[request.group]

    def _forget(self, request: Request) -> None:
        self._nbytes[request.group] -= request.body_nbytes
        if not self._nbytes[request.group]:
            del self._nbytes[request.group]

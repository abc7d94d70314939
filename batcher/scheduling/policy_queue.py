"""A queue under Triton's queue policies: requests have levels of priority, expire, and are refused or delayed.

The order of service is: level 1, late requests of level 1, level 2 and so on; first come, first served within each.
Late are the requests that have expired under DELAY; they keep their level and expire only once.

The queue has the methods of `RequestQueue` (queue.py). Requests expire exactly in time, since the batcher does not
sleep beyond the next expiry. Pure policy, runs in the batcher.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import Any, NamedTuple

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import UnavailableError

#: Deadlines of requests that have left are removed once they outnumber the valid deadlines by this many (ours).
_MAX_STALE = 64
#: A level has two lines of requests: those on time, and late ones. A level without requests keeps its lines as long as
#: there are no more lines than this (ours).
_KEPT_LINES = 128


class QueuePolicy(NamedTuple):
    """A model's ModelQueuePolicy; 0 = no timeout, no bound."""

    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    delays: bool = False  # otherwise REJECT
    max_queue_size: int = 0

    @classmethod
    def from_config(cls, policy: dict[str, Any]) -> "QueuePolicy":
        """The policy in a `default_queue_policy`, or in a value of `priority_queue_policy`."""
        return cls(
            int(policy.get("default_timeout_microseconds", 0)) * 1000,
            bool(policy.get("allow_timeout_override", False)),
            policy.get("timeout_action") == "DELAY",
            int(policy.get("max_queue_size", 0)),
        )

    def deadline_ns(self, request: QueuedRequest) -> int:
        """When the request expires (monotonic ns); 0 = never. Triton's rule: the request's own timeout can only
        shorten the default."""
        timeout_ns = self.default_timeout_ns
        if self.allow_timeout_override and 0 < request.timeout_us * 1000 < timeout_ns:
            timeout_ns = request.timeout_us * 1000
        return request.arrival_ns + timeout_ns if timeout_ns else 0


class _Place(NamedTuple):
    """The line in which a request waits; the serial number tells the request from an earlier one of the same key."""

    request: QueuedRequest
    line: int
    serial: int


#: Makes a _Place of its three fields as a tuple: 1k instructions instead of 3k.
_make_place: Callable[[tuple[QueuedRequest, int, int]], _Place] = partial(tuple.__new__, _Place)


class PolicyQueue:
    """The waiting requests of one model, with levels of priority. Adding, taking and expiry of a request are O(log
    n), cancelling is O(1), however many levels there are."""

    __slots__ = (
        "_deadlines", "_default_level", "_line_rows", "_lines", "_max_total_queue", "_num_levels", "_order", "_places",
        "_policies", "_rest", "_serial", "rows",
    )  # fmt: skip

    def __init__(
        self,
        policies: Mapping[int, QueuePolicy],
        rest: QueuePolicy,
        num_levels: int,
        default_level: int,
        max_total_queue: int,
    ) -> None:
        """`policies` by level, `rest` for all other levels; `max_total_queue` bounds each level, so that no level
        fills another's share."""
        self._policies = policies
        self._rest = rest
        self._num_levels = num_levels
        self._default_level = default_level
        self._max_total_queue = max_total_queue
        # Changed by add, popleft, cancel, expire and drain: by line, its requests by key, and the sum of their rows.
        #: The requests of a level that are on time have the line 2 * level - 1, those that are late 2 * level.
        self._lines: dict[int, OrderedDict[int, QueuedRequest]] = {}
        self._line_rows: dict[int, int] = {}
        #: The numbers of all lines, ascending, which is the order of service.
        self._order: list[int] = []
        #: Key → place, in order of arrival.
        self._places: OrderedDict[int, _Place] = OrderedDict()
        #: A heap of (deadline, serial number, key); requests that have left stay until they reach the top.
        self._deadlines: list[tuple[int, int, int]] = []
        self._serial = count()
        self.rows = 0

    @classmethod
    def from_config(cls, batching: dict[str, Any], max_total_queue: int) -> "PolicyQueue":
        """The queue for a model's `dynamic_batching`. Without configured levels there is one level, and requests'
        priorities are ignored."""
        rest = QueuePolicy.from_config(batching.get("default_queue_policy", {}))
        num_levels = int(batching.get("priority_levels", 0))
        if not num_levels:
            return cls({}, rest, 1, 1, max_total_queue)
        given = batching.get("priority_queue_policy", {}).items()
        policies = {int(level): QueuePolicy.from_config(policy) for level, policy in given}
        return cls(policies, rest, num_levels, int(batching.get("default_priority_level", 0)), max_total_queue)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[QueuedRequest]:
        """The requests in order of service; the queue must not change meanwhile."""
        return chain.from_iterable([self._lines[line].values() for line in self._order])

    @property
    def rejects(self) -> bool:
        """Whether a level has a timeout after which requests are refused."""
        rest = [self._rest] * (self._num_levels > len(self._policies))
        return any(policy.default_timeout_ns and not policy.delays for policy in (*self._policies.values(), *rest))

    def expiry_ns(self, request: QueuedRequest) -> int:
        """When the request, if it were added, would be refused for having waited; 0 = never."""
        policy, _ = self._place_of(request)
        return 0 if policy.delays else policy.deadline_ns(request)

    def rows_before(self, request: QueuedRequest) -> int:
        """Rows of all requests that would be served before this one, if it were added."""
        _, line = self._place_of(request)
        return sum(map(self._line_rows.__getitem__, self._order[: bisect_right(self._order, line)]))

    def _place_of(self, request: QueuedRequest) -> tuple[QueuePolicy, int]:
        """The policy of the request's level, and the level's line of requests on time."""
        level = request.priority if 0 < request.priority <= self._num_levels else self._default_level
        return self._policies.get(level, self._rest), 2 * level - 1

    def _open(self, line: int) -> None:
        """Add the two lines of a level; `line` is the first."""
        for each in (line, line + 1):
            self._lines[each] = OrderedDict()
            self._line_rows[each] = 0
            insort(self._order, each)

    def add(self, request: QueuedRequest, num_in_payloads: int = 0) -> None:
        """Put `request` behind those of its level that are on time. Raises UnavailableError if the queue is full."""
        policy, line = self._place_of(request)
        is_open = line in self._lines
        num_waiting = len(self._lines[line]) + len(self._lines[line + 1]) if is_open else 0
        if num_waiting >= (policy.max_queue_size or self._max_total_queue) or (
            num_waiting + num_in_payloads >= self._max_total_queue
        ):
            raise UnavailableError("Exceeds maximum queue size")
        if not is_open:
            self._open(line)
        deadline_ns, serial = policy.deadline_ns(request), next(self._serial)
        key, rows = request.key, request.rows
        self._lines[line][key] = request
        self._places[key] = _make_place((request, line, serial))
        self._line_rows[line] += rows
        self.rows += rows
        if deadline_ns:
            heappush(self._deadlines, (deadline_ns, serial, key))
            if len(self._deadlines) > 2 * len(self._places) + _MAX_STALE:
                self._deadlines = [each for each in self._deadlines if self._is_current(each)]
                heapify(self._deadlines)

    def popleft(self) -> QueuedRequest:
        """Remove the request to be served next. Raises KeyError if there is none."""
        for line in self._order:
            if requests := self._lines[line]:
                key, request = requests.popitem(last=False)
                del self._places[key]
                self._left(line, request.rows)
                return request
        raise KeyError("the queue is empty")

    def cancel(self, key: int) -> bool:
        """Remove a waiting request. False if the request is not here."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        request, line, _ = place
        del self._lines[line][key]
        self._left(line, request.rows)
        return True

    def oldest_arrival_ns(self) -> int:
        """The arrival (monotonic ns) from which the queue delay counts. The queue must not be empty."""
        return next(iter(self._places.values())).request.arrival_ns

    def next_expiry_ns(self) -> int | None:
        """When the next request expires; None if none does."""
        deadlines = self._deadlines
        while deadlines and not self._is_current(deadlines[0]):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        """Make expired requests late, or remove and return them, as their policy demands."""
        rejected = []
        while (expiry_ns := self.next_expiry_ns()) is not None and expiry_ns <= now_ns:
            _, _, key = heappop(self._deadlines)
            request, line, serial = self._places[key]
            if self._policies.get((line + 1) // 2, self._rest).delays:
                self._lines[line + 1][key] = self._lines[line].pop(key)
                self._line_rows[line] -= request.rows
                self._line_rows[line + 1] += request.rows
                self._places[key] = _make_place((request, line + 1, serial))
            else:
                self.cancel(key)
                rejected.append(request)
        return rejected

    def drain(self) -> list[QueuedRequest]:
        """Empty the queue, and return its requests in order of arrival."""
        requests = [place.request for place in self._places.values()]
        self._lines.clear()
        self._line_rows.clear()
        self._order.clear()
        self._places.clear()
        self._deadlines.clear()
        self.rows = 0
        return requests

    def _left(self, line: int, rows: int) -> None:
        """Update the counts after a request of `rows` rows has left a line; of many levels, an empty one is removed."""
        self._line_rows[line] -= rows
        self.rows -= rows
        if len(self._order) > _KEPT_LINES:
            first = line - 1 + line % 2  # of the level's two lines
            if not (self._lines[first] or self._lines[first + 1]):
                for each in (first, first + 1):
                    del self._lines[each], self._line_rows[each], self._order[bisect_left(self._order, each)]

    def _is_current(self, deadline: tuple[int, int, int]) -> bool:
        """Whether a deadline in the heap belongs to a request that still waits and is not late."""
        _, serial, key = deadline
        place = self._places.get(key)
        return place is not None and place.serial == serial

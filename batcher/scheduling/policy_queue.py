"""A queue under Triton's queue policies: requests have levels of priority, expire, and are refused or wait behind.

The order of service is: level 1, those of level 1 that are late, level 2 and so on; first come, first served within
each. Late are those that have expired under DELAY; they keep their level and expire only once.
Rules: those of `RequestQueue`; expiry is exact, since whoever sleeps is told of the next one.
Pure policy, runs in the batcher.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import Any, NamedTuple

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import UnavailableError

#: Deadlines of requests that have left, beyond as many as there are of others, before they are thrown out (ours).
_MAX_STALE = 64
#: Levels that are there from the start; of more, those that requests have, up to so many that are empty (ours).
_FIRST_LEVELS, _MAX_LEVELS = 64, 1024


class QueuePolicy(NamedTuple):
    """A ModelQueuePolicy; 0 = no timeout, no bound."""

    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    delays: bool = False  # else it rejects
    max_queue_size: int = 0

    @classmethod
    def from_config(cls, policy: dict[str, Any]) -> "QueuePolicy":
        """From `default_queue_policy`, or a value of `priority_queue_policy`."""
        return cls(
            int(policy.get("default_timeout_microseconds", 0)) * 1000,
            bool(policy.get("allow_timeout_override", False)),
            policy.get("timeout_action") == "DELAY",
            int(policy.get("max_queue_size", 0)),
        )

    def deadline_ns(self, request: QueuedRequest) -> int:
        """When the request expires; 0 = never. Triton's rule: its own timeout can only shorten the default one."""
        timeout_ns = self.default_timeout_ns
        if self.allow_timeout_override and 0 < request.timeout_us * 1000 < timeout_ns:
            timeout_ns = request.timeout_us * 1000
        return request.arrival_ns + timeout_ns if timeout_ns else 0


class _Place(NamedTuple):
    """Where a request waits; the serial number tells it from one of the same key."""

    request: QueuedRequest
    line: int
    serial: int


#: One of its three fields as a tuple: 1k instructions instead of 3k.
_make_place: Callable[[tuple[QueuedRequest, int, int]], _Place] = partial(tuple.__new__, _Place)


class PolicyQueue:
    """Adding, taking and expiring one are O(log n), cancelling is O(1); with l levels in use, taking is O(l), too."""

    __slots__ = (
        "_deadlines", "_default_level", "_line_rows", "_lines", "_max_total_queue", "_num_levels", "_places",
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
        """`policies` by level, and that of the `rest`; the server's bound is each level's, so that none fills up
        another's."""
        first = range(1, 1 + min(num_levels, _FIRST_LEVELS))
        self._policies = {**dict.fromkeys(first, rest), **policies}
        self._rest = rest
        self._num_levels = num_levels
        self._default_level = default_level
        self._max_total_queue = max_total_queue
        # Changed by add, popleft, cancel, expire and drain.
        #: Two for each level, in order of service: those on time, those that are late; their numbers are 2 * level - 1
        #: and 2 * level.
        self._lines: dict[int, OrderedDict[int, QueuedRequest]] = {
            line: OrderedDict() for line in range(1, 1 + 2 * len(first))
        }
        self._line_rows = dict.fromkeys(self._lines, 0)
        #: By key, in order of arrival.
        self._places: OrderedDict[int, _Place] = OrderedDict()
        #: A heap of (deadline, serial number, key); of those that have left, too, until they come to its top.
        self._deadlines: list[tuple[int, int, int]] = []
        self._serial = count()
        self.rows = 0

    @classmethod
    def from_config(cls, batching: dict[str, Any], max_total_queue: int) -> "PolicyQueue":
        """From a model's `dynamic_batching`. Without levels there is one, and what requests wish is ignored."""
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
        return chain.from_iterable([line.values() for line in self._lines.values()])

    @property
    def rejects(self) -> bool:
        """Whether a level has a timeout after which requests are refused."""
        rest = [self._rest] * (self._num_levels > len(self._policies))
        return any(policy.default_timeout_ns and not policy.delays for policy in (*self._policies.values(), *rest))

    def expiry_ns(self, request: QueuedRequest) -> int:
        """When the request would be refused for having waited, if it were added; 0 = never."""
        policy, _ = self._place_of(request)
        return 0 if policy.delays else policy.deadline_ns(request)

    def rows_before(self, request: QueuedRequest) -> int:
        """Rows of those that would be served before the request, if it were added."""
        _, line = self._place_of(request)
        return sum([rows for each, rows in self._line_rows.items() if each <= line])

    def _place_of(self, request: QueuedRequest) -> tuple[QueuePolicy, int]:
        """The policy of the request's level, and the line of those of it that are on time."""
        level = request.priority if 0 < request.priority <= self._num_levels else self._default_level
        try:
            return self._policies[level], 2 * level - 1
        except KeyError:  # of many levels; the first have theirs in the table
            return self._rest, 2 * level - 1

    def _open(self, line: int) -> None:
        """Have the two lines of a level, the first of which is `line`, in their place in the order of service."""
        lines = self._lines
        if len(lines) >= 2 * _MAX_LEVELS:
            used = {place.line - 1 + place.line % 2 for place in self._places.values()}
            lines = {each: lines[each] for first in used for each in (first, first + 1)}
        lines[line], lines[line + 1] = OrderedDict(), OrderedDict()
        self._lines = dict(sorted(lines.items()))
        self._line_rows = {each: self._line_rows.get(each, 0) for each in self._lines}

    def add(self, request: QueuedRequest, num_in_payloads: int = 0) -> None:
        """Puts `request` behind those of its level that are on time; see `RequestQueue`."""
        policy, line = self._place_of(request)
        try:
            num_waiting = len(self._lines[line]) + len(self._lines[line + 1])
        except KeyError:
            self._open(line)
            num_waiting = 0
        if num_waiting >= (policy.max_queue_size or self._max_total_queue) or (
            num_waiting + num_in_payloads >= self._max_total_queue
        ):
            raise UnavailableError("Exceeds maximum queue size")
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
        """Removes the request to be served next; KeyError where there is none."""
        for line, requests in self._lines.items():
            if requests:
                key, request = requests.popitem(last=False)
                del self._places[key]
                self._count(line, -request.rows)
                return request
        raise KeyError("the queue is empty")

    def cancel(self, key: int) -> bool:
        """Whether the request was waiting here; then it is gone."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        request, line, _ = place
        del self._lines[line][key]
        self._count(line, -request.rows)
        return True

    def oldest_arrival_ns(self) -> int:
        """The arrival that the queue delay counts from; only where the queue is not empty."""
        return next(iter(self._places.values())).request.arrival_ns

    def next_expiry_ns(self) -> int | None:
        """When the next request expires; None: none ever does."""
        deadlines = self._deadlines
        while deadlines and not self._is_current(deadlines[0]):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        """Lets what has expired be late, or removes and returns it, as its policy says."""
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
        """Empties the queue; the requests in order of arrival."""
        requests = [place.request for place in self._places.values()]
        for line in self._lines.values():
            line.clear()
        self._places.clear()
        self._deadlines.clear()
        self._line_rows = dict.fromkeys(self._lines, 0)
        self.rows = 0
        return requests

    def _count(self, line: int, rows: int) -> None:
        self._line_rows[line] += rows
        self.rows += rows

    def _is_current(self, deadline: tuple[int, int, int]) -> bool:
        """Whether a request still waits for what the heap says of it."""
        _, serial, key = deadline
        place = self._places.get(key)
        return place is not None and place.serial == serial

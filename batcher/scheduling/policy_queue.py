"""A queue under Triton's queue policies: requests have levels of priority, expire, and are refused or wait behind.

The order of service is: level 1, those of level 1 that are late, level 2 and so on; first come, first served within
each. Late are those that have expired under DELAY; they keep their level and expire only once.
Rules: those of `RequestQueue`; expiry is exact, since whoever sleeps is told of the next one.
Pure policy, runs in the batcher.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import Any, NamedTuple

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import UnavailableError

#: Deadlines of requests that have left, beyond as many as there are of others, before they are thrown out (ours).
_MAX_STALE = 64


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
    """Adding, taking and expiring one are O(log n), cancelling is O(1); with l levels, taking is O(l), too."""

    __slots__ = (
        "_deadlines", "_default_level", "_line_rows", "_lines", "_max_total_queue", "_places", "_policies", "_serial",
        "rows",
    )  # fmt: skip

    def __init__(self, policies: tuple[QueuePolicy, ...], default_level: int, max_total_queue: int) -> None:
        """`policies` of level 1, 2 and so on; the server's bound is each level's, so that none fills up another's."""
        self._policies = policies
        self._default_level = default_level
        self._max_total_queue = max_total_queue
        # Changed by add, popleft, cancel, expire and drain.
        #: Two for each level, in order of service: those on time, those that are late.
        self._lines: tuple[OrderedDict[int, QueuedRequest], ...] = tuple(
            [OrderedDict() for _ in range(2 * len(policies))]
        )
        self._line_rows = [0] * len(self._lines)
        #: By key, in order of arrival.
        self._places: OrderedDict[int, _Place] = OrderedDict()
        #: A heap of (deadline, serial number, key); of those that have left, too, until they come to its top.
        self._deadlines: list[tuple[int, int, int]] = []
        self._serial = count()
        self.rows = 0

    @classmethod
    def from_config(cls, batching: dict[str, Any], max_total_queue: int) -> "PolicyQueue":
        """From a model's `dynamic_batching`. Without levels there is one, and what requests wish is ignored."""
        default = batching.get("default_queue_policy", {})
        by_level = {int(level): policy for level, policy in batching.get("priority_queue_policy", {}).items()}
        num_levels = int(batching.get("priority_levels", 0))
        policies = [by_level.get(level, default) for level in range(1, num_levels + 1)] or [default]
        default_level = int(batching.get("default_priority_level", 0)) if num_levels else 1
        return cls(tuple(map(QueuePolicy.from_config, policies)), default_level, max_total_queue)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[QueuedRequest]:
        """The requests in order of service; the queue must not change meanwhile."""
        return chain.from_iterable([line.values() for line in self._lines])

    @property
    def rejects(self) -> bool:
        """Whether a level has a timeout after which requests are refused."""
        return any(policy.default_timeout_ns and not policy.delays for policy in self._policies)

    def expiry_ns(self, request: QueuedRequest) -> int:
        """When the request would be refused for having waited, if it were added; 0 = never."""
        policy, _ = self._place_of(request)
        return 0 if policy.delays else policy.deadline_ns(request)

    def rows_before(self, request: QueuedRequest) -> int:
        """Rows of those that would be served before the request, if it were added."""
        _, line = self._place_of(request)
        return sum(self._line_rows[: line + 1])

    def _place_of(self, request: QueuedRequest) -> tuple[QueuePolicy, int]:
        """The policy of the request's level, and the line of those of it that are on time."""
        level = request.priority if 0 < request.priority <= len(self._policies) else self._default_level
        return self._policies[level - 1], 2 * (level - 1)

    def add(self, request: QueuedRequest, num_in_payloads: int = 0) -> None:
        """Puts `request` behind those of its level that are on time; see `RequestQueue`."""
        policy, line = self._place_of(request)
        num_waiting = len(self._lines[line]) + len(self._lines[line + 1])
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
        for line, requests in enumerate(self._lines):
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
            if self._policies[line // 2].delays:
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
        for line in self._lines:
            line.clear()
        self._places.clear()
        self._deadlines.clear()
        self._line_rows = [0] * len(self._lines)
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

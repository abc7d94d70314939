"""The queue of one model: requests that were accepted and are in no payload yet, in the order of service.

Rules: a refused request leaves the queue unchanged; one that is taken or cancelled leaves at once and for good;
iteration is in order of service, however that order came about, so a queue with priority levels (policy_queue.py) can
take the place of this one. Pure policy, runs in the batcher.
"""

from collections import OrderedDict
from collections.abc import Iterator

from shoal.errors import UnavailableError


class QueuedRequest:  # made for each request: not a dataclass, whose construction is not compiled
    """A request as schedulers see it; never changed.

    Made once for each request (2.7k instructions), and read often (50 instructions per field). A NamedTuple made by
    `tuple.__new__` would take 2.2k to make, and 190 per field.
    """

    __slots__ = (
        "arrival_ns", "correlation", "deadline_ns", "flags", "key", "priority", "rows", "shape_key", "timeout_us"
    )  # fmt: skip

    def __init__(
        self, key: int, rows: int, shape_key: int, arrival_ns: int, priority: int = 0, timeout_us: int = 0,
        deadline_ns: int = 0, correlation: int = 0, flags: int = 0,
    ) -> None:  # fmt: skip
        #: The request's key in the batcher; opaque here, unique among the requests of a scheduler.
        self.key = key
        #: max(1, first dimension of the inputs); 1 if the model does not batch.
        self.rows = rows
        #: Equal for requests that may share a batch; 0 if the configuration fixes every shape; a key from ALONE_KEY on
        #: (shoal/deterministic.py) belongs to one request, which runs alone.
        self.shape_key = shape_key
        #: Monotonic time at which the batcher accepted the request: the queue delay counts from here.
        self.arrival_ns = arrival_ns
        self.priority = priority
        self.timeout_us = timeout_us
        #: Monotonic time after which the client does not wait for the answer; 0 = never.
        self.deadline_ns = deadline_ns
        #: The word of the sequence's id; and Triton's flags, in a batch together with the number of the slot
        #: (shoal/sequences.py).
        self.correlation = correlation
        self.flags = flags

    def in_sequence(self, correlation: int, flags: int) -> "QueuedRequest":
        """A copy with this word of the sequence's id and these flags."""
        return QueuedRequest(
            self.key, self.rows, self.shape_key, self.arrival_ns, self.priority, self.timeout_us, self.deadline_ns,
            correlation, flags,
        )  # fmt: skip


class RequestQueue:
    """First in, first out, with bounds. Adding, taking the first and cancelling any request are O(1), however deep
    the queue is."""

    __slots__ = ("_max_queue_size", "_max_total_queue", "_requests", "rows")

    def __init__(self, max_queue_size: int, max_total_queue: int) -> None:
        """`max_queue_size` is the queue policy's (0 = unlimited), `max_total_queue` the server's, always in force."""
        self._max_queue_size = max_queue_size or max_total_queue
        self._max_total_queue = max_total_queue
        # Changed by add, popleft, cancel and drain. An OrderedDict by key: a plain dict would step over the holes that
        # popping leaves at its front (20 us a batch at a depth of 10,000), and a deque would be searched for each
        # cancelled request.
        self._requests: OrderedDict[int, QueuedRequest] = OrderedDict()
        #: Rows of all waiting requests together; a request has at least one, so 0 means empty.
        self.rows = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[QueuedRequest]:
        """The requests in order of service; the queue must not change meanwhile."""
        return iter(self._requests.values())

    def add(self, request: QueuedRequest, num_in_payloads: int = 0) -> None:
        """Append `request`. Raises UnavailableError, and changes nothing, if the queue is full.

        `num_in_payloads`: requests that left this queue for a payload and have no instance yet. As in Triton, they
        count towards the server's bound, not towards max_queue_size.
        """
        num_waiting = len(self._requests)
        if num_waiting >= self._max_queue_size or num_waiting + num_in_payloads >= self._max_total_queue:
            raise UnavailableError("Exceeds maximum queue size")
        self._requests[request.key] = request
        self.rows += request.rows

    def add_first(self, request: QueuedRequest) -> None:
        """Put a request that was accepted before in front of all others; no bound can refuse it."""
        self._requests[request.key] = request
        self._requests.move_to_end(request.key, last=False)
        self.rows += request.rows

    def popleft(self) -> QueuedRequest:
        """Remove the request to be served next. Raises KeyError if there is none."""
        request = self._requests.popitem(last=False)[1]
        self.rows -= request.rows
        return request

    def cancel(self, key: int) -> bool:
        """Remove a waiting request. False if the request is not here."""
        request = self._requests.pop(key, None)
        if request is None:
            return False
        self.rows -= request.rows
        return True

    def oldest_arrival_ns(self) -> int:
        """The arrival (monotonic ns) from which the queue delay counts. The queue must not be empty."""
        return next(iter(self._requests.values())).arrival_ns

    def drain(self) -> list[QueuedRequest]:
        """Empty the queue, and return its requests in order of service."""
        requests = list(self._requests.values())
        self._requests.clear()
        self.rows = 0
        return requests

"""The slots of one instance of a sequence batcher: which of the requests that may run now run together, and when.

A slot has at most one request that may run: the next one of the slot's sequence. Triton's two strategies:

    direct   a slot is a row of the batch, and so a sequence has one row as long as it lasts; rows without a request,
             below the highest row with one, are in the batch, too, and the worker fills them
    oldest   the slots' requests go through a dynamic batcher, whose batches have no such rows

Pure policy, runs in the batcher.
"""

from collections.abc import Callable
from math import ceil
from typing import Any, Protocol

from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.batcher.scheduling.sequence_values import Sequence


class Slots(Protocol):
    """A strategy for the slots of one instance, which has one batch at a time: `take` follows `complete`."""

    def offer(self, slot: int, request: QueuedRequest) -> None:
        """Let a request run in a slot in which no other request waits."""
        ...

    def withdraw(self, slot: int, key: int) -> None:
        """Remove the slot's request, if its key is `key`."""
        ...

    def take(self, now_ns: int) -> tuple[tuple[QueuedRequest, ...], int] | None:
        """The requests to run now and the rows of their batch; None if none may run yet."""
        ...

    def complete(self, now_ns: int) -> None:
        """Note that the last batch taken has been executed."""
        ...

    def next_deadline_ns(self) -> int | None:
        """When `take` must be called again though no request is offered; None: only after one has been offered."""
        ...


class DirectSlots:
    """The direct strategy; see `Slots`. Without a delay and a utilization all offered requests run at once."""

    __slots__ = ("_delay_ns", "_num_wanted", "_ready")

    def __init__(self, max_queue_delay_ns: int, num_wanted: int) -> None:
        """A batch runs at once with `num_wanted` or more requests, and with fewer once the oldest has waited for the
        delay."""
        self._delay_ns = max_queue_delay_ns
        self._num_wanted = num_wanted
        self._ready: dict[int, QueuedRequest] = {}  # changed by offer, withdraw and take

    def offer(self, slot: int, request: QueuedRequest) -> None:
        self._ready[slot] = request

    def withdraw(self, slot: int, key: int) -> None:
        self._ready.pop(slot, None)

    def take(self, now_ns: int) -> tuple[tuple[QueuedRequest, ...], int] | None:
        ready = self._ready
        if not ready:
            return None
        # The oldest request determines the batch's shape; in Triton the lowest slot does, and requests of another shape
        # may starve.
        oldest = min(ready.values(), key=_age)
        if len(ready) < self._num_wanted and now_ns < oldest.arrival_ns + self._delay_ns:
            return None
        slots = sorted([slot for slot, request in ready.items() if request.shape_key == oldest.shape_key])
        return tuple([ready.pop(slot) for slot in slots]), slots[-1] + 1

    def complete(self, now_ns: int) -> None:
        pass

    def next_deadline_ns(self) -> int | None:
        if not self._ready or len(self._ready) >= self._num_wanted:
            return None
        return min(self._ready.values(), key=_age).arrival_ns + self._delay_ns


class OldestSlots:
    """The oldest strategy; see `Slots`. The oldest requests form a batch, as many as the dynamic batcher's rules
    say."""

    __slots__ = ("_batcher",)

    def __init__(
        self, num_slots: int, max_batch_size: int, preferred_batch_sizes: tuple[int, ...], max_queue_delay_ns: int
    ) -> None:
        queue = RequestQueue(0, num_slots + 1)
        self._batcher = DynamicBatchScheduler(max_batch_size, preferred_batch_sizes, max_queue_delay_ns, queue)
        self._batcher.add_instance(0)

    def offer(self, slot: int, request: QueuedRequest) -> None:
        self._batcher.add(request, request.arrival_ns)

    def withdraw(self, slot: int, key: int) -> None:
        self._batcher.cancel(key)

    def take(self, now_ns: int) -> tuple[tuple[QueuedRequest, ...], int] | None:
        batch = self._batcher.take(now_ns)
        return None if batch is None else (batch.requests, batch.rows)

    def complete(self, now_ns: int) -> None:
        self._batcher.complete(0, now_ns, 0)

    def next_deadline_ns(self) -> int | None:
        return self._batcher.next_deadline_ns()


class SequenceInstance:
    """One instance of a sequence batcher: its slots, the sequences in them, and the running executions."""

    __slots__ = ("num_running", "owners", "running", "slots")

    def __init__(self, slots: Slots, num_running: int) -> None:
        self.slots = slots
        # Changed by the scheduler. Slot → the sequence that has it; key of a running request → its sequence.
        self.owners: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.num_running = num_running


def _age(request: QueuedRequest) -> tuple[int, int]:
    return request.arrival_ns, request.key


def slots_from_config(batching: dict[str, Any], num_slots: int, max_batch_size: int) -> Callable[[], Slots]:
    """The factory of an instance's slots, from a model's `sequence_batching`."""
    if "oldest" in batching:
        oldest = batching["oldest"]
        preferred = tuple(map(int, oldest["preferred_batch_size"])) or (max_batch_size,)
        delay_ns = int(oldest["max_queue_delay_microseconds"]) * 1000
        return lambda: OldestSlots(num_slots, max_batch_size, preferred, delay_ns)
    direct = batching.get("direct", {})
    delay_ns = int(direct.get("max_queue_delay_microseconds", 0)) * 1000
    # Triton's rule: a batch waits only if both the delay and the utilization are set.
    num_wanted = ceil(direct.get("minimum_slot_utilization", 0.0) * num_slots) if delay_ns else 0
    return lambda: DirectSlots(delay_ns, num_wanted)

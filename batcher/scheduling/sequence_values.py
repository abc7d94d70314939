"""What a sequence batcher (`sequence.py`) has: sequences, and what a successor must know of their slots."""

from collections import OrderedDict, deque
from enum import IntEnum
from typing import NamedTuple

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import InvalidArgumentError
from shoal.reasons import Reason

#: How many sequences that ended with their instance are remembered, to refuse their next requests (ours).
MAX_LOST = 1024


class SlotState(IntEnum):
    """What a slot has: no sequence; one; one whose END waits; one that ends with what runs of it."""

    FREE, LIVE, ENDING, CLOSED = 0, 1, 2, 3


class SlotChange(NamedTuple):
    """An instance's slot has that sequence, in that state, from now on; `number` is the sequence's."""

    instance: int
    slot: int
    correlation: int
    number: int
    state: SlotState


class HeldSlot(NamedTuple):
    """A slot that a sequence has, as a dead batcher has left it; `key` is of the request of it that runs, or 0, and
    `flags` are that request's."""

    slot: int
    correlation: int
    number: int
    state: SlotState
    key: int = 0
    flags: int = 0


class LostSequences:
    """The ids of the last sequences that ended with their instance."""

    def __init__(self) -> None:
        self._ids: OrderedDict[int, None] = OrderedDict()  # changed by the methods

    def __contains__(self, correlation: int) -> bool:
        return correlation in self._ids

    def add(self, correlation: int) -> None:
        """More of its requests may come, which are refused with the reason."""
        self._ids[correlation] = None
        if len(self._ids) > MAX_LOST:
            self._ids.popitem(last=False)

    def discard(self, correlation: int) -> None:
        """A sequence of this id begins."""
        self._ids.pop(correlation, None)


class SequenceError(InvalidArgumentError):
    """A request that belongs to no sequence; `reason` is the sentence."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


class Sequence:
    """One sequence; `instance` is None as long as it is in the backlog."""

    __slots__ = (
        "correlation", "first_key", "has_begun", "idle_since_ns", "instance", "is_over", "is_running", "number",
        "requests", "slot",
    )  # fmt: skip

    def __init__(self, number: int, correlation: int) -> None:
        self.number = number  # in the order in which they began
        self.correlation = correlation
        # Changed by the scheduler.
        self.instance: int | None = None
        self.slot = 0
        self.requests: deque[QueuedRequest] = deque()  # that wait
        self.is_running = False
        self.has_begun = False  # its instance has been given some of it
        self.first_key = 0  # of the request that it was given first, until that is given back
        self.is_over = False  # no request can join it any more
        self.idle_since_ns = 0

    @property
    def slot_state(self) -> SlotState:
        """What its slot has, as long as its requests are run one after the other."""
        return SlotState.ENDING if self.is_over else SlotState.LIVE

    def change(self, state: SlotState) -> SlotChange:
        """What is to be written down of its slot."""
        assert self.instance is not None, "it is in the backlog"
        return SlotChange(self.instance, self.slot, self.correlation, self.number, state)

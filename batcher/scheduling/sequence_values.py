"""The values of a sequence batcher (`sequence.py`): sequences, and the states of slots, which a batcher leaves to its
successor."""

from collections import OrderedDict, deque
from enum import IntEnum
from typing import NamedTuple

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import InvalidArgumentError
from shoal.reasons import Reason

#: Sequences that ended with their instance and are remembered, to refuse their next requests (ours).
MAX_LOST = 1024


class SequenceLimits(NamedTuple):
    """The bounds of a model's sequences; in the last three, 0 is no bound."""

    max_idle_ns: int  # a sequence without requests ends after this time
    max_lifetime_ns: int = 0  # of a sequence, from its beginning
    max_open: int = 0  # sequences that requests may join, over all instances; a further sequence is refused
    max_waiting: int = 0  # waiting requests of one sequence; a further request is refused


class SlotState(IntEnum):
    """A slot's state: FREE: it has no sequence; LIVE: its sequence is open; ENDING: the last request (END) of its
    sequence is waiting; CLOSED: its sequence ends with the running request."""

    FREE, LIVE, ENDING, CLOSED = 0, 1, 2, 3


class SlotChange(NamedTuple):
    """A new sequence or state of an instance's slot; `number` is the number of the sequence."""

    instance: int
    slot: int
    correlation: int
    number: int
    state: SlotState


class HeldSlot(NamedTuple):
    """A slot with a sequence, as a dead batcher left it; `key` and `flags` are those of the request that runs in the
    slot, 0 if none does."""

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
        """Add the id of a sequence that ended with its instance: further requests of the id are refused for that
        reason."""
        self._ids[correlation] = None
        if len(self._ids) > MAX_LOST:
            self._ids.popitem(last=False)

    def discard(self, correlation: int) -> None:
        """Remove an id, because a new sequence of this id begins."""
        self._ids.pop(correlation, None)


class SequenceError(InvalidArgumentError):
    """The refusal of a request that belongs to no sequence; the client gets the sentence of `reason`."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


class Sequence:
    """One sequence of requests; `instance` is None while the sequence is in the backlog."""

    __slots__ = (
        "began_ns", "correlation", "first_key", "has_begun", "idle_since_ns", "instance", "is_over", "is_running",
        "number", "requests", "slot",
    )  # fmt: skip

    def __init__(self, number: int, correlation: int, began_ns: int) -> None:
        self.number = number  # sequences are numbered as they begin
        self.correlation = correlation
        self.began_ns = began_ns  # of a sequence of a dead batcher: when the successor took the sequence over
        # Changed by the scheduler: the instance and its slot that the sequence has; whether one of its requests is
        # being executed; since when the sequence has had no request that waits or runs.
        self.instance: int | None = None
        self.slot = 0
        self.requests: deque[QueuedRequest] = deque()  # waiting ones
        self.is_running = False
        self.has_begun = False  # whether the instance has been given any request of the sequence
        self.first_key = 0  # key of the first request that the instance was given, until the request is given back
        self.is_over = False  # whether no further requests can join the sequence
        self.idle_since_ns = 0

    @property
    def slot_state(self) -> SlotState:
        """The state of the sequence's slot while further requests of the sequence may run."""
        return SlotState.ENDING if self.is_over else SlotState.LIVE

    def change(self, state: SlotState) -> SlotChange:
        """The slot's change to `state`, to be written to the slot table. The sequence must have a slot."""
        assert self.instance is not None, "it is in the backlog"
        return SlotChange(self.instance, self.slot, self.correlation, self.number, state)

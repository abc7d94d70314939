"""The contract of a scheduler: the methods by which the batcher uses the policy of one model.

Rules: a scheduler is given the time and reads no clock; it neither blocks nor logs, and knows nothing of tensors. Every
request that was added leaves exactly once: in a batch, cancelled, expired or drained. The batcher uses a scheduler by
its methods, never by its class, since a policy may have other schedulers in front of it (`forwarding.py`). Each model
has one scheduler. The batcher calls it after every burst of records:

    add and complete what came in · expire(now) · take(now) until None · sleep until next_deadline_ns() or a bell
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import HeldSlot, SlotChange
from shoal.reasons import Reason


class Sequences(Protocol):
    """The methods of a sequence batcher that other schedulers do not have."""

    #: Whether an execution ends with its last response; otherwise (decoupled models) it ends when the instance says so
    #: by READY.
    waits_for_answers: bool
    #: Whether the model may return requests to be executed once more.
    is_iterative: bool
    #: Slots with a new sequence or state, since the batcher last wrote them to the instances' slot tables.
    changes: list[SlotChange]

    def has(self, correlation: int) -> bool:
        """Whether a sequence of this id is open, or was the last to end with its instance."""
        ...

    def refused(self) -> list[tuple[int, Reason]]:
        """Keys of requests that will not be executed, and why; each is returned once."""
        ...

    def add_again(self, request: QueuedRequest) -> None:
        """Queue a request once more while it is being executed: as the next of its sequence, and without START."""
        ...

    def end(self, instance: int, key: int) -> None:
        """End the sequence of a request that an instance executes; requests that wait behind it are refused. No effect
        on a sequence that has ended."""
        ...

    def give_back(self, instance: int, request: QueuedRequest) -> None:
        """Queue a request again that an instance, which is about to be removed, had been given and had not begun."""
        ...

    def miss(self, instance: int, key: int) -> None:
        """End the sequence of a request that an instance had been given and will not execute, since it was cancelled
        before: the model has missed a part. Requests of the sequence that wait behind it are refused."""
        ...

    def restore(self, instance: int, held: Iterable[HeldSlot], now_ns: int) -> None:
        """Continue the sequences that an instance, which was just added, has from a dead batcher."""
        ...

    def lose(self, instance: int, held: Iterable[HeldSlot]) -> None:
        """Refuse further requests of sequences that an instance, which was just added, cannot continue."""
        ...

    def end_restoring(self) -> None:
        """Note that all requests which waited in a dead batcher's queues have been added again."""
        ...


class Scheduler:  # no ABC: it is compiled (tests/test_packaging.py)
    """The policy that decides which requests of a model run, when, and on which instance. `now_ns` (monotonic) never
    decreases."""

    __slots__ = ()

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of requests accepted and not yet given to an instance."""

    @abstractmethod
    def oldest_ns(self) -> int:
        """Arrival of the oldest pending request; 0 if there is none."""

    @abstractmethod
    def rows_before(self, request: QueuedRequest) -> int | None:
        """Rows that would be executed before this request's batch if the request came now; None if the wait depends
        on other requests."""

    @abstractmethod
    def add(self, request: QueuedRequest, now_ns: int) -> None:
        """Accept a request, or raise UnavailableError with Triton's sentence and change nothing."""

    @abstractmethod
    def add_first(self, request: QueuedRequest) -> None:
        """Accept again a request whose instance died: before all others, and in a batch of its own.

        The request runs alone, because it may have killed the instance.
        """

    @abstractmethod
    def take(self, now_ns: int) -> Batch | None:
        """The next batch, whose instance is busy from now on; None if no batch may run now. To be called until it
        returns None."""

    @abstractmethod
    def expire(self, now_ns: int) -> list[QueuedRequest]:
        """Remove and return the requests that have expired and are to be rejected. To be called before take()."""

    @abstractmethod
    def cancel(self, key: int) -> bool:
        """Remove a request that has no instance yet. False if the request is running, or unknown."""

    @abstractmethod
    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        """Note that an instance has executed a batch in `compute_ns`; no effect if the instance is idle or was
        removed."""

    @abstractmethod
    def next_deadline_ns(self) -> int | None:
        """When expire() and take() must be called again though no record arrives; None: only after one has arrived."""

    @abstractmethod
    def add_instance(self, instance: int, num_running: int = 0) -> None:
        """Add an instance, idle or with `num_running` executions that another scheduler gave it; no effect if the
        instance is known."""

    @abstractmethod
    def remove_instance(self, instance: int) -> None:
        """Give no more batches to an instance. The batcher deals with the instance's running executions."""

    @abstractmethod
    def drain(self) -> list[QueuedRequest]:
        """Remove and return all requests without an instance, oldest first: the model is gone."""

    # --- overridden by only some schedulers ---

    @property
    def rejects(self) -> bool:
        """Whether requests are refused that have waited for as long as the model's policy allows."""
        return False

    def expiry_ns(self, request: QueuedRequest) -> int:
        """When the model's policy would refuse the request for having waited too long; 0 = never."""
        return 0

    @property
    def batch_rows(self) -> int:
        """The most rows of a batch that several requests share; 0 if each request is executed alone."""
        return 0

    @property
    def heeds_deadlines(self) -> bool:
        """Whether requests leave the queue at their own `deadline_ns`."""
        return False

    @property
    def sequences(self) -> Sequences | None:
        """The sequence batcher; None if requests belong to no sequences."""
        return None

    def explain(self) -> dict[str, Any]:
        """How batches are formed, why the last batches had their sizes, and the learned figures, of types that msgpack
        packs."""
        return {"scheduler": "other", "reasons": [], "last_batches": []}

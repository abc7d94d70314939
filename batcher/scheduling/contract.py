"""The contract of a scheduler.

Rules: a scheduler is handed the time and reads no clock; nothing here blocks, logs or knows where a tensor lies.
Every request that was added leaves exactly once: in a batch, cancelled, expired or drained. What the batcher wants to
know of a scheduler is a method here, never its class: a policy may stand behind others (`forwarding.py`).
One scheduler a model; runs in the batcher, which calls it after every burst of records:

    add and complete what came in · expire(now) · take(now) until None · sleep until next_deadline_ns() or a bell
"""

from collections.abc import Iterable
from typing import Any, Protocol

from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import HeldSlot, SlotChange
from shoal.reasons import Reason


class Sequences(Protocol):
    """A sequence batcher, as far as it does more than other schedulers."""

    #: Whether an execution ends with its answers: else, of a decoupled model, when the instance says so.
    waits_for_answers: bool
    #: Whether the model may give requests back for one execution more.
    is_iterative: bool
    #: Slots that have got another sequence since the batcher last wrote them to the instance's slot table.
    changes: list[SlotChange]

    def refused(self) -> list[tuple[int, Reason]]:
        """The requests that will not be executed, and why; each is returned once."""
        ...

    def add_again(self, request: QueuedRequest) -> None:
        """Queue a request that is being executed for one execution more: next of its sequence, and without START."""
        ...

    def give_back(self, instance: int, request: QueuedRequest) -> None:
        """An instance is about to be removed that had been given a request and had not begun it."""
        ...

    def restore(self, instance: int, held: Iterable[HeldSlot], now_ns: int) -> None:
        """An instance has been added that has these sequences from a dead batcher, which another goes on with."""
        ...

    def lose(self, instance: int, held: Iterable[HeldSlot]) -> None:
        """An instance has been added whose sequences cannot go on: what follows of them is refused."""
        ...

    def end_restoring(self) -> None:
        """All requests that waited in a dead batcher have been added again."""
        ...


class Scheduler(Protocol):
    """Decides what runs, when, and on which instance. `now_ns` never goes back."""

    __slots__ = ()

    @property
    def pending(self) -> int:
        """Requests accepted and not yet handed to an instance."""
        ...

    def oldest_ns(self) -> int:
        """The arrival of the oldest of them; 0 where there is none."""
        ...

    def rows_before(self, request: QueuedRequest) -> int | None:
        """Rows that would be executed before the batch which this request would be in, if it came now; None where that
        says nothing of how long it waits."""
        ...

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        """Accepts a request, or raises UnavailableError with Triton's sentence and changes nothing."""
        ...

    def add_first(self, request: QueuedRequest) -> None:
        """Accepts a request again that an instance died with: before all others, and in a batch of its own.

        In a batch of its own, because it may be what killed the instance.
        """
        ...

    def take(self, now_ns: int) -> Batch | None:
        """The next batch, its instance busy from now on; None where nothing may run now. Call until None."""
        ...

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        """Removes and returns the requests that have expired and are to be rejected. Must come before take()."""
        ...

    def cancel(self, key: int) -> bool:
        """Whether the request still had no instance; then it is gone. False: it is running, or not ours."""
        ...

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        """The instance has executed a batch, in so long; no effect on one that is idle already or was removed."""
        ...

    def next_deadline_ns(self) -> int | None:
        """When expire() and take() must be called again though nothing arrives; None: not before something does."""
        ...

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        """A new instance, idle, or with executions that another scheduler gave it; no effect on one that is known."""
        ...

    def remove_instance(self, instance: int) -> None:
        """No more batches to it. What it was running is the batcher's business."""
        ...

    def drain(self) -> list[QueuedRequest]:
        """Removes and returns everything that has no instance yet, oldest first: the model is gone."""
        ...

    # --- what only some schedulers have an answer to ---

    @property
    def rejects(self) -> bool:
        """Whether some requests are refused once they have waited for as long as the model's policy says."""
        return False

    def expiry_ns(self, request: QueuedRequest) -> int:
        """When the request would be refused for having waited, by the model's policy; 0 = never."""
        return 0

    @property
    def heeds_deadlines(self) -> bool:
        """Whether requests leave the queue by their own `deadline_ns`."""
        return False

    @property
    def sequences(self) -> Sequences | None:
        """The sequence batcher that decides; None where requests belong to no sequences."""
        return None

    def explain(self) -> dict[str, Any]:
        """How batches are made, why the last ones had their size, and what was learned, as msgpack can carry it."""
        return {"scheduler": "other", "reasons": [], "last_batches": []}

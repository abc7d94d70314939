"""The contract of a scheduler, and which one a model gets.

Rules: a scheduler is handed the time and reads no clock; nothing here blocks, logs or knows where a tensor lies.
Every request that was added leaves exactly once: in a batch, cancelled, expired or drained.
One scheduler a model; runs in the batcher, which calls it after every burst of records:

    add and complete what came in · expire(now) · take(now) until None · sleep until next_deadline_ns() or a bell
"""

from typing import Any, Protocol

from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest

__all__ = ["Batch", "QueuedRequest", "Scheduler", "from_config"]


class Scheduler(Protocol):
    """Decides what runs, when, and on which instance. `now_ns` never goes back."""

    @property
    def pending(self) -> int:
        """Requests accepted and not yet handed to an instance."""
        ...

    def oldest_ns(self) -> int:
        """The arrival of the one of them that is served next, the oldest; 0 where there is none."""
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
        """Removes and returns the requests whose time in the queue is over."""
        ...

    def cancel(self, key: int) -> bool:
        """Whether the request still had no instance; then it is gone. False: it is running, or not ours."""
        ...

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        """The instance has executed a batch, in so long; no effect on one that is idle already or was removed."""
        ...

    def next_deadline_ns(self) -> int | None:
        """When take() must be called again though nothing arrives; None: not before something does."""
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


def from_config(config: dict[str, Any], max_total_queue: int) -> Scheduler:
    """The scheduler of a model, by its normalised configuration.

    `max_total_queue` bounds what this model may have waiting, whatever its configuration says.
    """
    if "dynamic_batching" in config:
        return DynamicBatchScheduler.from_config(config, max_total_queue)
    return DefaultScheduler(max_total_queue)

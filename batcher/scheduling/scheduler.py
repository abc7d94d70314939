"""The contract of a scheduler, and which one a model gets.

Rules: a scheduler is handed the time and reads no clock; nothing here blocks, logs or knows where a tensor lies.
Every request that was added leaves exactly once: in a batch, cancelled, expired or drained.
One scheduler a model; runs in the batcher, which calls it after every burst of records:

    add and complete what came in · expire(now) · take(now) until None · sleep until next_deadline_ns() or a bell
"""

from typing import Any, Protocol

from shoal.batcher.scheduling import sequence
from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler, PolicyBatchScheduler
from shoal.batcher.scheduling.goal import GoalBatchScheduler, GoalPolicyScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.policy_queue import PolicyQueue, QueuePolicy
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.model_config.latency_target import latency_target_ms

__all__ = ["Batch", "QueuedRequest", "Scheduler", "from_config"]


class Scheduler(Protocol):
    """Decides what runs, when, and on which instance. `now_ns` never goes back."""

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


def from_config(config: dict[str, Any], max_total_queue: int, default_target_ms: int = 0) -> Scheduler:
    """The scheduler of a model, by its normalised configuration.

    `max_total_queue` bounds what this model may have waiting, whatever its configuration says; `default_target_ms` is
    the latency target of models that batch and do not say how.
    """
    if "sequence_batching" in config:
        return sequence.from_config(config, max_total_queue)
    target_ms = latency_target_ms(config, default_target_ms)
    if "dynamic_batching" not in config and not target_ms:
        return DefaultScheduler(max_total_queue)
    batching = config.get("dynamic_batching", {})
    max_batch_size = int(config.get("max_batch_size", 0))
    preferred = tuple(map(int, batching.get("preferred_batch_size", ())))
    preferred = preferred or ((max_batch_size,) if max_batch_size > 0 else ())
    delay_ns = int(batching.get("max_queue_delay_microseconds", 0)) * 1000
    policy = QueuePolicy.from_config(batching.get("default_queue_policy", {}))
    if int(batching.get("priority_levels", 0)) > 0 or policy.default_timeout_ns > 0:
        queue = PolicyQueue.from_config(batching, max_total_queue)
        if target_ms:
            return GoalPolicyScheduler(max_batch_size, target_ms * 1_000_000, queue)
        return PolicyBatchScheduler(max_batch_size, preferred, delay_ns, queue)
    fifo = RequestQueue(policy.max_queue_size, max_total_queue)
    if target_ms:
        return GoalBatchScheduler(max_batch_size, target_ms * 1_000_000, fifo)
    # Triton's rule: where requests can be refused or may shorten a timeout, they stay queued until they can really run.
    prefetching = not (policy.max_queue_size or policy.allow_timeout_override)
    return DynamicBatchScheduler(max_batch_size, preferred, delay_ns, prefetching, fifo)

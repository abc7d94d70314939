"""The choice of a model's scheduler; `contract.py` defines schedulers."""

from typing import Any

from shoal.batcher.scheduling import sequence
from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler, PolicyBatchScheduler
from shoal.batcher.scheduling.goal import GoalBatchScheduler, GoalPolicyScheduler
from shoal.batcher.scheduling.lengths import LengthBatchScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.policy_queue import PolicyQueue, QueuePolicy
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.model_config.determinism import Mode, mode
from shoal.model_config.latency_target import latency_target_ms
from shoal.model_config.ragged_batching import lengths

__all__ = ["Batch", "QueuedRequest", "Scheduler", "from_config"]


def from_config(config: dict[str, Any], max_total_queue: int, default_target_ms: int = 0) -> Scheduler:
    """The scheduler for a model's normalised configuration.

    `max_total_queue` bounds the model's waiting requests, whatever its configuration says; `default_target_ms` is the
    latency target of models that batch and do not configure how.
    """
    if "sequence_batching" in config:
        return sequence.from_config(config, max_total_queue)
    is_alone = mode(config) is Mode.ALONE
    target_ms = 0 if is_alone else latency_target_ms(config, default_target_ms)
    if "dynamic_batching" not in config and not target_ms:
        return DefaultScheduler(max_total_queue)
    batching = config.get("dynamic_batching", {})
    max_batch_size = int(config.get("max_batch_size", 0))
    preferred = tuple(map(int, batching.get("preferred_batch_size", ())))
    preferred = preferred or ((max_batch_size,) if max_batch_size > 0 else ())
    delay_ns = int(batching.get("max_queue_delay_microseconds", 0)) * 1000
    if is_alone:  # no batch has room for a second request; a single request may have more rows than one
        max_batch_size, preferred, delay_ns = 1, (1,), 0
    policy = QueuePolicy.from_config(batching.get("default_queue_policy", {}))
    if int(batching.get("priority_levels", 0)) > 0 or policy.default_timeout_ns > 0:
        queue = PolicyQueue.from_config(batching, max_total_queue)
        if target_ms:
            return GoalPolicyScheduler(max_batch_size, target_ms * 1_000_000, queue)
        return PolicyBatchScheduler(max_batch_size, preferred, delay_ns, queue)
    if config.get("backend") == "torchserve" and max_batch_size <= 1 and not (delay_ns or target_ms):
        # The rule about prefetching below is Triton's. TorchServe's models get requests ahead whenever executions are
        # short.
        return DefaultScheduler(max_total_queue, policy.max_queue_size)
    fifo = RequestQueue(policy.max_queue_size, max_total_queue)
    by_length = lengths(config)
    if by_length is not None and not is_alone:
        return LengthBatchScheduler(max_batch_size, by_length, delay_ns, fifo)
    if target_ms:
        return GoalBatchScheduler(max_batch_size, target_ms * 1_000_000, fifo)
    # Triton's rule: if requests can be refused or may shorten a timeout, they stay queued until they can really run.
    prefetching = not (policy.max_queue_size or policy.allow_timeout_override)
    return DynamicBatchScheduler(max_batch_size, preferred, delay_ns, fifo, prefetching=prefetching)

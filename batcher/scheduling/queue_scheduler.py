"""A scheduler with one queue, from which the model's instances are given requests. Pure policy, runs in the batcher."""

from typing import Generic, TypeVar

from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.instances import Instances
from shoal.batcher.scheduling.policy_queue import PolicyQueue
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue

Queue = TypeVar("Queue", bound=RequestQueue | PolicyQueue)


class QueueScheduler(Scheduler, Generic[Queue]):
    """The queue and the instances of a scheduler. Subclasses decide which requests leave the queue, and when. See
    `Scheduler` for the contract of each method."""

    __slots__ = ("_instances", "_queue")

    def __init__(self, queue: Queue) -> None:
        # Changed by nearly every method of a scheduler.
        self._queue: Queue = queue
        self._instances = Instances()

    def oldest_ns(self) -> int:
        return self._queue.oldest_arrival_ns() if self._queue.rows else 0

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        return []  # no request expires without a queue policy: Triton ignores a request's own timeout then

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        self._instances.complete(instance, now_ns, compute_ns)

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        self._instances.add(instance, num_running)

    def remove_instance(self, instance: int) -> None:
        self._instances.remove(instance)

"""A scheduler with one queue, from which the instances of the model take. Pure policy, runs in the batcher."""

from typing import Generic, TypeVar

from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.instances import Instances
from shoal.batcher.scheduling.policy_queue import PolicyQueue
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue

Queue = TypeVar("Queue", bound=RequestQueue | PolicyQueue)


class QueueScheduler(Scheduler, Generic[Queue]):
    """The queue and the instances of a scheduler, which decides what is taken. See `Scheduler` for the contract of each
    method."""

    __slots__ = ("_instances", "_queue")

    def __init__(self, queue: Queue) -> None:
        # Nearly every method of a scheduler changes these two.
        self._queue: Queue = queue
        self._instances = Instances()

    def oldest_ns(self) -> int:
        return self._queue.oldest_arrival_ns() if self._queue.rows else 0

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        return []  # without a queue policy there is no timeout: Triton ignores that of the request here

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        self._instances.complete(instance, now_ns, compute_ns)

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        self._instances.add(instance, num_running)

    def remove_instance(self, instance: int) -> None:
        self._instances.remove(instance)

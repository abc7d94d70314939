"""The default scheduler, for models without `dynamic_batching`, and for models of TorchServe with batches of one.

Triton's rule: every request is its own payload and is executed alone, first come first served, by the next free
instance. Requests are never merged, even if max_batch_size > 1, and there is no queue policy; the queue is bounded by
the server's own limit and by TorchServe's jobQueueSize only. If executions are shorter than the hand-over of a request
to an instance, the instance gets a few requests ahead, as Triton's instances prefetch. Pure policy, runs in the
batcher.
"""

from typing import Any

from shoal.batcher.scheduling.payload import Batch, make_batch
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.batcher.scheduling.queue_scheduler import QueueScheduler


class DefaultScheduler(QueueScheduler[RequestQueue]):
    """First come, first served, one request at a time. See `Scheduler` for the contract of each method."""

    __slots__ = ()

    def __init__(self, max_total_queue: int, max_queue_size: int = 0) -> None:
        """`max_queue_size` bounds the model's waiting requests, beside `max_total_queue`; 0 = no such bound."""
        super().__init__(RequestQueue(max_queue_size, max_total_queue))

    @property
    def pending(self) -> int:
        return len(self._queue)

    def rows_before(self, request: QueuedRequest) -> int:
        return self._queue.rows

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        self._queue.add(request)

    def add_first(self, request: QueuedRequest) -> None:
        self._queue.add_first(request)  # runs alone, as every request does here

    def take(self, now_ns: int) -> Batch | None:
        if not self._queue.rows:
            return None
        instance = self._instances.take_or_work_ahead(now_ns)
        if instance is None:
            return None
        request = self._queue.popleft()
        return make_batch((instance, (request,), request.rows))

    def cancel(self, key: int) -> bool:
        return self._queue.cancel(key)

    def next_deadline_ns(self) -> int | None:
        return None  # only an arrival or a completion changes anything, and take() follows each

    def drain(self) -> list[QueuedRequest]:
        return self._queue.drain()

    def explain(self) -> dict[str, Any]:
        return {**super().explain(), "scheduler": "default"}

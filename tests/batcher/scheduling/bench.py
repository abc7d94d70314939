"""What the batcher does around a dynamic batch scheduler, for tests that tell its story by example.

Times are in ns of an invented clock; `D` is a queue delay of 100 us.
"""

from shoal.batcher.scheduling.scheduler import QueuedRequest, from_config

D_US = 100
D = 100_000


class Bench:
    """A scheduler with what the batcher does around it: numbers the requests, takes until None."""

    def __init__(
        self,
        preferred: tuple[int, ...] = (),
        delay_us: int = 0,
        num_instances: int = 1,
        max_batch_size: int = 8,
        max_total_queue: int = 100,
        policy: dict[str, object] | None = None,
        **batching: object,
    ) -> None:
        batching |= {"preferred_batch_size": list(preferred), "max_queue_delay_microseconds": delay_us}
        if policy is not None:
            batching["default_queue_policy"] = policy
        config = {"max_batch_size": max_batch_size, "dynamic_batching": batching}
        self.scheduler = from_config(config, max_total_queue)
        self.num_added = 0
        for instance in range(num_instances):
            self.scheduler.add_instance(instance)

    def add(self, *sizes: int, at: int = 0, shape_key: int = 0, priority: int = 0) -> None:
        """Adds requests of so many rows, numbered 0, 1, 2 … over the whole test."""
        for rows in sizes:
            self.scheduler.add(QueuedRequest(self.num_added, rows, shape_key, at, priority), at)
            self.num_added += 1

    def take(self, at: int = 0) -> list[list[int]]:
        """The request numbers of every batch that may run."""
        batches = list(iter(lambda: self.scheduler.take(at), None))
        for batch in batches:
            assert batch.rows == sum(request.rows for request in batch.requests)
        return [[request.key for request in batch.requests] for batch in batches]

    def trickle(self, *sizes: int, at: int = 0) -> list[list[int]]:
        """Adds requests one by one, the batcher awake after each."""
        batches: list[list[int]] = []
        for rows in sizes:
            self.add(rows, at=at)
            batches += self.take(at)
        return batches

    def complete(self, at: int = 0, instance: int = 0) -> list[list[int]]:
        """The instance becomes idle: what it and others get then."""
        self.scheduler.complete(instance, at, 10**9)
        return self.take(at)

    @property
    def deadline(self) -> int | None:
        return self.scheduler.next_deadline_ns()


def busy(**settings: object) -> Bench:
    """A bench whose one instance runs request 0."""
    bench = Bench(**settings)  # type: ignore[arg-type]  # passed through
    bench.add(1)
    assert bench.take(at=D) == [[0]]
    return bench

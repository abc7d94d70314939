"""Who makes way for others: workers and models that get nothing more, until nothing of theirs is left.

Lives in the batcher.
"""

from collections.abc import Iterable

from shoal.batcher.peers import Model, Worker
from shoal.messages.from_batcher import ModelRetired, WorkerRetired


class Retirement:
    """Each is reported once."""

    __slots__ = ("models", "workers")

    def __init__(self) -> None:
        # Changed by the exchange, and by reports.
        self.workers: set[Worker] = set()
        self.models: set[Model] = set()

    def reports(self, all_workers: Iterable[Worker], in_use: set[int]) -> list[ModelRetired | WorkerRetired]:
        """Of those that have nothing left; by now their last answers have been shown to clients.

        `in_use` are the models that a request on its way may still need, though nothing is queued or running there.
        """
        reports: list[ModelRetired | WorkerRetired] = []
        for worker in [each for each in self.workers if not each.missing]:
            self.workers.remove(worker)
            reports.append(WorkerRetired(worker.owner))
        busy = in_use | {worker.model.id for worker in all_workers if worker.missing}
        for model in [each for each in self.models if not each.scheduler.pending and each.id not in busy]:
            self.models.remove(model)
            reports.append(ModelRetired(model.id))
        return reports

"""Workers and models that get no more requests: the supervisor is sent a message once their last request has ended.

Lives in the batcher.
"""

from collections.abc import Iterable

from shoal.batcher.peers import ScheduledModel, WorkerPeer
from shoal.messages.from_batcher import ModelRetired, WorkerRetired


class Retirement:
    """The retiring workers and models; each is reported once."""

    __slots__ = ("models", "workers")

    def __init__(self) -> None:
        # Changed by the exchange, which adds what retires, and by `reports`, which removes what it reports.
        self.workers: set[WorkerPeer] = set()
        self.models: set[ScheduledModel] = set()

    def reports(self, all_workers: Iterable[WorkerPeer], in_use: set[int]) -> list[ModelRetired | WorkerRetired]:
        """Messages about the workers and models that have no request left, whose last answers have been published to
        clients.

        `in_use` are ids of models that an open request may still need, though no request is queued or running there.
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

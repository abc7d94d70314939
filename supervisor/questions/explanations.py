"""Explanations of a model's last batches: the batcher's reasons for their sizes, beside measurements of each size.

Runs in the supervisor, for `GET /v2/repository/models/NAME/batches` and `shoal explain`.
"""

from collections.abc import Callable
from typing import Any

from shoal.errors import UnavailableError
from shoal.messages.from_batcher import ModelExplained
from shoal.messages.to_batcher import ExplainModel
from shoal.shm.counters import RowView
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served_version import ServedVersion
from shoal.supervisor.questions.questions import Verb

#: An ensemble has no batches.
_ENSEMBLE = {"scheduler": "ensemble", "reasons": [], "last_batches": []}


class Explanations:
    """The verb `explain`. The batcher sends an explanation before it acknowledges the request for that."""

    def __init__(self, star: Star, models: Models, read_counters: Callable[[int], RowView]) -> None:
        self._star = star
        self._models = models
        self._read_counters = read_counters
        # Changed by receive and _explain: by the number of an open question, explanations by model id.
        self._explained: dict[int, dict[int, dict[str, Any]]] = {}
        self._num_asked = 0

    @property
    def verbs(self) -> dict[str, Verb]:
        """The verb by which front ends ask for an explanation."""
        return {"explain": self._explain}

    def receive(self, message: ModelExplained) -> None:
        """Note the batcher's explanation of one model version."""
        if (explained := self._explained.get(message.number)) is not None:
            explained[message.model_id] = message.explanation

    async def _explain(self, arguments: dict[str, Any]) -> dict[str, Any]:
        model, wanted = self._models.get(arguments["model"]), arguments["version"]
        versions = [model.serving[each] for each in sorted(model.serving) if wanted in (None, each)]
        asked = [each for each in versions if "ensemble_scheduling" not in each.version.config]
        self._num_asked = number = self._num_asked + 1
        messages = [ExplainModel(number, each.version.model_id) for each in asked]
        recipients = [recipient for message in messages for recipient in self._star.to_batcher(message)]
        explained_by_id = self._explained[number] = dict[int, dict[str, Any]]()
        try:
            await self._star.acknowledgements.announce(recipients)
        finally:
            del self._explained[number]
        if len(explained_by_id) < len(asked):
            raise UnavailableError("the batcher has been replaced meanwhile; ask again")
        explained = [
            {**self._measured(each), **explained_by_id.get(each.version.model_id, _ENSEMBLE)} for each in versions
        ]
        return {"model": model.identifier.name, "versions": explained}

    def _measured(self, served: ServedVersion) -> dict[str, Any]:
        version = served.version
        return {
            "version": str(version.version),
            "max_batch_size": version.config["max_batch_size"],
            "measured": [
                {
                    "rows": each.batch_size,
                    "batches": each.num_executions,
                    "ns": (each.compute_input_ns + each.compute_infer_ns + each.compute_output_ns)
                    // max(1, each.num_executions),
                }
                for each in self._read_counters(version.row).batches
            ],
        }

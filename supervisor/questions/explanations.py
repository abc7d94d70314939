"""Why a model's last batches had their size: the batcher is asked, and what was measured of each size is put beside it.

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

#: An ensemble has no batches of its own.
_ENSEMBLE = {"scheduler": "ensemble", "reasons": [], "last_batches": []}


class Explanations:
    """The verb of front ends. The batcher tells before it acknowledges that it was asked."""

    def __init__(self, star: Star, models: Models, read_counters: Callable[[int], RowView]) -> None:
        self._star = star
        self._models = models
        self._read_counters = read_counters
        # Changed by hear and _explain: by model id, what the batcher has told last.
        self._explained: dict[int, dict[str, Any]] = {}

    @property
    def verbs(self) -> dict[str, Verb]:
        """What front ends may ask."""
        return {"explain": self._explain}

    def receive(self, message: ModelExplained) -> None:
        """The batcher tells of one model version."""
        self._explained[message.model_id] = message.explanation

    async def _explain(self, arguments: dict[str, Any]) -> dict[str, Any]:
        model, number = self._models.get(arguments["model"]), arguments["version"]
        versions = [model.serving[each] for each in sorted(model.serving) if number in (None, each)]
        asked = [each for each in versions if "ensemble_scheduling" not in each.version.config]
        messages = [ExplainModel(each.version.model_id) for each in asked]
        recipients = [recipient for message in messages for recipient in self._star.to_batcher(message)]
        await self._star.acknowledgements.announce(recipients)
        explained_by_id = {each: self._explained.pop(each.version.model_id, None) for each in asked}
        if None in explained_by_id.values():
            raise UnavailableError("the batcher has been replaced meanwhile; ask again")
        explained = [{**self._measured(each), **(explained_by_id.get(each) or _ENSEMBLE)} for each in versions]
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

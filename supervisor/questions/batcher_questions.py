"""Questions that the batcher answers: why a model's last batches have their sizes, beside measurements of each size,
and the slowest and the failed requests of the last minutes.

Runs in the supervisor, for `GET /v2/repository/models/NAME/batches`, `shoal explain` and `GET /v2/debug/requests`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shoal.errors import UnavailableError
from shoal.messages.from_batcher import FinishedRequestsListed, ModelExplained
from shoal.messages.message import Message
from shoal.messages.to_batcher import ExplainModel, ListFinishedRequests
from shoal.shm.counters import RowView
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served_version import ServedVersion
from shoal.supervisor.questions.questions import Verb

#: The answer for an ensemble, which has no batches.
_ENSEMBLE = {"scheduler": "ensemble", "reasons": [], "last_batches": []}


class BatcherQuestions:
    """The verbs, and the open questions. The batcher sends its answers before it acknowledges a question."""

    def __init__(self, star: Star, models: Models, read_counters: Callable[[int], RowView]) -> None:
        self._star = star
        self._models = models
        self._read_counters = read_counters
        self.verbs: dict[str, Verb] = {"explain": self._explain, "finished_requests": self._list}
        # Changed by receive and _ask: by the number of an open question, the batcher's answers.
        self._answers: dict[int, list[Any]] = {}
        self._num_asked = 0

    def receive(self, message: ModelExplained | FinishedRequestsListed) -> None:
        """Note an answer of the batcher's."""
        if (answers := self._answers.get(message.number)) is not None:
            answers.append(message)

    async def _ask(self, ask: Callable[[int], Sequence[Message]]) -> list[Any]:
        """The batcher's answers to the messages that `ask` makes with the question's number, one to each. Raises
        UnavailableError where the batcher ends before."""
        self._num_asked = number = self._num_asked + 1
        messages = ask(number)
        answers = self._answers[number] = list[Any]()
        try:
            await self._star.acknowledgements.announce(self._star.to_batcher(*messages))
        finally:
            del self._answers[number]
        if len(answers) < len(messages):
            raise UnavailableError("the batcher has been replaced meanwhile; ask again")
        return answers

    async def _list(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = arguments["model"]
        models = [self._models.get(name)] if name else self._models.models.values()
        ids = [served.version.model_id for model in models for served in model.serving.values()]
        (found,) = await self._ask(lambda number: [ListFinishedRequests(number, ids, arguments["limit"])])
        return {"slowest": found.slowest, "failed": found.failed, "num_others_failed": found.num_others_failed}

    async def _explain(self, arguments: dict[str, Any]) -> dict[str, Any]:
        model, wanted = self._models.get(arguments["model"]), arguments["version"]
        versions = [model.serving[each] for each in sorted(model.serving) if wanted in (None, each)]
        asked = [each.version.model_id for each in versions if "ensemble_scheduling" not in each.version.config]
        answers = await self._ask(lambda number: [ExplainModel(number, each) for each in asked])
        explained = {each.model_id: each.explanation for each in answers}
        return {
            "model": model.identifier.name,
            "versions": [
                {**self._measured(each), **explained.get(each.version.model_id, _ENSEMBLE)} for each in versions
            ],
        }

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

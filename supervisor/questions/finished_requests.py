"""The question for the slowest and the failed requests of the last minutes, which the batcher keeps.

Runs in the supervisor, for `GET /v2/debug/requests`.
"""

from typing import Any

from shoal.errors import UnavailableError
from shoal.messages.from_batcher import FinishedRequestsListed
from shoal.messages.to_batcher import ListFinishedRequests
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.models import Models
from shoal.supervisor.questions.questions import Verb


class FinishedRequestsQuestion:
    """The verb `finished_requests`. The batcher sends its list before it acknowledges the request for that."""

    def __init__(self, star: Star, models: Models) -> None:
        self._star = star
        self._models = models
        # Changed by receive and _list: by the number of an open question, the batcher's list once it has come.
        self._listed: dict[int, FinishedRequestsListed | None] = {}
        self._num_asked = 0

    @property
    def verbs(self) -> dict[str, Verb]:
        """The verb by which front ends ask."""
        return {"finished_requests": self._list}

    def receive(self, message: FinishedRequestsListed) -> None:
        """Note the batcher's list."""
        if message.number in self._listed:
            self._listed[message.number] = message

    async def _list(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = arguments["model"]
        models = [self._models.get(name)] if name else self._models.models.values()
        ids = [served.version.model_id for model in models for served in model.serving.values()]
        self._num_asked = number = self._num_asked + 1
        recipients = self._star.to_batcher(ListFinishedRequests(number, ids, arguments["limit"]))
        self._listed[number] = None
        try:
            await self._star.acknowledgements.announce(recipients)
        finally:
            found = self._listed.pop(number)
        if found is None:
            raise UnavailableError("the batcher has been replaced meanwhile; ask again")
        return {"slowest": found.slowest, "failed": found.failed, "num_others_failed": found.num_others_failed}

"""What guests may ask: metadata, configuration, statistics, health. The answers are those of HTTP, by its own handlers.

What changes the server, as loading a model does, is for HTTP, which says who may. Runs in the supervisor.
"""

import json
from collections.abc import Callable
from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2 import health, metadata, statistics
from shoal.options import ServerOptions
from shoal.shm.counters import CounterTableView
from shoal.star.models import ModelTable
from shoal.supervisor.models.models import Models
from shoal.supervisor.questions.questions import Handler, Question


class GuestQuestions:
    """The verbs."""

    def __init__(
        self,
        options: ServerOptions,
        models: Models,
        read_counters: Callable[[], CounterTableView],
        asks_model: Handler,
    ) -> None:
        self._options = options
        self._models = models
        self._read_counters = read_counters
        self._asks_model = asks_model
        self.verbs: dict[str, Handler] = {
            "server_metadata": lambda question: question.answer(_read(metadata.server_metadata(self._state()))),
            "model_metadata": lambda question: question.answer(
                _read(metadata.model_metadata(self._state(), *_version_of(question)))
            ),
            "statistics": self._statistics,
            "ready": lambda question: question.answer(health.ready(self._state()).status == 200),
            "is_ready": self._is_ready,
        }

    def _statistics(self, question: Question) -> None:
        state = self._state()
        name, version = _version_of(question)
        answer = statistics.model_statistics(state, name, version) if name else statistics.all_statistics(state)
        question.answer(_read(answer))

    def _is_ready(self, question: Question) -> None:
        entry = self._state().models.lookup(*_version_of(question))
        if entry.ready and entry.has_ready_check:
            self._asks_model(Question(question.asker, question.number, {"model": entry.model_id}))
        else:
            question.answer(entry.ready)

    def _state(self) -> ServerState:
        """What a front end knows now."""
        models = ModelTable(namespacing=self._options.model_namespacing)
        for message in self._models.messages():
            models.apply(message)
        return ServerState(
            server_id=self._options.id,
            strict_readiness=self._options.strict_readiness,
            started=True,
            models=models,
            counters=self._read_counters(),
        )


def _version_of(question: Question) -> tuple[str, str | None]:
    """The model and the version that are asked about; raises InvalidArgumentError for what is no name."""
    name, version = question.arguments.get("model", ""), question.arguments.get("version", "")
    if type(name) is not str or type(version) is not str:
        raise InvalidArgumentError("a model's name and version must be text")
    return name, version or None


def _read(response: Response) -> Any:
    return json.loads(b"".join(response.chunks))

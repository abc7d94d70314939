"""Questions that guests may ask: metadata, statistics, health. The answers are those of HTTP and gRPC.

Guests cannot change the server (load a model, …): that needs HTTP or gRPC, which check access rights. Runs in the
supervisor.
"""

from collections.abc import Callable
from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.options import ServerOptions
from shoal.shm.counters import CounterTableView
from shoal.star.known_server import KnownServer, collect, describe_model, describe_server, is_server_ready
from shoal.star.models import ModelTable
from shoal.supervisor.models.models import Models
from shoal.supervisor.questions.questions import Verb


class GuestQuestions:
    """The verbs that guests may use."""

    def __init__(
        self,
        options: ServerOptions,
        models: Models,
        read_counters: Callable[[], CounterTableView],
        ask_model: Verb,
    ) -> None:
        self._options = options
        self._models = models
        self._read_counters = read_counters
        self._ask_model = ask_model
        self.verbs: dict[str, Verb] = {
            "server_metadata": self._server_metadata,
            "model_metadata": self._model_metadata,
            "statistics": self._statistics,
            "ready": self._ready,
            "is_ready": self._is_ready,
        }

    async def _server_metadata(self, _arguments: dict[str, Any]) -> Any:
        return describe_server(self._server())

    async def _model_metadata(self, arguments: dict[str, Any]) -> Any:
        return describe_model(self._server(), *_version_of(arguments))

    async def _statistics(self, arguments: dict[str, Any]) -> Any:
        name, version = _version_of(arguments)
        return collect(self._server(), name, version if name else None)

    async def _ready(self, _arguments: dict[str, Any]) -> bool:
        return is_server_ready(self._server())

    async def _is_ready(self, arguments: dict[str, Any]) -> Any:
        entry = self._server().models.lookup(*_version_of(arguments))
        if entry.ready and entry.has_ready_check:
            return await self._ask_model({"model": entry.model_id})
        return entry.ready

    def _server(self) -> KnownServer:
        """The server's state, built from the messages that front ends are sent."""
        models = ModelTable(namespacing=self._options.model_namespacing)
        for message in self._models.messages():
            models.apply(message)
        return KnownServer(
            server_id=self._options.id,
            strict_readiness=self._options.strict_readiness,
            started=True,
            models=models,
            counters=self._read_counters(),
        )


def _version_of(arguments: dict[str, Any]) -> tuple[str, str | None]:
    """The model and the version that a question names; raises InvalidArgumentError if either is no text."""
    name, version = arguments.get("model", ""), arguments.get("version", "")
    if type(name) is not str or type(version) is not str:
        raise InvalidArgumentError("a model's name and version must be text")
    return name, version or None

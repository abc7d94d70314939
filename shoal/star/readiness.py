"""Liveness and readiness of the server, and readiness of a model version: by the table of models, and by the model
itself where it has a readiness method.

Used by front-end processes, by the supervisor for guests, and by workers whose models call others.
"""

from shoal.errors import ShoalError, UnavailableError
from shoal.star.known_server import KnownServer
from shoal.star.models import ModelEntry
from shoal.star.questions import Ask


def is_ready(entry: ModelEntry, ask: Ask) -> bool:
    """Whether an instance is up and, for a model with a readiness method, all instances return true.

    Only the method needs a question to the supervisor, which may wait seconds for busy models. Raises ShoalError.
    """
    return entry.ready and (not entry.has_ready_check or bool(ask("is_ready", {"model": entry.model_id})))


def is_live(server: KnownServer) -> bool:
    """Whether the server has started and read its repositories. Raises UnavailableError while it stops."""
    _refuse_while_exiting(server)
    return server.started and server.has_repositories


def is_server_ready(server: KnownServer) -> bool:
    """Whether the server has started and, under strict readiness, all models can answer. Raises like `is_live`."""
    return is_live(server) and (
        not server.strict_readiness or all(is_settled(each) for each in server.models.entries())
    )


def is_model_ready(server: KnownServer, ask: Ask, name: str, version: str | None) -> bool:
    """Whether this version, or the model's default version, is ready. Raises ShoalError."""
    server.require_ready()
    return is_ready(server.models.lookup(name, version), ask)


def asks_model(server: KnownServer, name: str, version: str | None) -> bool:
    """Whether `is_model_ready` calls the model's readiness method."""
    try:
        return server.models.lookup(name, version).has_ready_check
    except ShoalError:
        return False


def is_settled(entry: ModelEntry) -> bool:
    """Whether a version does not keep the server from being ready, by Triton's rules."""
    # Triton's readiness does not cover a model whose configuration it could not accept.
    if not entry.is_polled:
        return True
    if entry.state == "READY":
        return entry.ready
    # Unlike Triton's, the server is ready while a version drains: otherwise a probe would take a server out of service
    # because a model has just got a newer version.
    if entry.state == "UNLOADING":
        return True
    return entry.state == "UNAVAILABLE" and entry.reason == "unloaded"


def _refuse_while_exiting(server: KnownServer) -> None:
    if server.exiting:
        raise UnavailableError("Server exiting")

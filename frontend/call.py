"""A request as its handler gets it, and the kinds of handlers: those that wait, and those that change the server.
Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.frontend.header_forwarding import NOTHING, Forwarded
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport


class HandlerCall(NamedTuple):
    """One request for its handler. Header names are in lower case; `name` is "" if the path has none."""

    state: ServerState
    transport: "Transport | None"  # None on a lane, which submits requests itself
    headers: Mapping[str, str]
    body: memoryview
    name: str
    version: str | None
    query: str
    forwarded: Forwarded = NOTHING
    head: bytes = b""  # as it came, up to the empty line or further; b"" on servers that do not keep it

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor a question (see Transport). For handlers marked as blocking. Raises ShoalError if the
        supervisor refuses or does not answer in time."""
        assert self.transport is not None, "a lane hands over what asks"
        return self.transport.ask(verb, arguments, timeout_s)


#: A function that asks the supervisor for a change that every front end must acknowledge: of verb, arguments and the
#: seconds that the answer may take.
Ask = Callable[[str, dict[str, Any], float], Any]
#: Seconds that such a change may take: every front end, and the batcher or the tracer, apply it in a moment, and a
#: process that takes longer hangs (ours).
ANSWER_S = 10.0
Handler = Callable[[HandlerCall], Response]
#: Handlers that wait in a way that only the road can, and handlers that change the server.
BLOCKING: set[Handler] = set()
ADMINISTRATIVE: set[Handler] = set()


def blocking(handler: Handler) -> Handler:
    """Mark a handler that waits, for the supervisor or for a model: a lane hands its requests over to the road."""
    BLOCKING.add(handler)
    return handler


def administrative(handler: Handler) -> Handler:
    """Mark a handler that changes the server (models, settings, regions): not open to every caller (local_callers.py).
    The road answers it, which knows the caller's address."""
    ADMINISTRATIVE.add(handler)
    return blocking(handler)


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its methods, and the group by which access to it can be restricted."""

    pattern: str
    methods: dict[str, Handler]
    group: str

"""A request on its way to its handler, and what is known of handlers: whether they wait, and who may ask them. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.frontend.header_forwarding import NOTHING, Forwarded
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport


class Call(NamedTuple):
    """One request on its way to its handler. Header names are in lower case; `name` is "" where a path has none."""

    state: ServerState
    transport: "Transport | None"  # None where inference is not answered through here: the lane has its own way
    headers: Mapping[str, str]
    body: memoryview
    name: str
    version: str | None
    query: str
    forwarded: Forwarded = NOTHING

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor, see Transport. For handlers marked as blocking."""
        assert self.transport is not None, "a lane hands over what asks"
        return self.transport.ask(verb, arguments, timeout_s)


#: How handlers ask what every front end must have heard of: a verb, its arguments and how long the answer may take.
Ask = Callable[[str, dict[str, Any], float], Any]
#: A change takes every front end, and the batcher or the tracer, a moment; whoever takes longer hangs (ours).
ANSWER_S = 10.0
Handler = Callable[[Call], Response]
#: Handlers that wait in a way that only the road can, and those that change what is served.
BLOCKING: set[Handler] = set()
ADMINISTRATIVE: set[Handler] = set()


def blocking(handler: Handler) -> Handler:
    """Mark a handler that waits, for the supervisor or for a model: a lane hands its requests over."""
    BLOCKING.add(handler)
    return handler


def administrative(handler: Handler) -> Handler:
    """Mark a handler that asks the supervisor to change what is served: not for everybody (local_callers.py)."""
    ADMINISTRATIVE.add(handler)
    return blocking(handler)


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its methods, and the group by which access to it can be restricted."""

    pattern: str
    methods: dict[str, Handler]
    group: str

"""The interface of handlers: the request that a handler receives, handlers that block, and their routes. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.errors import ShoalError
from shoal.frontend.header_forwarding import NOTHING, Forwarded
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport


class HandlerCall(NamedTuple):
    """A request, as its handler receives it. Header names are in lower case; `name` is "" if the path has none."""

    state: ServerState
    transport: "Transport | None"  # None on a lane, which submits requests to models itself
    headers: Mapping[str, str]
    body: memoryview
    name: str
    version: str | None
    query: str
    forwarded: Forwarded = NOTHING
    head: bytes = b""  # as received, up to the empty line or further; b"" if the server does not keep it

    @property
    def road(self) -> "Transport":
        """The transport, for handlers that wait, which only the road runs."""
        assert self.transport is not None, "a lane submits in its own way, or hands over what waits"
        return self.transport

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor a question (see Transport). For handlers marked as blocking. Raises ShoalError if the
        supervisor refuses or does not answer in time."""
        return self.road.ask(verb, arguments, timeout_s)


#: A function that asks the supervisor for a change that every front end must acknowledge. It takes the verb, its
#: arguments, and the seconds that the answer may take.
Ask = Callable[[str, dict[str, Any], float], Any]
#: Seconds that the supervisor's answer to an `Ask` may take (ours): front ends, batcher and tracer apply the change at
#: once unless they hang.
ANSWER_S = 10.0
Handler = Callable[[HandlerCall], Response]
#: A function that makes the response for an error.
Refuse = Callable[[ShoalError], Response]
#: Handlers that block, and so run only on the road.
BLOCKING: set[Handler] = set()


def blocking(handler: Handler) -> Handler:
    """Mark a handler that waits for the supervisor or for a model: a lane hands its requests over to the road."""
    BLOCKING.add(handler)
    return handler


#: Parts of a route's pattern: an optional part, a named part, and any other.
_OPTIONAL = re.compile(r"\(\?:(?:[^()]|\([^()]*\))*\)\?|/\?")
_NAMED, _OTHER = re.compile(r"\(\?P<(\w+)>[^()]*\)"), re.compile(r"\[\^/\]\+")


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its methods, and the group by which access to it can be restricted."""

    pattern: str
    methods: dict[str, Handler]
    group: str
    refuse: Refuse | None = None  # makes responses for errors; None: the endpoint's own function does
    checks_model: bool = False  # the handler checks if the client may use the model, which the path does not name

    @property
    def path(self) -> str:
        """The pattern in OpenAPI's notation, without optional parts: `/v2/models/{name}/infer`. The table of scopes
        uses it (access/doors.py)."""
        readable = _OTHER.sub("{}", _NAMED.sub(r"{\1}", _OPTIONAL.sub("", self.pattern)))
        return readable.replace("\\.", ".")

    @property
    def names_model(self) -> bool:
        """Whether the name in the path is that of a model, not of a shared-memory region or a file."""
        return self.group not in ("shared-memory", "page")

"""The handler for a method and a path at an endpoint, or the error for a request without a handler.

The order of the checks is: path (404), restriction (403), method (405), then the handler's: model and version first,
the body last. Pure: the road, the lane and the tests use the same functions. Paths are matched before they are decoded,
so an escaped slash never splits a name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import InvalidArgumentError, PermissionDeniedError, ShoalError
from shoal.frontend.access.doors import Scope, missing, scopes_of
from shoal.frontend.call import BLOCKING, Handler, HandlerCall, Refuse, Route
from shoal.frontend.generation import PLANNERS
from shoal.frontend.header_forwarding import NOTHING, Forwarded
from shoal.frontend.model_name import decode_name
from shoal.frontend.openai.errors import unrouted
from shoal.frontend.response import Response, error_json, error_response, not_allowed
from shoal.frontend.road.inference import infer
from shoal.frontend.routes import ROUTES, SMALL_BODIES
from shoal.frontend.state import ServerState
from shoal.frontend.v2.compression import UnsupportedEncodingError
from shoal.frontend.v2.health import model_ready
from shoal.star.known_server import asks_model

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport


class RouteMatch(NamedTuple):
    """The handler for a request's method and target, and the model that the target names."""

    handler: Handler
    name: str
    version: str | None
    query: str
    scope: Scope = Scope.ADMIN  # the right that the client needs
    #: The model for which the client needs the scope; "" for all models, None where the handler checks the model.
    model: str | None = ""
    refuse: Refuse | None = None  # makes the response for an error; None: the endpoint's

    @property
    def is_inference(self) -> bool:
        """Whether the handler is that of POST …/infer; a lane submits such a request without calling the handler."""
        return self.handler is infer

    @property
    def is_generation(self) -> bool:
        """Whether the handler has a planner, so that a lane submits such a request without calling the handler."""
        return self.handler in PLANNERS

    @property
    def is_blocking(self) -> bool:
        """Whether only the road may call the handler, because it may wait or needs the scope ADMIN."""
        return self.handler in BLOCKING or self.scope is Scope.ADMIN

    @property
    def has_small_body(self) -> bool:
        """Whether the request is neither an inference nor a load, so that its body is bounded by
        --max-control-bytes."""
        return self.handler in SMALL_BODIES

    def asks_model(self, state: ServerState) -> bool:
        """Whether the request asks if a model is ready whose own is_ready decides that (see model_ready): then the
        handler waits, and only the road may call it."""
        return self.handler is model_ready and asks_model(state, self.name, self.version)


#: Finds a request's handler, or its refusal, before a byte of its body is read: from the state, its method, its
#: target as it stands in the request line, and its headers with names in lower case.
Admit = Callable[[ServerState, str, str, Mapping[str, str]], RouteMatch | Response]


def _unrouted(path: str, methods: Sequence[str]) -> Response:
    if path.startswith("/v1/"):
        return unrouted(path, methods)
    return not_allowed(methods) if methods else error_json(404, "Not Found")


class Router:
    """The routes of one endpoint; access/doors.py has the scope that each route of this `api` needs.

    `unrouted` makes the refusal of a request that no route takes, from its path and the path's methods, an empty
    sequence if the API lacks the path. `refuse` makes the refusal of a name that no model can have. With
    `ignores_last_slashes` a path that no route takes is looked up once more without the slashes at its end.
    """

    def __init__(
        self,
        api: str,
        routes: Sequence[Route],
        unrouted: Callable[[str, Sequence[str]], Response],
        refuse: Callable[[ShoalError], Response] = error_response,
        *,
        ignores_last_slashes: bool = False,
    ) -> None:
        self._unrouted = unrouted
        self._refuse = refuse
        self._ignores_last_slashes = ignores_last_slashes
        self._scopes = {each.pattern: scopes_of(api, each.path, each.methods) for each in routes}
        self._fixed = {route.pattern: route for route in routes if re.fullmatch("[a-z0-9/]+", route.pattern)}
        self._variable = tuple((_compiled(each.pattern), each) for each in routes if each.pattern not in self._fixed)

    def admit(self, state: ServerState, method: str, target: str, headers: Mapping[str, str]) -> RouteMatch | Response:
        """The handler for a request, or its refusal (see Admit)."""
        return self.restricted(state, path_of(target), headers) or self.resolve(method, target)

    def restricted(self, state: ServerState, raw_path: str, headers: Mapping[str, str]) -> Response | None:
        """The refusal of a request that lacks the header its path needs, or None; checked before the method, as in
        Triton."""
        if not state.restrictions:
            return None
        matched = self._match(raw_path)
        if matched is None or not (name := missing(state.restrictions, matched[0].group, headers)):
            return None
        error = PermissionDeniedError(f"This API is restricted, expecting header '{name}'")
        return (matched[0].refuse or error_response)(error)

    def group_of(self, target: str) -> str:
        """The group of the route that a target matches; "" if no route matches."""
        matched = self._match(path_of(target))
        return "" if matched is None else matched[0].group

    def resolve(self, method: str, target: str) -> RouteMatch | Response:
        """The handler for a request that is not restricted, or its refusal; `target` is as it stands in the request
        line.

        HEAD has the handler of GET (RFC 9110, section 9.3.2); the sender of the response leaves the body out.
        """
        path = path_of(target)
        matched = self._match(path)
        if matched is None:
            return self._unrouted(path, ())
        route, name, version = matched
        method = "GET" if method == "HEAD" else method
        handler = route.methods.get(method)
        if handler is None:
            return self._unrouted(path, tuple(route.methods))
        try:
            decoded = decode_name(name)
        except InvalidArgumentError as error:
            return (route.refuse or self._refuse)(error)
        scope = self._scopes[route.pattern][method]
        model = None if route.checks_model else decoded if route.names_model else ""
        return RouteMatch(handler, decoded, version, target.partition("?")[2], scope, model, route.refuse)

    def _match(self, raw_path: str) -> tuple[Route, str, str | None] | None:
        route = self._fixed.get(raw_path)
        if route is not None:
            return route, "", None
        for pattern, route in self._variable:
            match = pattern.fullmatch(raw_path)
            if match is not None:
                return route, match["name"] or "", match["version"]
        if self._ignores_last_slashes and raw_path.endswith("/"):
            return self._match(raw_path.rstrip("/"))
        return None


def answer(
    found: RouteMatch,
    state: ServerState,
    transport: "Transport | None",
    headers: Mapping[str, str],
    body: memoryview,
    forwarded: Forwarded = NOTHING,
    head: bytes = b"",
    refuse: Callable[[ShoalError], Response] = error_response,
) -> Response:
    """Run the handler of a request; `refuse` makes the response for a ShoalError."""
    try:
        return found.handler(
            HandlerCall(state, transport, headers, body, found.name, found.version, found.query, forwarded, head)
        )
    except UnsupportedEncodingError as error:
        return error_response(error, error.headers)
    except ShoalError as error:
        return (found.refuse or refuse)(error)


def path_of(target: str) -> str:
    """The path in a request target as it stands in the request line: without query, scheme and authority."""
    path = target.partition("?")[0]
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[3] if path.count("/") > 2 else "/"
    return path


def _compiled(pattern: str) -> re.Pattern[str]:
    # Every pattern gets both groups, so that `match["name"]` and `match["version"]` always exist.
    missing = [group for group in ("(?P<name>", "(?P<version>") if group not in pattern]
    return re.compile(pattern + "".join(f"{group})?" for group in missing))


#: Triton's HTTP API, and OpenAI's below /v1.
HTTP = Router("http", ROUTES, _unrouted)

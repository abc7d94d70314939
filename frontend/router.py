"""Which handler answers which path: one table, and the order in which a request is refused.

Path, then restriction, then method (404, 403, 405), then the handler's own order: model and version first, the body
last. Pure: the road, the lane and the tests go through the same steps. Paths are matched as they came, so an escaped
slash never splits a name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from shoal.errors import InvalidArgumentError, ShoalError, UnsupportedError
from shoal.frontend.header_forwarding import NOTHING, Forwarded
from shoal.frontend.response import Response, error_json, error_response
from shoal.frontend.restrictions import refusal
from shoal.frontend.state import ServerState
from shoal.frontend.v2.compression import UnsupportedEncodingError, compress, decompress
from shoal.frontend.v2.generate import generate, generate_stream
from shoal.frontend.v2.generate import prepare as prepare_generate
from shoal.frontend.v2.health import live, model_ready, ready, reasons
from shoal.frontend.v2.infer import PreparedRequest, prepare, render
from shoal.frontend.v2.log_settings import change_log_settings, log_settings
from shoal.frontend.v2.metadata import model_metadata, server_metadata
from shoal.frontend.v2.model_configuration import model_config
from shoal.frontend.v2.statistics import all_statistics, model_statistics

if TYPE_CHECKING:
    from shoal.frontend.transport import Transport

#: A model is a directory, and that is as long as a file name can be.
MAX_NAME_BYTES = 255
_CONTROL = re.compile("[\x00-\x1f\x7f]")


class Call(NamedTuple):
    """One request on its way to its handler. Header names are in lower case; `name` is "" where a path has none."""

    state: ServerState
    transport: "Transport | None"  # None where inference is not answered through here: the lane has its own way
    headers: Mapping[str, str]
    body: memoryview
    name: str
    version: str | None
    forwarded: Forwarded = NOTHING


Handler = Callable[[Call], Response]
_BLOCKING: set[Handler] = set()


def blocking(handler: Handler) -> Handler:
    """Mark a handler that waits, for the supervisor or for a model: a lane hands its requests over."""
    _BLOCKING.add(handler)
    return handler


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its methods, and the group by which access to it can be restricted."""

    pattern: str
    methods: dict[str, Handler]
    group: str


class Found(NamedTuple):
    """What a path and a method mean."""

    handler: Handler
    name: str
    version: str | None

    @property
    def is_inference(self) -> bool:
        """Whether it waits for a model, which a lane does in its own way."""
        return self.handler is _infer

    @property
    def is_blocking(self) -> bool:
        """Whether it waits in a way that only the road can."""
        return self.handler in _BLOCKING


def dispatch(
    state: ServerState,
    transport: "Transport",
    method: str,
    raw_path: str,
    headers: Mapping[str, str],
    body: memoryview,
) -> Response:
    """Answer one request. `raw_path` is as it came, without its query; whoever sends the response calls its `close`."""
    found = restricted(state, raw_path, headers) or resolve(method, raw_path)
    return found if isinstance(found, Response) else answer(found, state, transport, headers, body)


def restricted(state: ServerState, raw_path: str, headers: Mapping[str, str]) -> Response | None:
    """The refusal of a request that lacks the header its path needs; before its method is looked at, as in Triton."""
    if not state.restrictions:
        return None
    matched = _match(raw_path)
    return None if matched is None else refusal(state.restrictions, matched[0].group, headers)


def resolve(method: str, raw_path: str) -> Found | Response:
    """The handler for a request, or its refusal: known before a byte of the body is read."""
    matched = _match(raw_path)
    if matched is None:
        return error_json(404, "Not Found")
    route, name, version = matched
    handler = route.methods.get(method)
    if handler is None:
        return error_json(405, "Method Not Allowed", (("Allow", ", ".join(route.methods)),))
    try:
        return Found(handler, decode_name(name), version)
    except InvalidArgumentError as error:
        return error_response(error)


def _match(raw_path: str) -> tuple[Route, str, str | None] | None:
    route = _FIXED.get(raw_path)
    if route is not None:
        return route, "", None
    for pattern, route in _VARIABLE:
        match = pattern.fullmatch(raw_path)
        if match is not None:
            return route, match["name"] or "", match["version"]
    return None


def answer(
    found: Found,
    state: ServerState,
    transport: "Transport | None",
    headers: Mapping[str, str],
    body: memoryview,
    forwarded: Forwarded = NOTHING,
) -> Response:
    """Run the handler; what it raises for the client becomes the error response."""
    try:
        return found.handler(Call(state, transport, headers, body, found.name, found.version, forwarded))
    except UnsupportedEncodingError as error:
        return error_response(error, error.headers)
    except ShoalError as error:
        return error_response(error)


def path_of(target: str) -> str:
    """The path of a request target as it stands in the request line: no query, no scheme and authority."""
    path = target.partition("?")[0]
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[3] if path.count("/") > 2 else "/"
    return path


def decode_name(raw: str) -> str:
    """A name in a path, percent-decoded once. Raises InvalidArgumentError for what can be no model's directory."""
    if raw.isalnum() and raw.isascii() and len(raw) <= MAX_NAME_BYTES:
        return raw
    decoded = unquote_to_bytes(raw.encode("latin-1", "replace"))  # servers hand over the path as latin-1
    name = decoded.decode("utf-8", "replace")
    if name in {".", ".."} or "/" in name:
        raise InvalidArgumentError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    if len(decoded) > MAX_NAME_BYTES or "\ufffd" in name or _CONTROL.search(name):
        raise InvalidArgumentError(
            f"invalid model name '{raw[:80]}' in the path ({len(decoded)} bytes): expected at most {MAX_NAME_BYTES} "
            "bytes of percent-encoded UTF-8 without control characters. Ask for the model by its directory's name"
        )
    return name


def _infer(call: Call) -> Response:
    state, headers = call.state, call.headers
    entry = state.models.lookup(call.name, call.version)
    if entry.is_decoupled:
        raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
    body = decompress(headers, call.body, state.http_max_input_size)
    prepared = prepare(entry, headers, body, state.http_max_input_size, call.forwarded)
    assert call.transport is not None, "the lane submits without waiting"
    reply = call.transport.infer(prepared)
    try:
        response = render(prepared, reply.response, reply.block)
        return compress(response._replace(close=reply.release), headers.get("accept-encoding", ""))
    except BaseException:
        reply.release()
        raise


def _generating(answer: "Callable[[PreparedRequest, Transport], Response]") -> Handler:
    def handle(call: Call) -> Response:
        state = call.state
        entry = state.models.lookup(call.name, call.version)
        prepared = prepare_generate(entry, call.headers, call.body, state.http_max_input_size, call.forwarded)
        assert call.transport is not None, "a lane hands it over"
        return answer(prepared, call.transport)

    return blocking(handle)


@blocking
def _change_log_settings(call: Call) -> Response:
    assert call.transport is not None, "a lane hands it over"
    return change_log_settings(call.state, call.transport, call.body)


def _later(endpoint: str) -> Handler:
    def refuse(_call: Call) -> Response:
        raise UnsupportedError(f"{endpoint} is not available in this version of Shoal")

    return refuse


_MODEL = "/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = "/v2/repository(?:/[^/]+)?"
_SYSTEM_MEMORY = "/v2/systemsharedmemory(?:/region/[^/]+)?"
_CUDA_MEMORY = "/v2/cudasharedmemory(?:/region/[^/]+)?"
_TRACE = {"GET": _later("the trace setting endpoint"), "POST": _later("the trace setting endpoint")}

#: In the order they are tried: the path that is asked for most stands first, `/v2/models/stats` before any model.
ROUTES = (
    Route("/v2/health/live", {"GET": lambda call: live(call.state)}, "health"),
    Route("/v2/health/ready", {"GET": lambda call: ready(call.state)}, "health"),
    Route("/v2/health/reasons", {"GET": lambda call: reasons(call.state)}, "health"),  # ours
    Route("/v2", {"GET": lambda call: server_metadata(call.state)}, "metadata"),
    Route("/v2/models/stats", {"GET": lambda call: all_statistics(call.state)}, "statistics"),
    Route("/v2/trace/setting", _TRACE, "trace"),
    Route("/v2/logging", {"GET": lambda call: log_settings(call.state), "POST": _change_log_settings}, "logging"),
    Route(_MODEL + "/infer", {"POST": _infer}, "inference"),
    Route(_MODEL + "/ready", {"GET": lambda call: model_ready(call.state, call.name, call.version)}, "health"),
    Route(_MODEL, {"GET": lambda call: model_metadata(call.state, call.name, call.version)}, "metadata"),
    Route(_MODEL + "/config", {"GET": lambda call: model_config(call.state, call.name, call.version)}, "model-config"),
    Route(_MODEL + "/stats", {"GET": lambda call: model_statistics(call.state, call.name, call.version)}, "statistics"),
    Route(_MODEL + "/generate", {"POST": _generating(generate)}, "inference"),
    Route(_MODEL + "/generate_stream", {"POST": _generating(generate_stream)}, "inference"),
    Route("/v2/models/(?P<name>[^/]+)(?P<version>)/trace/setting", _TRACE, "trace"),
    Route(_REPOSITORY + "/index", {"POST": _later("the repository index")}, "model-repository"),
    Route(
        _REPOSITORY + "/models/[^/]+/load",
        {"POST": _later("loading a model through the repository endpoint")},
        "model-repository",
    ),
    Route(
        _REPOSITORY + "/models/[^/]+/unload",
        {"POST": _later("unloading a model through the repository endpoint")},
        "model-repository",
    ),
    Route(_SYSTEM_MEMORY + "/status", {"GET": _later("system shared memory status")}, "shared-memory"),
    Route(
        _SYSTEM_MEMORY + "/(?:register|unregister)",
        {"POST": _later("system shared memory registration")},
        "shared-memory",
    ),
    Route(_CUDA_MEMORY + "/status", {"GET": _later("CUDA shared memory status")}, "shared-memory"),
    Route(
        _CUDA_MEMORY + "/(?:register|unregister)",
        {"POST": _later("CUDA shared memory registration")},
        "shared-memory",
    ),
)


def _compiled(pattern: str) -> re.Pattern[str]:
    # Every pattern has both groups, so that reading a match needs no question.
    return re.compile(pattern if "(?P<name>" in pattern else pattern + "(?P<name>)?(?P<version>)?")


_FIXED = {route.pattern: route for route in ROUTES if re.fullmatch("[a-z0-9/]+", route.pattern)}
_VARIABLE = tuple((_compiled(route.pattern), route) for route in ROUTES if route.pattern not in _FIXED)

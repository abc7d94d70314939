"""SageMaker's endpoint: /ping and /invocations, and /models for endpoints of many models. Runs on the road.

A model of such an endpoint has the name that SageMaker gave it, a hash, whatever the name in its archive. The
supervisor keeps the list of these models; every request to /models asks it, inferences do not. Errors have status 400,
except 405 and those that have a meaning for SageMaker: 404 no such model, 409 loaded already, 507 out of memory
(SageMaker then unloads other models).
"""

import logging
import os.path
import re
from collections.abc import Mapping

from shoal.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, ShoalError
from shoal.frontend import read_json as door
from shoal.frontend.call import Handler, HandlerCall, Route, blocking
from shoal.frontend.clouds.binary_content import answered_by_content_type
from shoal.frontend.read_json import read_json
from shoal.frontend.response import JSON_CONTENT, Response, error_json, json_response, not_allowed
from shoal.frontend.road.inference import generate, generate_stream, infer
from shoal.frontend.router import RouteMatch, Router
from shoal.frontend.state import ServerState
from shoal.frontend.v2.health import live, ready
from shoal.repository.identifier import is_model_name
from shoal.star.questions import NoAnswerError

_log = logging.getLogger("shoal")

BINARY_CONTENT = "application/vnd.sagemaker-triton.binary+json;json-header-size="
#: Seconds that unloading a model may take, as in Triton: SageMaker itself waits 360 s.
UNLOAD_TIMEOUT_S = 350.0
#: Parts of error messages by which a lack of memory is recognised: Triton's list, and Shoal's words for a lack of
#: shared memory.
_OUT_OF_MEMORY = re.compile(
    "[Oo]ut [Oo]f [Mm]emory|OUT_OF_MEMORY|OutOfMemory|OOM|MemoryError|(?:Dst|Src) tensor is not initialized"
    "|CUDNN_STATUS_NOT_INITIALIZED|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|[Ff]ailed to allocate memory"
    "|No space left on device|no shared memory"
)
_OUT_OF_MEMORY_STATUS = 507
#: Directories that no request may name (Triton's).
_FORBIDDEN = re.compile("/*(?:dev|proc|sys)(?:/.*)?")
#: Headers that are ignored, since SageMaker's requests and responses are never compressed (Triton's).
_ENCODINGS = frozenset({"content-encoding", "accept-encoding"})
_INFERENCE = {
    "infer": answered_by_content_type(infer, BINARY_CONTENT),
    "generate": generate,
    "generate_stream": generate_stream,
}
_DONE = Response(200, JSON_CONTENT)
_NOT_FOUND = Response(404)


def _refusing(handler: Handler) -> Handler:
    """Wrap a handler: ShoalErrors become responses with SageMaker's statuses."""

    def handle(call: HandlerCall) -> Response:
        try:
            return handler(call)
        except ShoalError as error:
            return error_json(_status(error), str(error))

    return handle


def _status(error: ShoalError) -> int:
    if isinstance(error, AlreadyExistsError):
        return 409
    return _OUT_OF_MEMORY_STATUS if _OUT_OF_MEMORY.search(str(error)) else 400


def _ping(call: HandlerCall) -> Response:
    return live(call) if call.state.sagemaker_ping_mode == "live" else ready(call)


def _invocations(call: HandlerCall) -> Response:
    return _infer(call, call.state.sagemaker_default_model, call.state.sagemaker_inference_type)


def _invoke(call: HandlerCall) -> Response:
    try:
        call.state.models.lookup(call.name, None)
    except (NotFoundError, InvalidArgumentError):  # InvalidArgumentError: the name is ambiguous, with namespaces
        return _NOT_FOUND
    return _infer(call, call.name, "infer")


def _infer(call: HandlerCall, model: str, inference_type: str) -> Response:
    headers = {name: value for name, value in call.headers.items() if name not in _ENCODINGS}
    return _INFERENCE[inference_type](call._replace(name=model, headers=headers))


def _load(call: HandlerCall) -> Response:
    """Load the model, or the ensemble with its models, in the directory `url`. Raises InvalidArgumentError for an
    invalid name or directory."""
    request = read_json(call.body, call.state.http_max_input_size)
    name = door.as_string(door.member(request, "model_name"), "model_name")
    url = door.as_string(door.member(request, "url"), "url")
    if not is_model_name(name):
        raise InvalidArgumentError(f"invalid model name '{name}'")
    call.state.require_ready()
    target = call.headers.get("x-amzn-sagemaker-target-model", name)
    _log.info("Loading SageMaker TargetModel: %s", target)  # Triton's line
    call.ask("register", {"model": name, "repository": _directory(url)})
    return _DONE


def _directory(url: str) -> str:
    path = os.path.normpath(url)
    if not (path.startswith("/") and path.isprintable()):
        raise InvalidArgumentError(f'"url" must be the absolute path of a directory, got: {url[:255]}')
    if _FORBIDDEN.fullmatch(path):
        raise InvalidArgumentError('"url" property value cannot start with /dev/, /proc/, or /sys/.')
    return path


def _unload(call: HandlerCall) -> Response:
    """Unload a model; responds when the model's processes have ended and their memory is free."""
    try:
        call.ask("unregister", {"model": call.name}, UNLOAD_TIMEOUT_S)
    except NotFoundError:
        return _NOT_FOUND
    except NoAnswerError:
        # Triton's line. As in Triton the response is 200 all the same: the model takes no more requests.
        _log.error("UNLOAD did not complete within expected %d seconds.", UNLOAD_TIMEOUT_S)
    return _DONE


def _models(call: HandlerCall) -> Response:
    """The models that are served, under SageMaker's names."""
    loaded = call.ask("registered", {}).items()
    return json_response(200, {"models": [_row(name, url) for name, url in loaded if _is_ready(call.state, name)]})


def _model(call: HandlerCall) -> Response:
    loaded = call.ask("registered", {})
    return json_response(200, _row(call.name, loaded[call.name])) if call.name in loaded else _NOT_FOUND


def _row(name: str, url: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}


def _is_ready(state: ServerState, name: str) -> bool:
    return any(entry.ready for entry in state.models.ready_entries(name))


_INVOCATIONS = _refusing(_invocations)
_MODELS = {"GET": _refusing(_models), "POST": blocking(_refusing(_load))}
_MODEL = {"GET": _refusing(_model), "DELETE": blocking(_refusing(_unload))}

ROUTES = (
    Route("/ping", {"GET": _ping}, "health"),
    Route("/invocations", {"POST": _INVOCATIONS}, "inference"),
    Route("/models/?", _MODELS, "model-repository"),
    Route("/models/(?P<name>[^/]+)", _MODEL, "model-repository"),
    Route("/models/(?P<name>[^/]+)/invoke", {"POST": _refusing(_invoke)}, "inference"),
)
SAGEMAKER = Router("sagemaker", ROUTES, lambda _path, methods: not_allowed(methods) if methods else Response(400))


def admit_sagemaker(state: ServerState, method: str, target: str, headers: Mapping[str, str]) -> RouteMatch | Response:
    """The handler for a request, or the response that refuses the request (see router.Admit)."""
    found = SAGEMAKER.admit(state, method, target, headers)
    if isinstance(found, RouteMatch) and found.handler is _INVOCATIONS:
        return found._replace(model=state.sagemaker_default_model)
    return found

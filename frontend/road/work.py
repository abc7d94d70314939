"""The kinds of work on the road, and the groups of requests that share a kind's threads. Each kind has threads of its
own, so that slow requests of one kind take no threads from another; a group is all requests that name the same model,
or the same path if they name none (thread_turns.py).

Kind and group are found before a request gets a thread: both from its head, but the group of OpenAI's requests, whose
paths name no model, from the body. Pure: bytes in, the kind of work and the group out.
"""

import gc
import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote

import orjson

from shoal.frontend.access.doors import Scope
from shoal.frontend.call import BLOCKING
from shoal.frontend.openai.embeddings import embeddings
from shoal.frontend.road.inference import infer
from shoal.frontend.router import HTTP, RouteMatch, path_of
from shoal.frontend.torchserve.inference_api import PREDICTIONS
from shoal.frontend.torchserve.listener import router_of
from shoal.frontend.torchserve.management_api import scale_workers
from shoal.frontend.v2.health import model_ready
from shoal.frontend.v2.model_repository import load, scale
from shoal.repository.identifier import is_model_name

#: The most bytes of a body that is parsed here for the model that it names (ours: that takes 1 to 16 ms a MB of texts,
#: 31 ms a MB of brackets alone; the thread parses the body once more). Requests with longer bodies have their path as
#: group.
MAX_NAMING_BYTES = 4 << 20

_LINE = re.compile(rb"(?P<method>[A-Z]+) (?P<target>[!-~]+) HTTP/1\.[01]\r\n")
_TUNNELS_MODEL = re.compile(rb"\r\nModel: ([!-~]+)\r\n")
_GRPC_MODELS = ("/ModelInfer", "/ModelReady", "/Predictions")
_GRPC_LOADS = ("/RepositoryModelLoad", "/RegisterModel", "/ScaleWorker")
_INFERENCE, _MANAGEMENT = router_of(["inference"]), router_of(["management"])
_MODELS = frozenset({infer, model_ready, embeddings})
_LOADS = frozenset({load, scale, scale_workers})


class Work(Enum):
    """The kinds of work that a thread of the road does."""

    READING = "read"  # answered from this process's state, or by a short question to the supervisor: metrics, health
    ADMINISTRATION = "administer"  # the supervisor may take long to answer
    LOADING = "load"  # waits until a model is loaded, or has more instances
    REQUEST = "request"  # waits for a model


class Kind(NamedTuple):
    """A request's kind of work, and the group with which it shares threads: the model that the request names in its
    path or body, or else the path."""

    work: Work
    group: str


def kind_of(head: bytes, *, is_tunnel: bool, body: Callable[[], bytes] = bytes) -> Kind:
    """The kind of a request with this head; `is_tunnel` if it is a call of gRPC that a lane has passed on. `body`
    returns the request's body, or b"" if that is longer than MAX_NAMING_BYTES."""
    line = _LINE.match(head)
    if line is None:
        return Kind(Work.REQUEST, "")
    method, target = line["method"].decode("ascii"), line["target"].decode("ascii")
    if is_tunnel:
        return _kind_of_call(head, target)
    found = HTTP.resolve(method, target)
    if isinstance(found, RouteMatch):
        group = found.name or path_of(target)
        if found.handler in _MODELS or found.is_generation:
            return Kind(Work.REQUEST, (found.model is None and _model_in(body())) or group)
        if found.handler in _LOADS:
            return Kind(Work.LOADING, group)
        is_quick = found.scope is not Scope.ADMIN and (found.handler not in BLOCKING or method == "GET")
        return Kind(Work.READING if is_quick else Work.ADMINISTRATION, group)
    found = _INFERENCE.resolve(method, target)
    if isinstance(found, RouteMatch) and found.handler in PREDICTIONS:
        return Kind(Work.REQUEST, found.name or path_of(target))
    # The path belongs to another endpoint, or to none: then the request is refused.
    if method in ("GET", "HEAD"):
        return Kind(Work.READING, path_of(target))
    found = _MANAGEMENT.resolve(method, target)
    if isinstance(found, RouteMatch):
        return Kind(Work.ADMINISTRATION if method == "DELETE" else Work.LOADING, found.name or path_of(target))
    return Kind(Work.REQUEST, path_of(target))


def _model_in(body: bytes) -> str:
    """The model that the body of a request to OpenAI's API names; "" if none is found."""
    # Without the collector of cycles, which would traverse a million lists again and again, parsing takes a quarter of
    # the time.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    finally:
        if is_collecting:
            gc.enable()
    name = request.get("model") if type(request) is dict else None
    return name if type(name) is str and is_model_name(name) else ""


def _kind_of_call(head: bytes, target: str) -> Kind:
    """The kind of a gRPC call; `target` is the path of the rpc."""
    if target.endswith(_GRPC_MODELS):
        work = Work.REQUEST
    else:
        work = Work.LOADING if target.endswith(_GRPC_LOADS) else Work.ADMINISTRATION
    model = _TUNNELS_MODEL.search(head)
    return Kind(work, target if model is None else unquote(model[1].decode("ascii")))

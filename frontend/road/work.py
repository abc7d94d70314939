"""The kinds of work on the road. Each has threads of its own, so that slow requests of one kind take no threads from
another.

The kind is found from a request's head, before it gets a thread. Pure: bytes in, the kind of work out.
"""

import re
from enum import Enum

from shoal.frontend.access.doors import Scope
from shoal.frontend.call import BLOCKING
from shoal.frontend.openai.embeddings import embeddings
from shoal.frontend.road.inference import infer
from shoal.frontend.router import HTTP, RouteMatch
from shoal.frontend.torchserve.inference_api import PREDICTIONS
from shoal.frontend.torchserve.routes import router_of
from shoal.frontend.v2.health import model_ready

_LINE = re.compile(rb"(?P<method>[A-Z]+) (?P<target>[!-~]+) HTTP/1\.[01]\r\n")
_GRPC_MODELS = ("/ModelInfer", "/ModelReady")
_TORCHSERVE = router_of(["inference"])
_MODELS = frozenset({infer, model_ready, embeddings})


class Work(Enum):
    """The kinds of work that a thread of the road does."""

    READING = "read"  # answered from this process's state, or by a short question to the supervisor: metrics, health
    ADMINISTRATION = "administer"  # the supervisor may take long to answer
    REQUEST = "request"  # waits for a model


def work_of(head: bytes, *, is_tunnel: bool) -> Work:
    """The kind of work of a request with this head; `is_tunnel` if it is a call of gRPC that a lane has passed on."""
    line = _LINE.match(head)
    if line is None:
        return Work.REQUEST
    method, target = line["method"].decode("ascii"), line["target"].decode("ascii")
    if is_tunnel:
        return Work.REQUEST if target.endswith(_GRPC_MODELS) else Work.ADMINISTRATION
    found = HTTP.resolve(method, target)
    if isinstance(found, RouteMatch):
        if found.handler in _MODELS or found.is_generation:
            return Work.REQUEST
        is_quick = found.scope is not Scope.ADMIN and (found.handler not in BLOCKING or method == "GET")
        return Work.READING if is_quick else Work.ADMINISTRATION
    found = _TORCHSERVE.resolve(method, target)
    if isinstance(found, RouteMatch) and found.handler in PREDICTIONS:
        return Work.REQUEST
    # A path of another endpoint, or a request that is refused.
    return Work.READING if method in ("GET", "HEAD") else Work.REQUEST

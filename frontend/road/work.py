"""The kinds of work on the road, each with threads of its own: what is slow of one kind takes no thread from another.

A request is sorted by what can be seen of it before a thread is given to it. Pure: bytes in, the kind of work out.
"""

import re
from enum import Enum

from shoal.frontend.call import ADMINISTRATIVE, BLOCKING
from shoal.frontend.road.inference import generate, generate_stream, infer
from shoal.frontend.router import HTTP, RouteMatch
from shoal.frontend.routes import model_is_ready

#: Looked at of a request, and the longest body with which an administrative one is not taken for a slow one: of gRPC's,
#: the lane has all by then.
LOOK_BYTES = 64 * 1024
_LINE = re.compile(rb"(?P<method>[A-Z]+) (?P<target>[!-~]+) HTTP/1\.[01]\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_CODED = re.compile(rb"\r\n(?:transfer-encoding|expect):", re.IGNORECASE)
_GRPC_MODELS = ("/ModelInfer", "/ModelReady")
_MODELS = frozenset({infer, generate, generate_stream, model_is_ready})


class Work(Enum):
    """What a thread of the road is wanted for."""

    READING = "read"  # answered by what this process knows, or by a short question to the supervisor: metrics, health
    ADMINISTRATION = "administer"  # all of it has come; the supervisor may take long to answer
    REQUEST = "request"  # waits for a model, or for a client that is still sending


def work_of(data: bytes, *, is_tunnel: bool) -> Work:
    """The kind of work that a request is that begins with `data`; `is_tunnel`: a call of gRPC that a lane passes on."""
    end = data.find(b"\r\n\r\n")
    line = _LINE.match(data)
    if end < 0 or line is None:
        return Work.REQUEST
    head = data[: end + 2]
    length = _LENGTH.search(head)
    nbytes = 0 if length is None else int(length[1])
    if _CODED.search(head) or (nbytes > LOOK_BYTES if is_tunnel else end + 4 + nbytes > len(data)):
        return Work.REQUEST
    method, target = line["method"].decode("ascii"), line["target"].decode("ascii")
    if is_tunnel:
        return Work.REQUEST if target.endswith(_GRPC_MODELS) else Work.ADMINISTRATION
    found = HTTP.resolve(method, target)
    if isinstance(found, RouteMatch):
        if found.handler in _MODELS:
            return Work.REQUEST
        is_quick = found.handler not in ADMINISTRATIVE and (found.handler not in BLOCKING or method == "GET")
        return Work.READING if is_quick else Work.ADMINISTRATION
    # Other endpoints' paths, and what is refused.
    return Work.READING if method in ("GET", "HEAD") else Work.REQUEST

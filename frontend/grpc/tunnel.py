"""A unary call on its way from a lane to the road, where it may wait, and back: as an HTTP request. Pure.

    POST /SERVICE/METHOD HTTP/1.1   Content-Length: N       the call's path
    Model: NAME             %-encoded; left out where the lane has not seen it
    0   4 bytes     length of what follows, big-endian      lane → road
    4   JSON        [peer, metadata, encoding, deadline in monotonic ns or 0]
        the rest    the request message, in that encoding
    HTTP/1.1 200 OK   grpc-status: N   grpc-message: %-encoded      for an error; else the response message

The road believes the lane's statement of who the client is. So a client's text stands in the HTTP head in encoded form
only, and only a socket without an address leads here (app.py): one end of a lane's socket pair.
"""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

import orjson

from shoal.errors import InternalError, ShoalError
from shoal.frontend.access.doors import Scope
from shoal.frontend.call import HandlerCall
from shoal.frontend.grpc.framing import IDENTITY, refuse_encoding
from shoal.frontend.grpc.road_inference import model_infer
from shoal.frontend.grpc.service import METHODS, GrpcCall, Method, check_access, find, run
from shoal.frontend.grpc.torchserve.methods import PREDICTIONS
from shoal.frontend.response import Response
from shoal.frontend.router import RouteMatch
from shoal.frontend.state import ServerState
from shoal.frontend.v2.compression import unpack

_LENGTH_BYTES = 4


# ---------------------------------------------------------------------------------------------------------------
# The lane's end


def pack_head(
    path: str,
    peer: str,
    metadata: Mapping[str, str],
    message_nbytes: int,
    encoding: str = "identity",
    deadline_ns: int = 0,
    model: bytes = b"",
) -> bytes:
    """The bytes to send before the message: HTTP's head, and the JSON with its length. Pseudo headers are left out of
    the metadata. `model` is the name of the model that the call is for, "" if it is not known."""
    fields = {key: value for key, value in metadata.items() if not key.startswith(":")}
    caller = orjson.dumps([peer, fields, encoding, deadline_ns])
    nbytes = _LENGTH_BYTES + len(caller) + message_nbytes
    named = f"Model: {quote(model, safe='')}\r\n" if model else ""
    head = f"POST {path} HTTP/1.1\r\nHost: shoal\r\nConnection: close\r\n{named}Content-Length: {nbytes}\r\n\r\n"
    return head.encode("ascii") + len(caller).to_bytes(_LENGTH_BYTES, "big") + caller


class ReplyHead(NamedTuple):
    """The head of the road's answer: the head's own length, gRPC's status and message, and the length of the response
    message that follows."""

    nbytes: int
    status: int
    message: str
    response_nbytes: int


def unpack_head(data: bytes | bytearray) -> ReplyHead | None:
    """The head of the road's answer, from the bytes that have come; None as long as the head is incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    status, message = int(fields.get("grpc-status", 0)), unquote(fields.get("grpc-message", ""))
    if " 200 " not in first:  # the road refused the request before reading it
        status, message = InternalError.grpc_status, f"the front end that answers this call says {first[9:]}"
    return ReplyHead(end + 4, status, message, 0 if status else int(fields["content-length"]))


# ---------------------------------------------------------------------------------------------------------------
# The road's end


def admit(_state: ServerState, _method: str, target: str, _headers: Mapping[str, str]) -> RouteMatch:
    """Admit a lane's request of any path (see router.Admit): the handler reads the call first, then authorises it."""
    return RouteMatch(_answer, target, None, "", Scope.OPEN)  # `_answer` authorises


def _infer(method: Method, call: GrpcCall, message: bytes | memoryview) -> Response:
    if method.path == PREDICTIONS:
        from shoal.frontend.grpc.torchserve.predictions import predictions  # here, as in `_find`: rarely needed

        chunks, answer = predictions(call, message, call.road)
    else:
        chunks, answer = model_infer(call, message, call.road.infer)
    response = Response(200, (), tuple(chunks))
    return response if answer is None else answer.send(response)


def _find(path: str) -> Method:
    """The rpc of a path, of any endpoint: the lane has checked that the call's endpoint has it."""
    if path in METHODS:
        return METHODS[path]
    from shoal.frontend.grpc.torchserve.service import ALL

    return find(path, ALL)


def _answer(call: HandlerCall) -> Response:
    length = int.from_bytes(call.body[:_LENGTH_BYTES], "big")
    peer, metadata, encoding, deadline_ns = orjson.loads(call.body[_LENGTH_BYTES : _LENGTH_BYTES + length])
    try:
        method = _find(call.name)
        key = check_access(method, call.state, metadata, peer)
        grpc_call = GrpcCall(call.state, call.transport, metadata, peer, deadline_ns, key)
        refuse_encoding(encoding)
        message = call.body[_LENGTH_BYTES + length :]
        # the budget's memory is held until the call is answered: the request refers to the decompressed message
        with call.state.upload_budget.expansion() as expand:
            if encoding != IDENTITY:
                message = unpack(message, call.state.max_request_bytes, call.state.max_expansion, expand)
            if method.handler is not None:
                return Response(200, (), (run(method, grpc_call, message),))
            return call.state.key_uses.answer(key, lambda: _infer(method, grpc_call, message))
    except ShoalError as error:
        return Response(200, (("grpc-status", str(error.grpc_status)), ("grpc-message", quote(str(error), safe=" "))))

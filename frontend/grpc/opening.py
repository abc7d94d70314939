"""How a call begins: what its head asks for, or why it is refused before a byte of its message is read. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.frontend.grpc.framing import parse_timeout, refusal, response_encoding
from shoal.frontend.grpc.service import Method, check_access, find
from shoal.frontend.state import ServerState

_INVALID_ARGUMENT = 3


class Opening(NamedTuple):
    """A call that may go on."""

    method: Method
    metadata: Mapping[str, str]
    timeout_s: float | None  # from its head on; None: the client waits for ever
    encoding: str  # of its compressed messages
    response_encoding: str  # of the model's responses; of all others "identity"


class RefusedCall(NamedTuple):
    """A call that ends here, with gRPC's status and its message."""

    status: int
    message: str


def open_call(state: ServerState, headers: Mapping[str, str], peer: str) -> Opening | RefusedCall | bytes:
    """The opening of a call; `headers` are the call's, with HTTP/2's pseudo headers, `peer` is the client's address.

    What is no call of gRPC's at all is refused by a block of HTTP headers.
    """
    refused = refusal(headers)
    if refused is not None:
        return refused
    timeout = headers.get("grpc-timeout")
    try:
        timeout_s = None if timeout is None else parse_timeout(timeout)
        method = find(headers[":path"])
        check_access(method, state, headers, peer)
    except ShoalError as error:
        return RefusedCall(error.grpc_status, str(error))
    except ValueError as error:
        return RefusedCall(_INVALID_ARGUMENT, str(error))
    level, accepted = state.grpc.infer_response_compression_level, headers.get("grpc-accept-encoding", "")
    encoding = headers.get("grpc-encoding", "identity")
    return Opening(method, headers, timeout_s, encoding, response_encoding(level, accepted))

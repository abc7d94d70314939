"""The opening of a call: its method and settings, or its refusal before a byte of its message is read. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from shoal.api_keys import ApiKey
from shoal.errors import ShoalError
from shoal.frontend.grpc.framing import parse_timeout, refusal, response_encoding
from shoal.frontend.grpc.inference_protocol import InferenceProtocol
from shoal.frontend.grpc.service import Method, check_access, find
from shoal.frontend.state import ServerState
from shoal.timing import wants_timing

_INVALID_ARGUMENT = 3


class Opening(NamedTuple):
    """The method and settings of a call that may go on."""

    method: Method
    metadata: Mapping[str, str]
    timeout_s: float | None  # from the call's headers on; None: the client waits for ever
    encoding: str  # of the call's compressed messages
    response_encoding: str  # of the model's responses; that of all others is "identity"
    protocol: InferenceProtocol
    key: ApiKey | None = None  # the caller's, if it needs one
    wants_timing: bool = False  # the client asks for the times of its request


class Service(NamedTuple):
    """The rpcs of one endpoint, by their paths, and the protocol of those that infer."""

    methods: Mapping[str, Method]
    protocol: InferenceProtocol


class RefusedCall(NamedTuple):
    """The status and message of a call that ends before its message is read."""

    status: int
    message: str


def open_call(
    state: ServerState, service: Service, headers: Mapping[str, str], peer: str
) -> Opening | RefusedCall | bytes:
    """The opening of a call; `headers` are the call's, with HTTP/2's pseudo headers, `peer` is the client's address.

    A request that is not gRPC is refused by a block of HTTP headers.
    """
    refused = refusal(headers)
    if refused is not None:
        return refused
    timeout = headers.get("grpc-timeout")
    try:
        timeout_s = None if timeout is None else parse_timeout(timeout)
        method = find(headers[":path"], service.methods)
        key = check_access(method, state, headers, peer)
    except ShoalError as error:
        return RefusedCall(error.grpc_status, str(error))
    except ValueError as error:
        return RefusedCall(_INVALID_ARGUMENT, str(error))
    level, accepted = state.grpc.infer_response_compression_level, headers.get("grpc-accept-encoding", "")
    encoding = headers.get("grpc-encoding", "identity")
    compressed = response_encoding(level, accepted)
    return Opening(method, headers, timeout_s, encoding, compressed, service.protocol, key, wants_timing(headers))

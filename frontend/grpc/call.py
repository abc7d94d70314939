"""The interface by which a connection and its lane use the calls of gRPC; and the opening of a call: from its headers
come its method and settings, or a refusal before a byte of its message is read."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shoal.api_keys import ApiKey
from shoal.errors import ShoalError
from shoal.frontend.grpc.framing import parse_timeout, refusal, response_encoding
from shoal.frontend.grpc.inference_protocol import AskedMessage, InferenceProtocol
from shoal.frontend.grpc.service import Method, check_access, find
from shoal.frontend.state import ServerState
from shoal.shm.port import Reply
from shoal.timing import wants_timing


class OpenCall:
    """One call; it has a stream of the connection to itself.

    No ABC, although its methods are abstract: `isinstance`, which each call goes through, takes longer for ABCs.
    """

    __slots__ = ()

    @property
    def target(self) -> memoryview | None:
        """The memory into which the next bytes of the call's message may be received directly, or None."""
        return None

    def received_into_target(self, nbytes: int) -> None:
        """Note that `nbytes` bytes were received into `target`."""
        raise NotImplementedError

    def take(self, data: bytes | memoryview) -> None:
        """Receive a piece of the call's messages."""
        raise NotImplementedError

    def end(self) -> None:
        """Note that the client sends nothing more."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End the call because its client has cancelled it or is gone: nothing more may be sent on the call's
        stream."""
        raise NotImplementedError

    def expire(self, now_s: float) -> None:
        """End the call if its deadline has passed by `now_s` (monotonic)."""
        raise NotImplementedError

    def recall(self, is_wanted: Callable[[tuple[int, int]], bool]) -> None:
        """Copy answers that wait for others and lie in blocks that are wanted back, as far as there is room for copies.
        Only streams have such answers."""

    def end_idle(self, error: ShoalError) -> None:
        """End the call, with this error, if it waits for nothing but its client. A call on the road is left to the
        road."""


class AskingCall(OpenCall):
    """A call that submits requests to models."""

    __slots__ = ()

    def replied(self, number: int, asked: AskedMessage, reply: Reply, timing: str = "") -> None:
        """Handle a reply, and release its block. `timing` are the request's times, which its client has asked for."""
        raise NotImplementedError

    def decided(self, number: int, error: ShoalError | None) -> None:
        """Handle the road's decision about the next message of a stream (admissions.py): admitted under this number, or
        refused with an error. Only streams ask; other calls by keys with limits are answered by the road."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Log the exception being handled, which is a fault of this server, and end the connection."""
        raise NotImplementedError

    def resume(self) -> int:
        """Submit what waits, since there probably is room. Returns 0 if any request was submitted or refused. Otherwise
        the call is unchanged and waits on, and the number of the model that still has no room is returned."""
        raise NotImplementedError


_INVALID_ARGUMENT = 3


class Opening(NamedTuple):
    """The method of a call that was not refused, and the settings from its headers."""

    method: Method
    metadata: Mapping[str, str]
    timeout_s: float | None  # seconds from the call's headers on; None: the client waits for ever
    encoding: str  # the encoding of the call's compressed messages
    response_encoding: str  # of responses of models; other responses have "identity"
    protocol: InferenceProtocol
    key: ApiKey | None = None  # the client's, if the call needs one
    wants_timing: bool = False  # the client asks for the times of its request


class Service(NamedTuple):
    """The rpcs of one endpoint, by their paths, and the protocol of the rpcs that infer."""

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

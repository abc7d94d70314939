"""The road for gRPC: grpcio's own server in one process, on the handlers that the lanes have, too.

It answers where clients speak TLS, and where a flag asks for it. The supervisor execs it with an address whose port it
holds bound. A call takes a thread of a pool and may wait there; a stream takes one more, for what its client sends.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

import grpc

from shoal.control import GONE
from shoal.errors import InternalError, ShoalError, UnsupportedError
from shoal.frontend.front_end import enter
from shoal.frontend.grpc import reflection
from shoal.frontend.grpc.framing import percent_encode
from shoal.frontend.grpc.road_inference import model_infer
from shoal.frontend.grpc.road_stream import RoadStream
from shoal.frontend.grpc.service import MODEL_INFER, MODEL_STREAM_INFER, GrpcCall, Method, check_access, find, run
from shoal.frontend.response import Response
from shoal.frontend.road.hang_ups import Notify
from shoal.frontend.road.traced_transport import TracedTransport
from shoal.frontend.road.transport import PortTransport, WatchedTransport
from shoal.frontend.state import ServerState
from shoal.grpc_settings import GrpcSettings
from shoal.process import die_with_parent, ignore_group_signals, set_title

if TYPE_CHECKING:
    from shoal.frontend.prepared import PreparedRequest
    from shoal.frontend.road.transport import ModelResponse

_log = logging.getLogger("shoal")

#: Threads for each of the HTTP road's: a stream keeps one for as long as it lives, and must not keep probes waiting.
THREADS_PER_ROAD_THREAD = 4
_MAX_INT32 = 2**31 - 1
#: grpcio says how much time is left where the client has set no limit, too: a few centuries.
_NEVER_S = 1e9
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
#: What gRPC's levels come to for clients that take both encodings, as all do.
_COMPRESSIONS = {
    "none": None, "low": grpc.Compression.Gzip, "medium": grpc.Compression.Deflate, "high": grpc.Compression.Deflate,
}  # fmt: skip


class RoadService(grpc.GenericRpcHandler):
    """Every rpc, from bytes to bytes."""

    def __init__(self, state: ServerState, transport: PortTransport) -> None:
        self._state = state
        self._transport = transport
        self._compression = _COMPRESSIONS[state.grpc.infer_response_compression_level]
        # Changed by the threads of streams.
        self._streams: set[RoadStream] = set()

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; None if no rpc has that name."""
        try:
            method = find(handler_call_details.method)
        except UnsupportedError:
            return None
        if method.path == MODEL_STREAM_INFER:
            return grpc.stream_stream_rpc_method_handler(self._guarded_stream(method, self._infer_stream))
        if method.path in reflection.PATHS:
            return grpc.stream_stream_rpc_method_handler(self._guarded_stream(method, _reflect))
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, method))

    def drain(self) -> None:
        """The server ends: what has been asked is answered, and no stream waits for more."""
        for stream in tuple(self._streams):
            stream.drain()

    # --- unary calls ---

    def _answer(self, method: Method, request: bytes, context: Any) -> bytes:
        begun_ns = time.monotonic_ns()
        try:
            call = self._call(method, context)
            if method.path == MODEL_INFER:
                return self._infer(call, request, context, begun_ns)
            return run(method, call, request)
        except Exception as error:  # noqa: BLE001  the rim: a fault of ours is logged and told
            refused = _as_shoal_error(error, method)
        return _abort(context, refused)

    def _call(self, method: Method, context: Any) -> GrpcCall:
        """Raises ShoalError where it is not allowed."""
        left_s = context.time_remaining()
        deadline_ns = time.monotonic_ns() + int(left_s * 1e9) if left_s is not None and left_s < _NEVER_S else 0
        call = GrpcCall(self._state, self._transport, metadata_of(context), peer_of(context), deadline_ns)
        check_access(method, call.state, call.metadata, call.peer)
        return call

    def _infer(self, call: GrpcCall, request: bytes, context: Any, begun_ns: int) -> bytes:
        transport = WatchedTransport(self._transport, partial(_called_off, context))
        tracing = call.state.tracing
        if tracing is None:
            return self._rendered(call, request, context, transport.infer)
        traced = TracedTransport(transport, tracing, call.metadata, begun_ns)
        try:
            return self._rendered(call, request, context, traced.infer)
        finally:
            sent = traced.see_off(Response(200)).close
            if sent is not None and not context.add_callback(sent):
                sent()

    def _rendered(
        self, call: GrpcCall, request: bytes, context: Any, run_: "Callable[[PreparedRequest], ModelResponse]"
    ) -> bytes:
        chunks, answer = model_infer(call, request, run_)
        try:
            self._compress(context)
            return b"".join(chunks)
        finally:
            answer.release()

    def _compress(self, context: Any) -> None:
        if self._compression is not None:
            context.set_compression(self._compression)

    # --- streams ---

    def _guarded_stream(
        self, method: Method, answers: Callable[..., Iterator[bytes]]
    ) -> Callable[..., Iterator[bytes]]:
        def guarded(requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
            try:
                yield from answers(self._call(method, context), requests, context)
                return
            except Exception as error:  # noqa: BLE001  the rim, as above
                refused = _as_shoal_error(error, method)
            _abort(context, refused)

        return guarded

    def _infer_stream(self, call: GrpcCall, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        stream = RoadStream(call, self._transport)
        self._compress(context)
        self._streams.add(stream)
        try:
            if context.add_callback(stream.call_off):
                threading.Thread(target=stream.read, args=(requests, grpc.RpcError), daemon=True).start()
                yield from stream.answers()
        finally:
            self._streams.discard(stream)


def _reflect(_call: GrpcCall, requests: Iterable[bytes], _context: Any) -> Iterator[bytes]:
    return map(reflection.answer, requests)


@contextmanager
def _called_off(context: Any, notify: Notify) -> Iterator[None]:
    """Meanwhile, the thread that waits for the answer to a call is told when the call's client has gone."""
    call_off = partial(notify, None)
    if not context.add_callback(call_off):
        call_off()
    yield


def _as_shoal_error(error: Exception, method: Method) -> ShoalError:
    """What the client hears of an error."""
    if isinstance(error, ShoalError):
        return error
    _log.error("no answer to %s", method.path, exc_info=error)
    return InternalError(f"the front end failed with {type(error).__name__}; the server's log has the details")


def _abort(context: Any, error: ShoalError) -> NoReturn:
    """End the call. A long sentence is cut, as the lanes' are: clients would refuse the whole answer."""
    sentence = unquote(percent_encode(str(error)).decode("ascii"))
    context.abort(_STATUS_CODES[error.grpc_status], sentence)
    raise AssertionError("abort raises")


def metadata_of(context: Any) -> Mapping[str, str]:
    """A call's metadata but for what is binary; values of one key are joined by commas."""
    metadata: dict[str, str] = {}
    for key, value in context.invocation_metadata():
        if isinstance(value, str):
            metadata[key] = f"{metadata[key]},{value}" if key in metadata else value
    return metadata


def peer_of(context: Any) -> str:
    """The client's IP address, of `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    _, _, address = unquote(context.peer()).partition(":")
    return address.rpartition(":")[0].strip("[]")


# ---------------------------------------------------------------------------------------------------------------
# The process


def server_options(state: ServerState) -> list[tuple[str, int]]:
    """grpcio's names for the settings."""
    settings = state.grpc
    options = {
        "so_reuseport": 1,  # the supervisor holds the port
        "max_receive_message_length": min(state.max_request_bytes, _MAX_INT32),
        "max_send_message_length": -1,
        "keepalive_time_ms": settings.keepalive_time,
        "keepalive_timeout_ms": settings.keepalive_timeout,
        "keepalive_permit_without_calls": int(settings.keepalive_permit_without_calls),
        "http2.max_pings_without_data": settings.http2_max_pings_without_data,
        "http2.min_ping_interval_without_data_ms": settings.http2_min_recv_ping_interval_without_data,
        "http2.max_ping_strikes": settings.http2_max_ping_strikes,
    }
    if settings.max_connection_age:
        options["max_connection_age_ms"] = settings.max_connection_age
    if settings.max_connection_age_grace:
        options["max_connection_age_grace_ms"] = settings.max_connection_age_grace
    return [(f"grpc.{name}", value) for name, value in options.items()]


def listen(server: Any, settings: GrpcSettings, address: str) -> int:
    """Bind the address; from now on connections are let in, and answered once the server is started. Its port."""
    if not (settings.use_ssl or settings.use_ssl_mutual):
        return int(server.add_insecure_port(address))
    key, certificate = Path(settings.server_key).read_bytes(), Path(settings.server_cert).read_bytes()
    root = Path(settings.root_cert).read_bytes() if settings.root_cert else None
    credentials = grpc.ssl_server_credentials([(key, certificate)], root, settings.use_ssl_mutual)
    return int(server.add_secure_port(address, credentials))


def main() -> None:
    """Serve until SIGTERM, then answer what was accepted."""
    die_with_parent(int(os.environ["SHOAL_SUPERVISOR_PID"]))
    set_title("grpc road")
    ignore_group_signals()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    go_fd = int(os.environ["SHOAL_GO_FD"])
    if not os.read(go_fd, 1):
        return  # the supervisor gave up before there was anything to serve
    os.close(go_fd)
    try:
        serve(stopping)
    except GONE:
        os._exit(0)  # the supervisor is gone: no call can be answered any more


def serve(stopping: threading.Event) -> None:
    """From the supervisor's word on."""
    front_end, welcome = enter("grpc road")
    transport = PortTransport(front_end)
    service = RoadService(front_end.state, transport)
    threads = ThreadPoolExecutor(int(os.environ["SHOAL_ROAD_THREADS"]) * THREADS_PER_ROAD_THREAD, "shoal-grpc")
    server = grpc.server(threads, [service], options=server_options(front_end.state))
    listen(server, front_end.state.grpc, os.environ["SHOAL_GRPC_ADDRESS"])
    front_end.settle(welcome)  # not before: clients are told then that they may connect
    transport.shared.start("shoal-port")
    server.start()
    stopping.wait()
    ended = server.stop(int(os.environ["SHOAL_GRACEFUL_TIMEOUT_S"]))
    service.drain()
    ended.wait()
    os._exit(0)  # a thread that still waits for a model, whose client is gone, would hold the process


if __name__ == "__main__":
    main()

"""A paced client: asks at even times, whether its last request has been answered or not, and notes when each was
answered."""

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bench.background_load import content_length, raw
from bench.grpc_words import METHOD, SERVICE, channel
from bench.isolation.figures import FAILED, REFUSED, PacedRequest
from bench.workloads import Request

#: Seconds to wait for one answer: far beyond any bar.
PATIENCE_S = 2.0
#: Seconds to wait where executions take seconds.
LONG_PATIENCE_S = 6.0
INTERVAL_S = 0.01
#: Words in grpcio's own UNAVAILABLE errors, which are no refusals by the server.
_BROKEN = ("connect", "Socket closed", "GOAWAY", "reset", "Broken pipe")


def infer(model: str, numbers: Sequence[float]) -> Request:
    """An inference over HTTP, in JSON, answered in binary."""
    data = ",".join(f"{each:g}" for each in numbers)
    body = (
        f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{len(numbers)}],"data":[{data}]}}],'
        '"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
    )
    return Request(f"/v2/models/{model}/infer", {"Content-Type": "application/json"}, body.encode())


def message(model: str, numbers: Sequence[float]) -> bytes:
    """An inference as a packed message of gRPC."""
    import tritonclient.grpc.service_pb2 as service

    made: Any = service.ModelInferRequest(model_name=model)
    tensor = made.inputs.add(name="INPUT0", datatype="FP32", shape=[len(numbers)])
    tensor.contents.fp32_contents.extend(numbers)
    packed: bytes = made.SerializeToString()
    return packed


class Probe(Protocol):
    """A client that can ask again and again."""

    def ask(self, timeout_s: float) -> int:
        """Send the request; returns the status, FAILED where there is none within that time."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class HttpProbe:
    """One request, sent on several connections by turns; a lost connection is replaced. Without `keeps_open` each
    request has a connection of its own."""

    def __init__(
        self, port: int, request: Request | bytes, num_connections: int = 1, *, keeps_open: bool = True
    ) -> None:
        self._port = port
        self._keeps_open = keeps_open
        self._data = request if isinstance(request, bytes) else raw(request)
        # Changed by every request.
        self._connections: list[socket.socket | None] = [None] * num_connections
        self._next = 0

    @property
    def ports(self) -> list[int]:
        """The local port of each open connection."""
        return [each.getsockname()[1] for each in self._connections if each is not None]

    def connect(self, index: int) -> None:
        """Open one connection now. Raises OSError."""
        self._connections[index] = self._connect(PATIENCE_S)

    def ask(self, timeout_s: float) -> int:
        """Send the request on the next connection."""
        index = self._next
        self._next = (index + 1) % len(self._connections)
        end_s = time.monotonic() + timeout_s
        try:
            connection = self._connections[index]
            if connection is None:
                connection = self._connections[index] = self._connect(timeout_s)
            connection.settimeout(timeout_s)
            connection.sendall(self._data)
            return _status(connection, end_s)
        except (OSError, ValueError):
            self._drop(index)
            return FAILED
        finally:
            if not self._keeps_open:
                self._drop(index)

    def close(self) -> None:
        """Close all connections; the next request opens its own."""
        for index in range(len(self._connections)):
            self._drop(index)

    def _drop(self, index: int) -> None:
        connection, self._connections[index] = self._connections[index], None
        if connection is not None:
            connection.close()

    def _connect(self, timeout_s: float) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _status(connection: socket.socket, end_s: float) -> int:
    """The status of a whole answer with a Content-Length, or in chunks. Raises OSError or ValueError where there is
    none."""
    received = bytearray()
    while True:
        connection.settimeout(max(0.001, end_s - time.monotonic()))
        data = connection.recv(262144)
        if not data:
            raise ConnectionResetError("closed before the answer")
        received += data
        top, separator, body = received.partition(b"\r\n\r\n")
        if not separator:
            continue
        nbytes = content_length(top)
        is_whole = body.endswith(b"0\r\n\r\n") if nbytes is None else len(body) >= nbytes
        if is_whole:
            return int(top[9:12])


class GrpcProbe:
    """ModelInfer, again and again on one connection."""

    def __init__(self, port: int, packed: bytes) -> None:
        self._packed = packed
        self._channel = channel(port)
        self._call: Any = self._channel.unary_unary(METHOD)

    def ask(self, timeout_s: float) -> int:
        """Make one call."""
        return _outcome(lambda: self._call(self._packed, timeout=timeout_s))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class LiveProbe:
    """ServerLive, on a new connection each time, as a kubelet asks."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, timeout_s: float) -> int:
        """Make one call."""
        with channel(self._port) as opened:
            call: Any = opened.unary_unary(SERVICE + "ServerLive")
            return _outcome(lambda: call(b"", timeout=timeout_s))

    def close(self) -> None:
        """Do nothing: no connection stays open."""


class StreamProbe(GrpcProbe):
    """ModelStreamInfer on one connection, with a stream for each request; the first response is the answer."""

    def __init__(self, port: int, packed: bytes) -> None:
        super().__init__(port, packed)
        self._call = self._channel.stream_stream(SERVICE + "ModelStreamInfer")

    def ask(self, timeout_s: float) -> int:
        """Open one stream and read its first response."""
        import tritonclient.grpc.service_pb2 as service

        def call() -> None:
            stream = self._call(iter([self._packed]), timeout=timeout_s)
            answers = [service.ModelStreamInferResponse.FromString(each) for each in stream]
            if not answers or answers[0].error_message:
                raise ValueError("no answer")

        try:
            return _outcome(call)
        except ValueError:
            return FAILED


def _outcome(call: Callable[[], object]) -> int:
    import grpc

    try:
        call()
    except grpc.RpcError as error:
        refusals = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
        is_refused = error.code() in refusals and not any(word in (error.details() or "") for word in _BROKEN)
        return REFUSED if is_refused else FAILED
    return 200


def paced(
    probe: Probe,
    seconds: float,
    interval_s: float = INTERVAL_S,
    event: Callable[[], object] | None = None,
    patience_s: float = PATIENCE_S,
) -> list[PacedRequest]:
    """All requests that were due in so many seconds, answered or not; `event` is called after the first few.

    A late request is sent at once. A request that could not be sent before the time of the last request was over has
    failed.
    """
    answers: list[PacedRequest] = []
    begin_s = time.monotonic()
    end_s = begin_s + seconds
    number = 0
    while (due_s := begin_s + number * interval_s) < end_s:
        if event is not None and number == EVENT_AT:
            event()
        number += 1
        now_s = time.monotonic()
        if now_s < due_s:
            time.sleep(due_s - now_s)
        left_s = min(patience_s, end_s + patience_s - now_s)
        status = probe.ask(left_s) if left_s > 0 else FAILED
        answers.append(PacedRequest(due_s, time.monotonic(), status))
    return answers


#: How many requests are answered before a situation's event.
EVENT_AT = 20

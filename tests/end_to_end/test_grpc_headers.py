"""Headers of gRPC calls that follow one another on a connection, in header blocks as clients of several kinds write
them: each call has its own."""

import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence

import hpack
import pytest

from shoal.frontend.grpc.messages import service
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, Server, serving
from tests.frontend.grpc.http2.peer import DATA, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame
from tests.tracer.receiver import Receiver, receiving

HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
RIGHT, WRONG = [("triton-grpc-protocol-key", "right")], [("triton-grpc-protocol-key", "wrong")]
_STATUS = re.compile(rb"grpc-status[\x01\x02]([0-9]+)")
Fields = Sequence[tuple[str, str]]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Server]:
    """A server whose model needs a key, and which traces the calls that belong to a trace."""
    models = tmp_path_factory.mktemp("models")
    add_model(models, "floats", config_text("identity", "IN FP32 -1", "OUT FP32 -1"))
    said = "mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={receiver.url}"
    flags = [f"--trace-config={each}" for each in (*said, "opentelemetry,bsp_schedule_delay=50")]
    flags += ["--grpc-restricted-protocol=inference:key=right", "--grpc-port=0", "--http-process-count=1"]
    with serving(models, *flags) as server:
        yield server


def message() -> bytes:
    request = service.ModelInferRequest(model_name="floats")
    request.inputs.add(name="IN", datatype="FP32", shape=[4])
    request.raw_input_contents.append(bytes(16))
    body = bytes(request.SerializeToString())
    return bytes(1) + len(body).to_bytes(4, "big") + body


class Connection:
    """A connection for calls of one model, whose fields enter HPACK's table unless they are sent as literals."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self._encoder = hpack.Encoder()
        self._stream_id = -1
        self._received = b""

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, *calls: Fields, is_literal: bool = False) -> list[bool]:
        """Send calls at once, each with fields of its own, which do not enter HPACK's table if `is_literal`; returns
        whether each has succeeded."""
        sent, first = b"", self._stream_id + 2
        for fields in calls:
            self._stream_id += 2
            own = [hpack.NeverIndexedHeaderTuple(*each) for each in fields] if is_literal else fields
            block = self._encoder.encode([*HEAD, *own], huffman=not is_literal)
            sent += frame(HEADERS, 4, self._stream_id, block) + frame(DATA, 1, self._stream_id, message())
        self._socket.sendall(sent)
        statuses: dict[int, int] = {}
        while len(statuses) < len(calls):
            kind, flags, stream_id, payload = self._receive()
            if kind == HEADERS and flags & 1 and (status := _STATUS.search(payload)) is not None:
                statuses[stream_id] = int(status[1])
        return [statuses[stream_id] == 0 for stream_id in range(first, self._stream_id + 1, 2)]

    def error(self, own: Fields | bytes) -> tuple[int, int]:
        """The kind and error code of the RST_STREAM or GOAWAY that answers a call with these fields of its own, given
        also as the bytes of a block."""
        self._stream_id += 2
        block = self._encoder.encode([*HEAD, *RIGHT])
        block += own if isinstance(own, bytes) else self._encoder.encode(own)
        head, data = frame(HEADERS, 4, self._stream_id, block), frame(DATA, 1, self._stream_id, message())
        self._socket.sendall(head + data)
        while True:
            kind, _, _, payload = self._receive()
            if kind == RST_STREAM:
                return kind, int.from_bytes(payload[:4], "big")
            if kind == GOAWAY:
                return kind, int.from_bytes(payload[4:8], "big")

    def _receive(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and payload of the next frame."""
        while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
            self._received += self._socket.recv(65536) or pytest.fail("the server has closed the connection")
        head, end = self._received[:9], 9 + int.from_bytes(self._received[:3], "big")
        payload, self._received = self._received[9:end], self._received[end:]
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload


@pytest.mark.parametrize("is_literal", [True, False])
def test_calls_that_come_at_once_leave_the_next_one_its_own_deadline(server: Server, is_literal: bool) -> None:
    patient, hurried = [*RIGHT, ("grpc-timeout", "60S")], [*RIGHT, ("grpc-timeout", "1n")]
    with Connection(server.grpc_port) as connection:
        for _ in range(3):
            assert connection.ask(patient, hurried, is_literal=is_literal) == [True, False]
            assert connection.ask(patient, is_literal=is_literal) == [True]
            assert connection.ask(hurried, is_literal=is_literal) == [False]


@pytest.mark.parametrize("is_literal", [True, False])
def test_each_call_is_admitted_by_its_own_key(server: Server, is_literal: bool) -> None:
    with Connection(server.grpc_port) as connection:
        for number in range(50):
            own = [("x-request-id", f"{number}"), ("traceparent", "none")]
            for key, is_admitted in ((RIGHT, True), (RIGHT, True), (WRONG, False), (RIGHT, True), ([], False)):
                assert connection.ask([*key, *own], is_literal=is_literal) == [is_admitted]
            asked = [[*key, *own] for key in (RIGHT, WRONG, RIGHT, [], RIGHT)]
            assert connection.ask(*asked, is_literal=is_literal) == [True, False, True, False, True]


@pytest.mark.parametrize("is_literal", [True, False])
def test_each_call_is_of_its_own_trace(server: Server, receiver: Receiver, is_literal: bool) -> None:
    """The client's table is full after 20 calls, if the traces enter the table."""
    before = len(receiver.spans(0))
    trace_ids = [f"{number + 1000 * is_literal:032x}" for number in range(1, 129)]
    with Connection(server.grpc_port) as connection:
        calls = [
            [*RIGHT, ("grpc-timeout", f"{60_000_000 - number}u"), ("traceparent", f"00-{trace_id}-00f067aa0ba902b7-01")]
            for number, trace_id in enumerate(trace_ids)
        ]
        for start in range(0, 128, 4):
            assert connection.ask(*calls[start : start + 3], is_literal=is_literal) == [True] * 3
            assert connection.ask(calls[start + 3], is_literal=is_literal) == [True]
    spans = receiver.spans(before + 3 * len(trace_ids))[before:]
    assert Counter(span.trace_id for span in spans) == dict.fromkeys(trace_ids, 3)


def test_a_block_that_breaks_a_rule_is_decoded_once(server: Server) -> None:
    """The first block breaks a rule of its call, and enters fields into the table. The second block refers to an entry
    that the table would have only if the first block had been decoded twice."""
    with Connection(server.grpc_port) as connection:
        for _ in range(3):
            assert connection.ask(RIGHT) == [True]
        assert connection.error([("K", "v"), ("k", "v")]) == (RST_STREAM, 1)  # PROTOCOL_ERROR
        assert connection.ask(RIGHT) == [True]
        beyond = 62 + 5 + 2 + 1  # what the calls have in common, the fields of the one above, and the next one
        assert connection.error(b"\x40\1a\1b%c" % (0x80 | beyond)) == (GOAWAY, 9)  # COMPRESSION_ERROR

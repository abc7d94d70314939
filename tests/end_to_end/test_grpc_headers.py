"""Headers of gRPC calls that follow one another on a connection, in header blocks as clients of several kinds write
them: each call has its own."""

import re
import socket
from collections.abc import Iterator, Sequence

import hpack
import pytest

from shoal.frontend.grpc.messages import service
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, Server, serving
from tests.frontend.grpc.http2.peer import DATA, HEADERS, PREFACE, SETTINGS, frame

HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
_STATUS = re.compile(rb"grpc-status[\x01\x02]([0-9]+)")
Fields = Sequence[tuple[str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    add_model(models, "floats", config_text("identity", "IN FP32 -1", "OUT FP32 -1"))
    with serving(models, "--grpc-port=0", "--http-process-count=1") as server:
        yield server


def message() -> bytes:
    request = service.ModelInferRequest(model_name="floats")
    request.inputs.add(name="IN", datatype="FP32", shape=[4])
    request.raw_input_contents.append(bytes(16))
    body = bytes(request.SerializeToString())
    return bytes(1) + len(body).to_bytes(4, "big") + body


class Connection:
    """A connection on which calls of one model are made; all fields but `literal` ones enter HPACK's table."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self._encoder = hpack.Encoder()
        self._stream_id = -1

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, *calls: Fields, is_literal: bool = False) -> list[bool]:
        """Whether calls succeed that are sent at once, each with these fields of its own."""
        sent, first = b"", self._stream_id + 2
        for fields in calls:
            self._stream_id += 2
            own = [hpack.NeverIndexedHeaderTuple(*each) for each in fields] if is_literal else fields
            block = self._encoder.encode([*HEAD, *own], huffman=not is_literal)
            sent += frame(HEADERS, 4, self._stream_id, block) + frame(DATA, 1, self._stream_id, message())
        self._socket.sendall(sent)
        statuses: dict[int, int] = {}
        received = b""
        while len(statuses) < len(calls):
            while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
                received += self._socket.recv(65536) or pytest.fail("the server has closed the connection")
            end = 9 + int.from_bytes(received[:3], "big")
            if received[3] == HEADERS and received[4] & 1 and (status := _STATUS.search(received[9:end])) is not None:
                statuses[int.from_bytes(received[5:9], "big")] = int(status[1])
            received = received[end:]
        return [statuses[stream_id] == 0 for stream_id in range(first, self._stream_id + 1, 2)]


@pytest.mark.parametrize("is_literal", [True, False])
def test_calls_that_come_at_once_leave_the_next_one_its_own_deadline(server: Server, is_literal: bool) -> None:
    patient, hurried = [("grpc-timeout", "60S")], [("grpc-timeout", "1n")]
    with Connection(server.grpc_port) as connection:
        for _ in range(3):
            assert connection.ask(patient, hurried, is_literal=is_literal) == [True, False]
            assert connection.ask(patient, is_literal=is_literal) == [True]
            assert connection.ask(hurried, is_literal=is_literal) == [False]

"""frontend/grpc/connection.py: what leaves a lane's connection over a real socket, and when whose memory is free."""

import gzip
import socket
from collections.abc import Iterator

import pytest

from shoal.frontend.grpc.connection import GrpcConnection, Token
from shoal.frontend.grpc.framing import trailers
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import DATA, HEADERS, PLAIN_CALL, PREFACE, SETTINGS, frame, frames_in, setting

#: The end of a call that has succeeded.
_OK = trailers(0)
#: With a window and frames that hold up nothing.
OPENING = PREFACE + frame(SETTINGS, 0, 0, setting(4, 1 << 30)) + frame(8, 0, 0, bytes((63, 0, 0, 0)))
MEMORY = bytes(range(256)) * 3000


class Pair:
    """A connection, its client, and the tokens that came back."""

    def __init__(self, opening: bytes = OPENING) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        ours.setblocking(False)
        self.released: list[Token] = []
        self.connection = GrpcConnection(ours, Limits(), 0.0, self.released.append)
        self.connection.http2.receive(opening, 0.0)
        self.connection.flush(0.0)
        self.read()

    def read(self) -> bytes:
        """What has come, at least something."""
        return self.client.recv(1 << 20)

    def call(self, stream_id: int) -> None:
        self.connection.http2.receive(frame(HEADERS, 5, stream_id, PLAIN_CALL), 0.0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.connection.close()
    pair.client.close()


def test_memory_is_free_when_the_client_has_taken_all_of_it(pair: Pair) -> None:
    for stream_id in (1, 3):
        pair.call(stream_id)
        pair.connection.respond(stream_id, [b"front", memoryview(MEMORY)], (stream_id, 0))
    received = b""
    while not received.endswith(_OK) or received.count(_OK) < 2:
        assert pair.connection.flush(1.0)
        received += pair.read()
    assert sorted(pair.released) == [(1, 0), (3, 0)]
    for stream_id in (1, 3):
        data = [each.payload for each in frames_in(received) if each.kind == DATA and each.stream_id == stream_id]
        assert b"".join(data)[5:] == b"front" + MEMORY


def test_what_leaves_at_once_is_free_at_once(pair: Pair) -> None:
    pair.call(1)
    pair.connection.respond(1, [memoryview(MEMORY)[:20_000]], (7, 0))
    assert pair.released == []
    assert pair.connection.flush(1.0)
    assert (pair.released, list(pair.connection.unsent)) == ([(7, 0)], [])


def test_a_client_that_is_gone_is_told(pair: Pair) -> None:
    pair.call(1)
    pair.connection.respond(1, [memoryview(MEMORY)], (7, 0))
    pair.client.close()
    while pair.connection.flush(1.0):
        assert pair.connection.unsent
    pair.connection.close()
    assert pair.released == [(7, 0)]


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_what_is_small_is_copied_and_free_before_it_leaves(pair: Pair, encoding: str) -> None:
    memory = bytearray(MEMORY[:1000])
    pair.call(1)
    assert not pair.connection.respond(1, [b"front", memoryview(memory), b"", b"behind"], (7, 0), encoding)
    memory[:] = bytes(1000)
    assert pair.connection.flush(1.0)
    sent = frames_in(pair.read())
    assert [each.kind for each in sent] == [HEADERS, DATA, HEADERS]
    message = sent[1].payload[5:]
    assert (message if encoding == "identity" else gzip.decompress(message)) == b"front" + MEMORY[:1000] + b"behind"
    assert pair.released == []  # whoever asked gives it back

"""gRPC's clients that do not read: what becomes of the results they hold where a worker lacks memory."""

from collections.abc import Iterator

import pytest

from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.recall import Recall
from shoal.frontend.kept_memory import KeptMemory
from shoal.request import InferResponse
from tests.frontend.grpc.http2.peer import DATA, PREFACE, SETTINGS, frame, frames_in, number
from tests.frontend.grpc.test_connection import Pair
from tests.frontend.lane_star import GRID, ONE, Star

NBYTES = 100_000
#: The worker of the star, and another.
WORKER, ANOTHER = {9}, {8}
#: Both windows stay as they are: 65,535 bytes.
NARROW = PREFACE + frame(SETTINGS, 0, 0)
#: A client takes so much more.
WIDER = number(1 << 20)


class Clients:
    """Connections whose windows are narrow, and the lane's bookkeeping."""

    def __init__(self, star: Star) -> None:
        self.star = star
        self.kept = KeptMemory()
        self.recall = Recall(star.port, self._cut)
        self.pairs: list[Pair] = []
        self.cut: list[tuple[int, int]] = []

    def _cut(self, connection: GrpcConnection, stream_id: int) -> None:
        connection.cut(stream_id)
        self.cut.append(([pair.connection for pair in self.pairs].index(connection), stream_id))

    def connect(self) -> Pair:
        pair = Pair(NARROW, self.kept)
        pair.connection._released = lambda token: self.star.port.release(*token)
        self.pairs.append(pair)
        return pair

    def answer(self, pair: Pair, stream_id: int, now_s: float = 0.0) -> None:
        """A call, and its response, of which a part leaves if the window is not shut yet."""
        pair.call(stream_id)
        asked = self.star.submit("grid", GRID, ONE).number
        self.star.seen()
        reply = self.star.reply(asked, InferResponse((), {}), bytes([stream_id]) * NBYTES, NBYTES)
        assert reply.block is not None
        pair.connection.respond(stream_id, [reply.block[:NBYTES]], (asked, 0))
        assert pair.connection.flush(now_s)

    def give_room(self, num_copies: int) -> None:
        """To a connection alone: for so many that have not left at all."""
        self.kept._most_bytes = 8 * (num_copies + 1) * NBYTES

    def __call__(self, now_s: float, segments: set[int] = WORKER, *, is_urgent: bool = False) -> list[tuple[int, int]]:
        """Which calls of which connections are cut for a recall."""
        self.cut.clear()
        connections = [pair.connection for pair in self.pairs]
        self.recall.recall(connections, segments, now_s, is_urgent=is_urgent)
        return self.cut


@pytest.fixture
def clients() -> Iterator[Clients]:
    star = Star(slab_nbytes=1024 * 4096)
    clients = Clients(star)
    yield clients
    for pair in clients.pairs:
        pair.connection.close()
        pair.client.close()
    assert clients.kept.nbytes == 0
    assert star.port.num_held == 0
    star.bell.close()


def data_of(pair: Pair, stream_id: int) -> bytes:
    """All data of a response, whose windows are opened."""
    pair.connection.http2.receive(frame(8, 0, 0, WIDER) + frame(8, 0, stream_id, WIDER), 0.0)
    assert pair.connection.flush(0.3)
    received = b""
    while not received.endswith(b"grpc-status\x010"):
        received += pair.read()
    return b"".join(each.payload for each in frames_in(received) if each.kind == DATA and each.stream_id == stream_id)


def test_what_waits_for_a_window_is_copied_and_leaves_whole(clients: Clients) -> None:
    pair = clients.connect()
    clients.answer(pair, 1)
    clients(0.1, ANOTHER)
    assert clients.star.port.num_held == 1
    clients(0.2)
    assert clients.star.port.num_held == 0
    memory = clients.star.worker_slab.open(clients.star.replied)
    memory[:] = b"?" * len(memory)
    assert data_of(pair, 1)[5:] == b"\x01" * NBYTES

"""gRPC's clients that do not read: what becomes of the results they hold where a worker lacks memory."""

from collections.abc import Iterator

import pytest

from shoal.frontend.grpc.connection import GrpcConnection, Recall
from shoal.frontend.grpc.framing import HEADERS, trailers
from shoal.frontend.kept_memory import HOLD_S, KeptMemory
from shoal.request import InferResponse
from tests.frontend.grpc.connection_pair import Pair
from tests.frontend.grpc.http2 import peer
from tests.frontend.grpc.http2.peer import DATA, PREFACE, SETTINGS, frame, frames_in, number
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

    def send(self, pair: Pair, stream_id: int, now_s: float = 0.0, letter: bytes = b"x") -> None:
        """A message of a call, of which a part leaves if the connection's window is open still."""
        http2 = pair.connection.http2
        if stream_id > http2.streams.last_id:
            pair.call(stream_id)
            http2.send_headers(stream_id, HEADERS)
        asked = self.star.submit("grid", GRID, ONE).number
        self.star.seen()
        reply = self.star.reply(asked, InferResponse((), {}), letter * NBYTES, NBYTES)
        assert reply.block is not None
        http2.send_data(stream_id, [reply.block[:NBYTES]], (asked, 0), now_s)
        assert pair.connection.flush(now_s)

    def give_room(self, nbytes: int) -> None:
        """To a connection alone."""
        self.kept.most_bytes = 8 * nbytes

    def __call__(self, now_s: float, segments: set[int] = WORKER, *, is_urgent: bool = False) -> list[tuple[int, int]]:
        """Which calls of which connections are cut for a recall."""
        self.cut.clear()
        connections = [pair.connection for pair in self.pairs]
        self.recall.recall(connections, segments, now_s, is_urgent=is_urgent)
        self.star.num_waiting()  # what was released is of no interest
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


def test_what_waits_for_a_window_is_copied_and_leaves_whole(clients: Clients) -> None:
    pair = clients.connect()
    clients.send(pair, 1, letter=b"a")
    clients(0.1, ANOTHER, is_urgent=True)
    assert clients.star.port.num_held == 1
    clients(0.2)
    assert clients.star.port.num_held == 0
    memory = clients.star.worker_slab.open(clients.star.replied)
    memory[:] = b"?" * len(memory)
    pair.connection.http2.receive(frame(8, 0, 0, WIDER) + frame(8, 0, 1, WIDER), 0.0)
    pair.connection.finish(1)
    assert pair.connection.flush(0.3)
    received = b""
    while not received.endswith(trailers(0)):
        received += pair.read()
    assert b"".join(each.payload for each in frames_in(received) if each.kind == DATA) == b"a" * NBYTES
    assert clients.kept.nbytes == 0


def test_without_other_memory_calls_without_room_are_cut_when_they_had_their_time(clients: Clients) -> None:
    pair, other = clients.connect(), clients.connect()
    for stream_id, now_s in ((1, 0.0), (3, 0.25), (5, 0.5)):
        clients.send(pair, stream_id, now_s)
    clients.send(other, 1, 0.75)
    clients.send(other, 3, 0.125)
    clients.give_room(NBYTES)  # for what is left of the first, and of the first of the other
    assert clients(1.0) == []
    assert clients.star.port.num_held == 3
    assert clients(1.0, is_urgent=True) == []
    assert clients(0.25 + HOLD_S, is_urgent=True) == [(1, 3), (0, 3)]
    assert clients.star.port.num_held == 1
    assert pair.connection.flush(2.0)
    received = pair.read()
    while b"does not read its responses" not in received:
        received += pair.read()
    ended = [each for each in frames_in(received) if each.kind == peer.HEADERS and each.flags & 1]
    assert [each.stream_id for each in ended] == [3]
    assert b"grpc-status\x018" in ended[0].payload


def test_a_call_that_is_cut_makes_room_for_the_next(clients: Clients) -> None:
    pair = clients.connect()
    clients.send(pair, 1)
    clients.give_room(NBYTES)
    clients(0.0)
    clients.send(pair, 1)
    clients.send(pair, 3)
    assert clients(0.5) == []
    assert clients.star.port.num_held == 2
    assert clients(HOLD_S, is_urgent=True) == [(0, 1)]
    assert clients.star.port.num_held == 0
    assert pair.connection.http2.unsent_nbytes(3) == NBYTES

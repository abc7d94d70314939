"""gRPC's clients that do not read: what becomes of the results they hold where a worker lacks memory."""

from collections.abc import Iterator

import pytest

from shoal.frontend.grpc import recall as module
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.recall import Recall
from shoal.frontend.slow_readers import HOLD_S
from shoal.request import InferResponse
from tests.frontend.grpc.http2.peer import DATA, PREFACE, SETTINGS, frame, frames_in, number
from tests.frontend.grpc.test_connection import Pair
from tests.frontend.lane_star import GRID, ONE, Star

RST_STREAM = 3
NBYTES = 100_000
#: The worker of the star, and another.
WORKER, ANOTHER = {9}, {8}
#: Both windows stay as they are: 65,535 bytes.
NARROW = PREFACE + frame(SETTINGS, 0, 0)


class Clients:
    """Connections whose windows are narrow, and the lane's bookkeeping."""

    def __init__(self, star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
        self.star = star
        self.monkeypatch = monkeypatch
        self.closed: list[GrpcConnection] = []
        self.recall = Recall(star.port, self.closed.append)
        self.pairs: list[Pair] = []

    def connect(self) -> Pair:
        pair = Pair(NARROW)
        pair.connection._released = lambda token: self.star.port.release(*token)
        self.pairs.append(pair)
        return pair

    def answer(self, pair: Pair, stream_id: int) -> None:
        """A call, and its response, of which a part leaves."""
        pair.call(stream_id)
        asked = self.star.submit("grid", GRID, ONE).number
        self.star.seen()
        reply = self.star.reply(asked, InferResponse((), {}), bytes([stream_id]) * NBYTES, NBYTES)
        assert reply.block is not None
        pair.connection.respond(stream_id, [reply.block[:NBYTES]], (asked, 0))
        assert pair.connection.flush(0.0)

    def give_room(self, nbytes: int) -> None:
        self.monkeypatch.setattr(module, "MAX_KEPT_BYTES", nbytes)

    def __call__(self, now_s: float, segments: set[int] = WORKER, *, is_urgent: bool = False) -> list[int]:
        """Which connections have something to say after a recall."""
        connections = [pair.connection for pair in self.pairs]
        changed = self.recall.recall(connections, segments, now_s, is_urgent=is_urgent)
        return [connections.index(each) for each in changed]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    star = Star(slab_nbytes=512 * 4096)
    clients = Clients(star, monkeypatch)
    yield clients
    for pair in clients.pairs:
        pair.connection.close()
        pair.client.close()
    star.bell.close()


def test_what_waits_for_a_window_is_copied_and_leaves_whole(clients: Clients) -> None:
    pair = clients.connect()
    clients.answer(pair, 1)
    clients(0.1, ANOTHER)
    assert clients.star.port.num_held == 1
    clients(0.2)
    assert clients.star.port.num_held == 0
    memory = clients.star.worker_slab.open(clients.star.replied)
    memory[:] = b"?" * len(memory)
    more = number(1 << 20)
    pair.connection.http2.receive(frame(8, 0, 0, more) + frame(8, 0, 1, more), 0.0)
    assert pair.connection.flush(0.3)
    received = b""
    while not received.endswith(b"grpc-status\x010"):
        received += pair.read()
    data = b"".join(each.payload for each in frames_in(received) if each.kind == DATA)
    assert data[5:] == b"\x01" * NBYTES


def test_beyond_the_bound_streams_end_where_there_is_no_other_memory_and_they_had_their_time(clients: Clients) -> None:
    first, second = clients.connect(), clients.connect()
    clients.answer(first, 1)
    clients.answer(second, 1)
    clients.answer(second, 3)
    clients.give_room(NBYTES)
    assert clients(0.0) == []
    assert clients.star.port.num_held == 2  # the first one's is copied
    assert clients(0.5, is_urgent=True) == []
    assert clients(HOLD_S, is_urgent=True) == [1]
    assert clients.star.port.num_held == 0
    assert second.connection.flush(HOLD_S)
    received = second.read()
    while received.count(b"\x00\x00\x04\x03") < 2:
        received += second.read()
    resets = [each for each in frames_in(received) if each.kind == RST_STREAM]
    assert [(each.stream_id, each.payload) for each in resets] == [(1, number(11)), (3, number(11))]
    assert clients.closed == []


def test_what_is_in_the_middle_of_the_output_ends_with_its_connection(clients: Clients) -> None:
    pair = clients.connect()
    clients.answer(pair, 1)
    connection = pair.connection
    ((_, token),) = connection.http2.streams.tokens
    connection._tokens = [token]
    clients.give_room(0)
    clients(0.0)
    assert clients(HOLD_S, is_urgent=True) == [0]
    assert clients.closed == [connection]


def test_a_call_that_goes_on_is_cancelled_with_its_stream(clients: Clients) -> None:
    class Call:
        is_cancelled = False

        def cancel(self) -> None:
            self.is_cancelled = True

    pair = clients.connect()
    clients.answer(pair, 1)
    call = Call()
    pair.connection.calls[1] = call  # type: ignore[assignment]
    clients.give_room(0)
    clients(0.0)
    clients(HOLD_S, is_urgent=True)
    assert call.is_cancelled
    assert pair.connection.calls == {}


def test_copies_are_made_once(clients: Clients) -> None:
    pair = clients.connect()
    clients.answer(pair, 1)
    clients(0.0)
    pieces = list(pair.connection.http2.streams.open[1].queue.pieces)  # type: ignore[union-attr]
    pair.connection.keep_unsent()
    again = list(pair.connection.http2.streams.open[1].queue.pieces)  # type: ignore[union-attr]
    assert all(before is after for before, after in zip(pieces, again, strict=True))
    assert pair.connection.num_kept == pair.connection.num_unsent

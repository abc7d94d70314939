"""frontend/http/outgoing.py: what becomes of a worker's block when a response goes out of it."""

import logging
import select
import socket
from collections.abc import Iterator

import pytest

from shoal.frontend.http.connection import Chunks, HttpConnection
from shoal.frontend.http.outgoing import OutgoingResponses
from shoal.frontend.http.responses import JOIN_BYTES
from shoal.frontend.kept_memory import HOLD_S, SEND_S
from shoal.request import InferResponse
from tests.frontend.lane_star import GRID, ONE, Star


def respond(star: Star, outgoing: OutgoingResponses, connection: HttpConnection, nbytes: int) -> bool:
    """Answer a request with so many bytes out of a worker's block."""
    number = star.submit("grid", GRID, ONE).number
    star.seen()
    star.bell.clear()
    reply = star.reply(number, InferResponse((), {}), bytes([number]) * nbytes, nbytes)
    assert reply.block is not None
    chunks: Chunks = [b"head", reply.block[:nbytes]]
    connection.release = number
    return outgoing.send(connection, chunks, 0.0)


def is_woken(star: Star) -> bool:
    """Whether the batcher is rung for what it was told: one RELEASE."""
    assert (star.num_waiting(), star.port.num_held) == (1, 0)
    return bool(select.select([star.bell], [], [], 0)[0])


@pytest.fixture
def outgoing(star: Star) -> Iterator[OutgoingResponses]:
    with select.epoll() as poller:
        yield OutgoingResponses(star.port, poller, lambda _connection: pytest.fail("it was closed"))


@pytest.mark.parametrize("nbytes", [8, 2 * JOIN_BYTES])
def test_a_response_that_leaves_at_once_gives_its_block_back_and_wakes_no_process(
    star: Star, outgoing: OutgoingResponses, nbytes: int
) -> None:
    ours, client = socket.socketpair()
    with ours, client:
        assert respond(star, outgoing, HttpConnection(ours, 0.0, 0.0), nbytes)
        assert len(client.recv(1 << 20)) == 4 + nbytes
    assert not is_woken(star)


def test_the_block_of_a_response_that_takes_longer_is_given_back_promptly(star: Star) -> None:
    ours, client = socket.socketpair()
    with ours, client, select.epoll() as poller:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        poller.register(ours, 0)
        outgoing = OutgoingResponses(star.port, poller, lambda _: pytest.fail("it was closed"))
        connection = HttpConnection(ours, 0.0, 0.0)
        assert not respond(star, outgoing, connection, 2 * JOIN_BYTES)
        assert star.port.num_held == 1
        received = len(client.recv(1 << 20))
        while not outgoing.send_rest(connection, 0.0):
            received += len(client.recv(1 << 20))
        assert received + len(client.recv(1 << 20)) == 4 + 2 * JOIN_BYTES
    assert is_woken(star)


# --- a worker lacks memory ---

NBYTES = 2 * JOIN_BYTES
#: The worker of the star, and another.
WORKER, ANOTHER = {9}, {8}


class Slow:
    """A lane's way out, and clients that read nothing until they are told to."""

    def __init__(self, star: Star) -> None:
        self.star = star
        self.poller = select.epoll()
        self.outgoing = OutgoingResponses(star.port, self.poller, self._close)
        self.closed: list[int] = []
        self.connections: list[HttpConnection] = []
        self.clients: list[socket.socket] = []

    def give_room(self, num_copies: int) -> None:
        """Each client's kernel takes some of its response: room for the rest of so many."""
        self.outgoing.kept.most_bytes = num_copies * NBYTES

    def _close(self, connection: HttpConnection) -> None:
        self.outgoing.release(connection)
        self.closed.append(self.connections.index(connection))
        connection.socket.close()

    def answer(self, now_s: float = 0.0) -> HttpConnection:
        ours, client = socket.socketpair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.poller.register(ours, 0)
        connection = HttpConnection(ours, 0.0, 0.0)
        self.connections.append(connection)
        self.clients.append(client)
        number = self.star.submit("grid", GRID, ONE).number
        self.star.seen()
        reply = self.star.reply(number, InferResponse((), {}), bytes([number]) * NBYTES, NBYTES + 4096)
        assert reply.block is not None
        connection.release = number
        assert not self.outgoing.send(connection, [b"head", reply.block[:NBYTES]], now_s)
        return connection

    @property
    def holding(self) -> list[int]:
        """Who holds a worker's block."""
        return [place for place, each in enumerate(self.connections) if each.release]

    def read(self, place: int) -> bytes:
        connection, received = self.connections[place], self.clients[place].recv(1 << 20)
        while not self.outgoing.send_rest(connection, 0.0):
            received += self.clients[place].recv(1 << 20)
        return received + self.clients[place].recv(1 << 20)

    def end(self) -> None:
        for each in (*[each.socket for each in self.connections], *self.clients):
            each.close()
        self.poller.close()


@pytest.fixture
def slow(star: Star) -> Iterator[Slow]:
    slow = Slow(star)
    yield slow
    slow.end()


def test_what_is_recalled_is_copied_at_once_and_leaves_whole(star: Star, slow: Slow) -> None:
    slow.give_room(2)
    for _ in range(2):
        slow.answer()
    star.bell.clear()
    slow.outgoing.recall(ANOTHER, 0.0, is_urgent=True)
    assert slow.holding == [0, 1]
    slow.outgoing.recall(WORKER, 0.0, is_urgent=False)
    assert slow.holding == []
    assert is_woken(star)
    memory = star.worker_slab.open(star.replied)
    memory[:] = b"?" * len(memory)  # it is another result's now
    assert [slow.read(place) for place in range(2)] == [b"head" + bytes([place + 1]) * NBYTES for place in range(2)]


def test_beyond_the_bound_blocks_stay_until_there_is_no_other_memory(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    slow.give_room(1)
    for now_s in (0.0, 0.1, 0.2, HOLD_S):
        slow.answer(now_s)
    slow.outgoing.recall(WORKER, 0.3, is_urgent=False)
    slow.outgoing.recall(WORKER, 0.3, is_urgent=True)  # none has had its time
    assert (slow.holding, slow.closed) == ([1, 2, 3], [])
    with caplog.at_level(logging.WARNING):
        slow.outgoing.recall(WORKER, 0.2 + HOLD_S, is_urgent=True)
    assert slow.closed == [0, 1, 2]  # the first, whose copy made room, and so on
    assert slow.holding == []
    assert slow.read(3) == b"head" + bytes([4]) * NBYTES
    slow.outgoing.given_up.log(0.2 + 2 * HOLD_S)
    told = [record.getMessage().partition(": ")[2].partition(" (")[0] for record in caplog.records]
    assert told == [f"ended {number} connections of clients that read too slowly, longest first" for number in (1, 2)]


def test_one_response_that_is_larger_than_the_bound_costs_no_other(slow: Slow) -> None:
    slow.give_room(0)
    kept = slow.answer()
    slow.answer()
    kept.keep_unsent()
    slow.outgoing.recall(WORKER, HOLD_S, is_urgent=False)
    assert slow.closed == []
    slow.outgoing._port.release(kept.release)
    kept.release = 0
    slow.outgoing.recall(WORKER, HOLD_S, is_urgent=True)
    assert slow.closed == [1]


def test_who_reads_slowly_without_room_for_a_copy_goes_on_and_who_reads_nothing_ends(slow: Slow) -> None:
    slow.give_room(0)
    reading, silent = slow.answer(), slow.answer()
    assert slow.outgoing.hold_no_longer(reading, HOLD_S)
    assert slow.outgoing.hold_no_longer(silent, HOLD_S)
    assert slow.holding == [0, 1]
    assert len(slow.clients[0].recv(1 << 20)) > 0
    assert not slow.outgoing.send_rest(reading, SEND_S)
    assert slow.outgoing.hold_no_longer(reading, HOLD_S + SEND_S)
    assert not slow.outgoing.hold_no_longer(silent, HOLD_S + SEND_S)

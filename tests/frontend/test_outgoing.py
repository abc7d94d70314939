"""frontend/outgoing.py: what becomes of a worker's block when a response goes out of it."""

import select
import socket
from collections.abc import Iterator

import pytest

from shoal.frontend.connection import Chunks, Connection
from shoal.frontend.outgoing import Outgoing
from shoal.frontend.submission import JOIN_BYTES
from shoal.request import InferResponse
from tests.frontend.lane_star import GRID, ONE, Star


@pytest.fixture
def star() -> Iterator[Star]:
    star = Star()
    yield star
    star.bell.close()


def respond(star: Star, outgoing: Outgoing, connection: Connection, nbytes: int) -> bool:
    """Answer a request with so many bytes out of a worker's block."""
    number = star.submit("grid", GRID, ONE).number
    star.seen()
    star.bell.clear()
    reply = star.reply(number, InferResponse((), {}), b"", nbytes)
    assert reply.block is not None
    chunks: Chunks = [b"head", reply.block[:nbytes]]
    connection.release = number
    return outgoing.send(connection, chunks, 0.0)


def is_woken(star: Star) -> bool:
    """Whether the batcher is rung for what it was told: one RELEASE."""
    assert (star.num_waiting(), star.port.num_held) == (1, 0)
    return bool(select.select([star.bell], [], [], 0)[0])


@pytest.fixture
def outgoing(star: Star) -> Iterator[Outgoing]:
    with select.epoll() as poller:
        yield Outgoing(star.port, poller, lambda _connection: pytest.fail("it was closed"))


@pytest.mark.parametrize("nbytes", [8, 2 * JOIN_BYTES])
def test_a_response_that_leaves_at_once_gives_its_block_back_and_wakes_nobody(
    star: Star, outgoing: Outgoing, nbytes: int
) -> None:
    ours, client = socket.socketpair()
    with ours, client:
        assert respond(star, outgoing, Connection(ours, 0.0, 0.0), nbytes)
        assert len(client.recv(1 << 20)) == 4 + nbytes
    assert not is_woken(star)


def test_the_block_of_a_response_that_takes_longer_is_given_back_promptly(star: Star) -> None:
    ours, client = socket.socketpair()
    with ours, client, select.epoll() as poller:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        poller.register(ours, 0)
        outgoing = Outgoing(star.port, poller, lambda _: pytest.fail("it was closed"))
        connection = Connection(ours, 0.0, 0.0)
        assert not respond(star, outgoing, connection, 2 * JOIN_BYTES)
        assert star.port.num_held == 1
        received = len(client.recv(1 << 20))
        while not outgoing.send_rest(connection, 0.0):
            received += len(client.recv(1 << 20))
        assert received + len(client.recv(1 << 20)) == 4 + 2 * JOIN_BYTES
    assert is_woken(star)

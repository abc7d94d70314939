"""frontend/road/uploads.py: real sockets, a clock that is handed in."""

import gc
import selectors
import socket
import struct
import weakref
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.util import close_graceful

from shoal.frontend.grpc.tunnel import unpack_head
from shoal.frontend.road.arrival import Framing
from shoal.frontend.road.connection import RoadConnection, parsed
from shoal.frontend.road.endpoints import Endpoints
from shoal.frontend.road.refusals import refusal
from shoal.frontend.road.uploads import Uploads
from shoal.frontend.state import ServerState
from shoal.frontend.upload_budget import NoUploadMemoryError, UploadBudget, UploadTimeoutError, UploadTooLargeError

LIMIT = 4000
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


class Road:
    """The event loop, with what it calls."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.poller = selectors.DefaultSelector()
        state = ServerState(upload_timeout_s=60.0, min_upload_rate=10, upload_budget=UploadBudget(LIMIT))
        self.budget = state.upload_budget
        self.arrived: list[RoadConnection] = []
        self.closed: list[RoadConnection] = []
        nothing: Any = None
        self.uploads = Uploads(
            self.poller,
            state,
            self.judge,
            self.arrived.append,
            partial(refusal, Endpoints(state, nothing)),
            self.closed.append,
            lambda: self.now_s,
        )
        self.clients: list[socket.socket] = []

    def judge(self, connection: RoadConnection, head: bytes) -> Framing | None:
        found = parsed(head, connection)
        return None if found is None else Framing(found.length, LIMIT * 2, found.expects_continue)

    def connect(self, data: bytes = b"", address: str = "10.0.0.1") -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        listener.close()
        connection = RoadConnection(Config(), accepted, (address, 5), accepted.getsockname(), is_lent=True)
        self.clients.append(client)
        self.uploads.add(connection, data, 75.0)
        return client

    def send(self, client: socket.socket, data: bytes) -> None:
        client.sendall(data)
        self.step()

    def step(self) -> None:
        """Handle what has come, and wait until something has."""
        for key, _ in self.poller.select(60.0):
            key.data(key.fileobj)

    def at(self, now_s: float) -> None:
        self.now_s = now_s
        self.uploads.expire()


@pytest.fixture
def road() -> Iterator[Road]:
    road = Road()
    yield road
    for each in road.clients:
        each.close()
    for key in list(road.poller.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    for connection in road.arrived:
        connection.sock.close()
    road.poller.close()


def body_of(connection: RoadConnection) -> bytes:
    """The body of the next request, as gunicorn reads it."""
    parser: Any = connection.parser
    return bytes(next(parser).body.read())


def received(client: socket.socket) -> bytes:
    client.setblocking(False)
    try:
        return client.recv(65536)
    except BlockingIOError:
        return b""


def test_a_connection_that_the_kernel_does_not_watch_is_closed(road: Road) -> None:
    """Here the kernel watches it already. An OSError would end the road, with all its requests."""
    ours, theirs = socket.socketpair()
    poller: Any = road.poller
    poller._selector.register(ours.fileno())
    road.uploads.add(RoadConnection(Config(), ours, ("10.0.0.1", 5), ("", 0), is_lent=True), POST, 75.0)
    with theirs:
        assert theirs.recv(1) == b""
    assert ([each.sock for each in road.closed], len(road.poller.get_map()), road.budget.nbytes) == ([ours], 0, 0)


def test_a_request_arrives_once_with_what_follows_it(road: Road) -> None:
    client = road.connect()
    whole = POST + b"Content-Length: 4\r\n\r\nabcd"
    for byte in whole[:-1]:
        road.send(client, bytes([byte]))
        assert not road.arrived
    road.send(client, whole[-1:] + b"GET")
    (connection,) = road.arrived
    assert (body_of(connection), connection.received.take_rest()) == (b"abcd", b"GET")
    assert road.budget.nbytes == len(whole) + 3
    road.uploads.done(connection)
    assert road.budget.nbytes == 0


def test_gunicorn_that_wants_more_than_came_finds_the_end(road: Road) -> None:
    client = road.connect(POST + b"Content-Length: 4\r\n\r\nab")
    client.shutdown(socket.SHUT_WR)
    road.step()
    (connection,) = road.arrived
    assert body_of(connection) == b"ab"
    assert connection.received.is_short


def test_a_connection_ends_that_gunicorn_has_closed(road: Road) -> None:
    client = road.connect(POST + b"Content-Length: 0\r\n\r\n")
    (connection,) = road.arrived
    client.close()
    close_graceful(connection.sock)  # as it does where a response fails of which something was sent
    road.uploads.end(connection)
    assert road.closed == [connection]


def test_deadlines(road: Road) -> None:
    idle, head, stalled, slow = road.connect(), road.connect(POST), road.connect(), road.connect()
    road.send(stalled, POST + b"Content-Length: 2000\r\n\r\n")
    road.send(slow, POST + b"Content-Length: 2000\r\n\r\n" + bytes(100))
    road.at(109.9)
    assert not received(head)
    road.at(110.5)
    assert b" 408 Request Timeout\r\n" in received(head)
    road.at(159.0)
    assert not received(stalled)
    road.at(160.5)
    answer = received(stalled)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"0 bytes in 60 s" in answer
    assert b"--upload-timeout-secs" in answer
    assert b"\r\nConnection: close\r\n" in answer
    assert not received(slow)  # a hundred bytes are ten seconds more
    road.at(169.5)
    assert not received(slow)
    road.at(170.5)
    assert b"100 bytes in 70 s" in received(slow)
    assert len(road.closed) == 2  # those that lingered for two seconds
    assert idle.send(b"x") == 1
    road.at(175.5)
    assert len(road.closed) == 4
    assert road.budget.nbytes == 0


def test_an_expectation_is_met_unless_the_body_has_begun(road: Road) -> None:
    expecting = POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    waiting, sending = road.connect(expecting), road.connect(expecting + b"a")
    assert received(waiting) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert received(sending) == b""
    road.send(waiting, b"ab")
    (connection,) = road.arrived
    assert body_of(connection) == b"ab"


@pytest.mark.parametrize("announced", [b"Content-Length: 4001\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nfa1\r\n"])
def test_a_body_larger_than_the_budget_is_refused(road: Road, announced: bytes) -> None:
    client = road.connect(POST + announced)
    if b"chunked" in announced:
        road.send(client, bytes(4001))
    assert received(client).startswith(b"HTTP/1.1 413 ")
    assert road.budget.nbytes == 0


def test_the_largest_of_the_address_that_holds_most_is_refused(road: Road) -> None:
    head = POST + b"Content-Length: 3000\r\n\r\n"
    many = [road.connect(head + bytes(300 + number), "10.0.0.2") for number in range(6)]
    one = road.connect(head + bytes(1900), "10.0.0.3")
    assert [bool(received(each)) for each in many] == [False] * 5 + [True]
    assert not received(one)
    assert road.budget.nbytes <= LIMIT


def test_a_connection_whose_bytes_come_after_its_end_ends_once(road: Road) -> None:
    """One pass of the loop has events of both; that of one refuses the other, whose client is gone."""
    head = POST + b"Content-Length: 3000\r\n\r\n"
    gone, one = road.connect(head + bytes(2900), "10.0.0.2"), road.connect(head + bytes(900), "10.0.0.3")
    events = {key.fileobj.getpeername(): key for key in road.poller.get_map().values()}  # type: ignore[union-attr]
    passed = [events[one.getsockname()], events[gone.getsockname()]]
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    one.sendall(bytes(1000))
    for key in passed:
        key.data(key.fileobj)
    assert len(road.closed) == 1


def test_whole_requests_are_not_refused(road: Road) -> None:
    road.connect(POST + b"Content-Length: 3800\r\n\r\n" + bytes(3800))
    late = road.connect(POST + b"Content-Length: 3000\r\n\r\n" + bytes(1000))
    answer: Any = received(late)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in answer
    assert len(road.arrived) == 1


def test_a_call_of_grpc_is_refused_as_its_lane_reads_it() -> None:
    for error, status in (
        (NoUploadMemoryError(5), 8),
        (UploadTooLargeError(6, 5), 8),
        (UploadTimeoutError("late"), 14),
    ):
        nothing: Any = None
        call: Any = SimpleNamespace(is_tunnel=True)
        answer = unpack_head(refusal(Endpoints(ServerState(), nothing), call, error))
        assert answer is not None
        assert (answer.status, answer.message, answer.response_nbytes) == (status, str(error), 0)


def test_a_road_that_drains_closes_what_has_not_begun_for_two_seconds(road: Road) -> None:
    idle, begun = road.connect(), road.connect(POST)
    road.uploads.drain()
    road.at(101.9)
    assert not road.closed
    late = road.connect()  # its last response was sent after the draining had begun
    road.at(102.5)
    assert len(road.closed) == 1
    assert received(idle) == b""
    road.send(late, POST + b"\r\n")
    road.send(begun, b"\r\n")
    assert len(road.arrived) == 2
    road.connect()
    road.at(104.6)
    assert len(road.closed) == 2


@pytest.mark.parametrize("data", [POST, POST + b"Content-Length: 100\r\n\r\nab"], ids=["half a head", "half a body"])
def test_a_connection_is_freed_with_its_end(road: Road, data: bytes) -> None:
    """And with it the bytes that it had: 180 MiB of closed connections waited for the collector of cycles."""
    gc.disable()
    try:
        road.connect(data).close()
        road.step()
        (connection,) = road.arrived
        left = weakref.ref(connection)
        road.arrived.clear()
        road.uploads.end(connection)
        road.step()
        assert road.closed == [connection]
        road.closed.clear()
        del connection
        assert left() is None
    finally:
        gc.enable()

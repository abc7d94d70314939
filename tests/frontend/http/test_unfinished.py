"""Requests that a lane has in part: generated beginnings on a clock that is handed in, and a lane with real sockets
whose loop and clock are the test's."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend import handover
from shoal.frontend.http.connection import HttpConnection
from shoal.frontend.http.http_head import Head
from shoal.frontend.http.http_lane import HttpLane
from shoal.frontend.http.incoming import BODY_S, BODY_S_PER_MIB, UnfinishedRequests
from shoal.frontend.lane_loop import HEAD_S, GunicornHandle
from tests.end_to_end.raw_client import post
from tests.frontend.grpc.connection_pair import plain_ends
from tests.frontend.lane_star import GRID, Star

START_S = 1000.0
SMALL = post("grid", GRID.ljust(2000))
LARGE = post("grid", GRID.ljust(100_000))
HEAD_BYTES = SMALL.index(b"\r\n\r\n") + 4


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.floats(0, 5)), max_size=200))
def test_bytes_are_bounded_and_time_is_counted_from_the_first(pieces: list[tuple[int, int, float]]) -> None:
    """Pieces of requests on ten connections: one that finds no room leaves the lane."""
    unfinished, now_s = UnfinishedRequests(most_bytes=100), START_S
    readers: list[Any] = [SimpleNamespace(buffer=b"", num_counted=0, begun_s=0.0, deadline_s=0.0) for _ in range(10)]
    for index, nbytes, later_s in pieces:
        now_s += later_s
        reader = readers[index]
        if not reader.buffer:
            reader.begun_s, reader.deadline_s = now_s, now_s + HEAD_S
        unfinished.release(reader)
        if not unfinished.keep(reader, reader.buffer + bytes(nbytes), BODY_S):
            reader.buffer = b""
        assert unfinished.nbytes == sum(len(each.buffer) for each in readers) <= 100
        assert not reader.buffer or reader.deadline_s == reader.begun_s + BODY_S


def nbytes_in_block(connection: HttpConnection) -> int:
    """Bytes of a request, its head included, whose body is being received into a block."""
    head = connection.head
    return len(head.raw) + connection.received if isinstance(head, Head) and connection.block is not None else 0


class Lane:
    """A lane, its clients, and the road's end of what it hands over."""

    def __init__(self, road: socket.socket) -> None:
        star = Star(slab_nbytes=1 << 20)
        place: Any = SimpleNamespace(port=star.port, request_timeout_s=60.0)
        front_end: Any = SimpleNamespace(state=star.state, place=place)
        self.port = star.port
        self.lane = HttpLane(front_end, GunicornHandle([], -1, lambda: True, lambda: None))
        self.lane.now_s = START_S
        self.clients: list[socket.socket] = []
        self._road = road

    def connect(self) -> socket.socket:
        accepted, client = plain_ends()
        self.clients.append(client)
        self.lane._add(accepted, b"", is_new=True)
        return client

    def send(self, client: socket.socket, data: bytes) -> None:
        """Have the lane read these bytes."""
        client.sendall(data)
        wanted = self.num_kept + len(data)
        while self.num_kept < wanted:
            events = self.lane._poller.poll(60.0)
            assert events, "the lane waits for nothing"
            for fd, event in events:
                self.lane._serve(self.lane._connections[fd], event)

    @property
    def connections(self) -> list[HttpConnection]:
        return list(self.lane._connections.values())

    @property
    def num_kept(self) -> int:
        """Bytes of requests that are in the lane."""
        return sum([len(each.buffer) + nbytes_in_block(each) for each in self.connections])

    def at(self, now_s: float) -> None:
        self.lane.now_s = now_s
        self.lane._tick()

    def on_the_road(self) -> list[bytes]:
        """The bytes of each connection that was handed over since."""
        found = []
        while (received := handover.receive(self._road)) is not None:
            found.append(received[1])
            received[0].close()
        return found


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lane]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for each in (ours, theirs):
        each.setblocking(False)
    monkeypatch.setenv("SHOAL_SEND_FD", str(ours.detach()))
    monkeypatch.delenv("SHOAL_RECEIVE_FD", raising=False)
    with theirs:
        lane = Lane(theirs)
        yield lane
        for client in lane.clients:
            client.close()
        for connection in lane.connections:
            lane.lane._close(connection)
        while lane.lane._sources.is_busy:
            lane.on_the_road()
            lane.lane._sources._road.flush()
        lane.on_the_road()
        lane.lane._sources.end()
    lane.lane._poller.close()


def test_a_body_that_comes_byte_by_byte_takes_the_road_in_time(lane: Lane) -> None:
    client = lane.connect()
    lane.send(client, SMALL[: HEAD_BYTES + 7])
    for number in range(3):
        lane.at(START_S + number * BODY_S / 4)
        lane.send(client, b"x")
    lane.at(START_S + BODY_S - 0.1)
    assert (lane.on_the_road(), lane.lane._unfinished.nbytes) == ([], HEAD_BYTES + 10)
    lane.at(START_S + BODY_S)
    assert lane.on_the_road() == [SMALL[: HEAD_BYTES + 7] + b"xxx"]
    assert (lane.connections, lane.lane._unfinished.nbytes) == ([], 0)


def test_a_large_body_that_is_late_takes_the_road_and_its_block_is_free(lane: Lane) -> None:
    client = lane.connect()
    lane.send(client, LARGE[:70_000])
    late_s = START_S + HEAD_S + BODY_S_PER_MIB * (len(LARGE) >> 20)
    lane.at(late_s - 0.1)
    assert (lane.on_the_road(), lane.port.slab.num_taken) == ([], 1)
    lane.at(late_s)
    assert lane.on_the_road() == [LARGE[:70_000]]
    assert (lane.connections, lane.port.slab.num_taken) == ([], 0)


def test_a_head_that_is_late_is_refused(lane: Lane) -> None:
    client = lane.connect()
    lane.send(client, SMALL[:20])
    lane.at(START_S + HEAD_S - 0.1)
    lane.send(client, SMALL[20:30])
    lane.at(START_S + HEAD_S)
    answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n")
    assert b"the head of the request has not come within 10 s" in answer
    assert (lane.connections, lane.on_the_road(), lane.lane._unfinished.nbytes) == ([], [], 0)


def test_beginnings_beyond_the_lanes_memory_take_the_road_at_once(lane: Lane) -> None:
    lane.lane._unfinished = UnfinishedRequests(most_bytes=2 * len(SMALL))
    for _ in range(2):
        lane.send(lane.connect(), SMALL[:-1])
    third = lane.connect()
    third.sendall(SMALL[:-1])
    ((fd, event),) = lane.lane._poller.poll(60.0)
    lane.lane._serve(lane.lane._connections[fd], event)
    assert lane.on_the_road() == [SMALL[:-1]]
    assert len(lane.connections) == 2


def test_what_the_road_does_not_take_is_bounded_too(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is full with a few; one more waits here, and the next is refused."""
    monkeypatch.setattr("shoal.frontend.http.http_lane.MAX_UNFINISHED_BYTES", len(SMALL))
    lane.lane._unfinished = UnfinishedRequests(most_bytes=0)
    answers: list[bytes] = []
    while not answers:
        client = lane.connect()
        client.sendall(SMALL[:-1])
        ((fd, event),) = lane.lane._poller.poll(60.0)
        lane.lane._serve(lane.lane._connections[fd], event)
        if lane.lane._sources.waiting_nbytes and not lane.connections:
            client.setblocking(False)
            try:
                answers.append(client.recv(65536))
            except BlockingIOError:
                continue
    assert answers[0].startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in answers[0]
    assert lane.lane._sources.waiting_nbytes == len(SMALL) - 1


def test_a_client_that_leaves_gives_its_memory_back(lane: Lane) -> None:
    client = lane.connect()
    lane.send(client, SMALL[:-1])
    lane.lane._close(lane.connections[0])
    assert lane.lane._unfinished.nbytes == 0


def test_a_stopping_lane_refuses_what_has_not_come(lane: Lane) -> None:
    """The road may have ended by then."""
    small, large, idle = lane.connect(), lane.connect(), lane.connect()
    lane.send(small, SMALL[:-1])
    lane.send(large, LARGE[:-1])
    lane.lane._stops_at_s = START_S + 30.0
    lane.lane._begin_to_stop()
    lane.at(START_S + HEAD_S)
    for client in (small, large):
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the server ends" in answer
    assert idle.recv(10) == b""
    assert (lane.on_the_road(), lane.connections, lane.port.slab.num_taken) == ([], [], 0)

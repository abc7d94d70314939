"""frontend/grpc/road_call.py: how long the road waits for a client that does not read what it answers."""

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.frontend.grpc.inbox import LargeMessage
from shoal.frontend.grpc.opening import Opening
from shoal.frontend.grpc.road_call import RoadCall
from shoal.frontend.grpc.service import find
from shoal.frontend.kept_memory import KeptMemory
from tests.frontend.grpc.connection_pair import Pair
from tests.frontend.grpc.http2.peer import PREFACE, SETTINGS, frame, frames_in, number

INFER = "/inference.GRPCInferenceService/ModelInfer"
MIB = 1 << 20
#: Of the response, which the client's windows let go by 65,535 bytes at a time.
NBYTES = 8 * MIB


class Lane:
    """What such a call asks of its lane."""

    def __init__(self) -> None:
        self.road: socket.socket | None = None
        self.protocol = None

    def hand_over(self, theirs: socket.socket, _data: bytes) -> None:
        theirs.settimeout(10)
        self.road = theirs

    def listen(self, _listener: Any) -> None: ...

    def watch(self, _fd: int, _events: int) -> None: ...

    def forget(self, _listener: Any) -> None: ...

    def has_output(self, _connection: Any) -> None: ...


class Reader:
    """A client that lets go out what it wants of a large response, and the call."""

    def __init__(self) -> None:
        self.pair = Pair(PREFACE + frame(SETTINGS, 0, 0), KeptMemory())
        self.pair.client.settimeout(10)
        self.pair.call(1)
        lane: Any = Lane()
        opening = Opening(find(INFER), {}, None, "identity", "identity", lane.protocol)
        self.call = RoadCall(lane, self.pair.connection, 1, opening, LargeMessage(0, b"", is_compressed=False), 1e9)
        self.pair.connection.calls[1] = self.call
        self.road = lane.road
        self.road.setblocking(False)
        self.unsent = memoryview(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % NBYTES + bytes(NBYTES))

    def go_on(self, now_s: float, credit: int = 0) -> None:
        """The client takes so much more; the road sends what it can; half a second passes."""
        if credit:
            self.pair.connection.http2.receive(frame(8, 0, 0, number(credit)) + frame(8, 0, 1, number(credit)), now_s)
        while self.is_served and self.call._events & select.EPOLLIN:
            try:
                self.unsent = self.unsent[self.road.send(self.unsent[:MIB]) :]
            except BlockingIOError:
                pass
            self.call.serve(select.EPOLLIN)
        self.pair.connection.flush(now_s)
        if self.is_served:
            self.call.expire(now_s)

    @property
    def is_served(self) -> bool:
        return 1 in self.pair.connection.calls


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.pair.connection.close()
    reader.pair.client.close()
    reader.road.close()


def test_a_slow_client_is_waited_for_while_there_is_room(reader: Reader) -> None:
    for second in range(100):
        reader.go_on(second, credit=20_000)
        if second % 10 == 0:
            reader.pair.read()
    assert reader.is_served


def test_a_client_that_reads_nothing_is_given_up_in_the_end(reader: Reader) -> None:
    for second in range(31):
        reader.go_on(second)
    assert reader.is_served
    reader.go_on(31.0)
    assert not reader.is_served
    assert any(b"does not read" in each.payload for each in frames_in(_all_of(reader)))


def test_without_room_it_is_given_up_after_two_seconds(reader: Reader) -> None:
    reader.go_on(0.0)
    reader.pair.kept.most_bytes = reader.pair.kept.nbytes
    reader.go_on(1.0)
    reader.go_on(2.5, credit=20_000)
    assert reader.is_served
    reader.go_on(3.0, credit=20_000)
    assert not reader.is_served


def _all_of(reader: Reader) -> bytes:
    reader.pair.connection.flush(31.0)
    reader.pair.connection.shut()
    received = b""
    while data := reader.pair.read():
        received += data
    return received

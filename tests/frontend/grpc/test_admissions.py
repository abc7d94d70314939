"""frontend/grpc/admissions.py and the road's end of it: real sockets, the test's clock, and the test as both loops."""

import selectors
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.api_keys import ApiKey, KeyLimits
from shoal.errors import ShoalError, UnavailableError
from shoal.frontend.access.key_limits import KeyLimitError, KeyUses
from shoal.frontend.grpc.admissions import ANSWER_S, AdmissionClient, CallSocket
from shoal.frontend.grpc.call import AskingCall
from shoal.frontend.road.admissions import AdmissionServer

S = 1_000_000_000
NARROW = ApiKey("narrow", b"digest", ("infer",), limits=KeyLimits(max_in_flight=2))
SLOW = ApiKey("slow", b"digest", ("infer",), limits=KeyLimits(requests_per_second=0.5, burst=1))


class Stream(AskingCall):
    """What its questions were answered."""

    def __init__(self) -> None:
        self.admitted: list[int] = []
        self.refused: list[ShoalError] = []

    def decided(self, number: int, error: ShoalError | None) -> None:
        if error is None:
            self.admitted.append(number)
        else:
            self.refused.append(error)


class Road:
    def __init__(self) -> None:
        self.now_ns = 7 * S
        self.uses = KeyUses()
        self.poller = selectors.DefaultSelector()
        self.admissions = AdmissionServer(self.poller, self.uses, lambda: self.now_ns)

    def step(self) -> None:
        for key, _ in self.poller.select(0) if self.poller.get_map() else ():
            key.data(key.fileobj)

    def in_flight(self, key: ApiKey) -> int:
        return self.uses.uses[key.name].num_in_flight


class Lane:
    """A lane whose road is there, unless `is_away`."""

    def __init__(self, road: Road) -> None:
        self.now_s = 100.0
        self.is_away = False
        self.admissions = AdmissionClient(self)
        self.sent: list[socket.socket] = []
        self._road = road
        self._poller = selectors.DefaultSelector()

    def hand_over(self, theirs: socket.socket, data: bytes) -> None:
        self.sent.append(theirs)
        if not self.is_away:
            assert self._road.admissions.take_over(theirs, data)

    def listen(self, listener: CallSocket) -> None:
        self._poller.register(listener.fd, selectors.EVENT_READ)

    def forget(self, listener: CallSocket) -> None:
        self._poller.unregister(listener.fd)

    def settle(self) -> None:
        """All that was said is heard, on both sides."""
        self._road.step()
        if self._poller.get_map() and self._poller.select(0):
            self.admissions.serve(selectors.EVENT_READ)

    def end(self) -> None:
        self.admissions._disconnect()
        self._poller.close()
        for each in self.sent:
            each.close()


@pytest.fixture
def road() -> Iterator[Road]:
    road = Road()
    yield road
    road.step()  # the lanes have ended
    assert not road.poller.get_map()
    road.poller.close()


@pytest.fixture
def lane(road: Road) -> Iterator[Lane]:
    lane = Lane(road)
    yield lane
    lane.admissions._disconnect()
    road.step()
    lane.end()


def test_requests_in_flight_are_counted_until_they_end(road: Road, lane: Lane) -> None:
    stream = Stream()
    for _ in range(3):
        lane.admissions.ask(stream, NARROW)
    lane.settle()
    assert (len(stream.admitted), len(stream.refused), road.in_flight(NARROW)) == (2, 1, 2)
    (error,) = stream.refused
    assert (type(error), error.grpc_status, error.retry_after_s) == (KeyLimitError, 8, 1)
    assert "API key 'narrow' has 2 requests in flight" in str(error)
    for _ in range(2):
        lane.admissions.end(stream.admitted[0])
    for _ in range(2):
        lane.admissions.ask(stream, NARROW)
    lane.settle()
    assert (len(stream.admitted), len(stream.refused), road.in_flight(NARROW)) == (3, 2, 2)


def test_a_rate_is_the_keys_whichever_lane_asks(road: Road, lane: Lane) -> None:
    stream, other = Stream(), Lane(road)
    lane.admissions.ask(stream, SLOW)
    lane.settle()
    other.admissions.ask(stream, SLOW)
    other.settle()
    assert (len(stream.admitted), [error.retry_after_s for error in stream.refused]) == (1, [2])
    road.now_ns += 2 * S
    other.admissions.ask(stream, SLOW)
    other.settle()
    assert (len(stream.admitted), road.in_flight(SLOW)) == (2, 2)
    other.admissions._disconnect()
    road.step()
    assert road.in_flight(SLOW) == 1  # the other lane's has ended with the lane
    other.end()


def test_a_stream_that_ends_while_it_asks_holds_nothing(road: Road, lane: Lane) -> None:
    stream = Stream()
    lane.admissions.end(lane.admissions.ask(stream, NARROW))
    lane.settle()
    assert (stream.admitted, stream.refused, road.in_flight(NARROW)) == ([], [], 0)


def test_without_an_answer_a_request_is_refused_in_time(lane: Lane) -> None:
    stream = Stream()
    lane.is_away = True
    lane.admissions.ask(stream, NARROW)
    lane.admissions.expire(lane.now_s + ANSWER_S - 0.1)
    assert not stream.refused
    lane.admissions.expire(lane.now_s + ANSWER_S)
    assert [type(error) for error in stream.refused] == [UnavailableError]


def test_a_road_that_ends_is_followed_by_another(road: Road, lane: Lane) -> None:
    stream = Stream()
    lane.is_away = True
    lane.admissions.ask(stream, NARROW)
    lane.sent[0].close()
    lane.settle()
    lane.is_away = False
    lane.admissions.ask(stream, NARROW)
    lane.admissions.expire(lane.now_s)  # what the old road has not answered
    lane.settle()
    assert (len(stream.admitted), len(stream.refused), road.in_flight(NARROW)) == (1, 1, 1)


def test_a_lane_that_does_not_read_holds_up_no_other(road: Road, lane: Lane) -> None:
    """What its socket does not take is not answered, and what it was granted ends with it."""
    stream = Stream()
    for _ in range(3000):
        lane.admissions.ask(stream, NARROW)
        road.step()
    assert road.in_flight(NARROW) == 2
    lane.admissions._disconnect()
    road.step()
    other, heard = Lane(road), Stream()
    other.admissions.ask(heard, NARROW)
    other.settle()
    assert (len(heard.admitted), road.in_flight(NARROW)) == (1, 1)
    other.admissions._disconnect()
    road.step()
    other.end()


def test_other_connections_are_none_of_these(road: Road) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with client, accepted:
        assert not road.admissions.take_over(accepted, b"admissions")  # a client that says what only a lane may
    ours: Any
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not road.admissions.take_over(ours, b"POST / HTTP/1.1\r\n")

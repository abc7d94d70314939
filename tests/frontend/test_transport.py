"""The road's transport over a real port: which memory a request gets; the test plays the batcher and the supervisor."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from shoal import log
from shoal.client.place import Place
from shoal.client.validation import PreparedInput
from shoal.control import Channel
from shoal.datatypes import BY_NAME
from shoal.errors import UnavailableError
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.state import ServerState
from shoal.frontend.transport import Answer, PortTransport
from shoal.frontend.v2.infer import PreparedRequest
from shoal.shm import segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, OVERSIZE, WORKER, Geometry
from shoal.shm.port import Port
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Slab


def pair(kind: int, owner: int, geometry: Geometry) -> tuple[Segment, SegmentView]:
    fd = segment.create(kind, owner, 1, geometry, sealed=True)
    view = SegmentView.attach(segment.read_only(fd))
    return Segment.attach(fd), view


class Surroundings:
    """Client 5 with a slab of 16 units, a batcher that is the test, a supervisor that is the test."""

    def __init__(self, state: ServerState, channels: tuple[Channel, Channel], bells: tuple[Doorbell, Doorbell]) -> None:
        self._state = state
        own, own_view = pair(CLIENT, 5, Geometry(16, 16 * 4096))
        link, link_view = pair(LINK, 1, Geometry(16, 0))
        self.reader, self.writer = RingReader(link, own_view), RingWriter(link, own_view)
        self.supervisor, channel = channels
        self.batcher_bell, bell = bells
        self.port = Port(own, link_view, self.batcher_bell, max_in_flight=2)
        worker, worker_view = pair(WORKER, 9, Geometry(0, 16 * 4096))
        self.results = Slab(worker)
        self.port.add_segment(9, worker_view)
        place = Place(self.port, bell, channel, state.models, request_timeout_s=10, answer_timeout_s=10)
        self.transport = PortTransport(FrontEnd(state, place))

    def prepared(self, nbytes: int) -> PreparedRequest:
        tensor = PreparedInput("INPUT0", BY_NAME["UINT8"], (nbytes,), memoryview(bytes(nbytes)))
        return PreparedRequest(self._state.models.lookup("simple", None), "", (tensor,), (), True, {}, 1, 0, 0, 0)

    def submitted(self) -> tuple[int, int]:
        """(number, block) of the one request that the batcher finds."""
        ((_, number, _, block, *_),) = self.reader.drain()
        return number, block

    def say(self, number: int, text: bytes = b"", *, more: bool, status: int = 0) -> None:
        """A reply of worker 9; without a text it says only that there are no more."""
        ref = 0
        if text:
            block = self.results.allocate(len(text))
            assert block is not None
            block.memory[: len(text)] = text
            ref = block.ref
        self.writer.push((4, number, status, ref, len(text), 0, 0, 0, 0, 0, 0, 0, int(more), 0, 0, 0))
        self.writer.publish()
        self.transport.shared.deliver()

    def records(self) -> list[tuple[int, ...]]:
        """What the batcher finds: kind, number, and the block in the fourth word."""
        return [(record[0], record[1], record[3]) for record in self.reader.drain()]

    def refuse(self, number: int) -> None:
        """The batcher's reply: 503, the queue is full."""
        self.writer.push((4, number, 5, 0, 0, 1, *[0] * 10))
        self.writer.publish()
        self.transport.shared.deliver()


@pytest.fixture
def surroundings(state: ServerState) -> Iterator[Surroundings]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(10)
    bells = Doorbell.create(), Doorbell.create()
    with here, there:
        yield Surroundings(state, (Channel(here), Channel(there)), bells)
    for bell in bells:
        bell.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def rung(surroundings: Surroundings) -> None:
    os.set_blocking(surroundings.batcher_bell.fd, True)
    os.eventfd_read(surroundings.batcher_bell.fd)


def test_up_to_a_quarter_of_the_slab_is_shared(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    future: Future[Answer] = pool.submit(surroundings.transport.infer, surroundings.prepared(4 * 4096 - 256))
    rung(surroundings)
    number, block = surroundings.submitted()
    assert block >> 40 == 5
    surroundings.refuse(number)
    assert isinstance(future.exception(), UnavailableError)
    assert surroundings.port.slab.num_taken == 0


def test_more_than_that_gets_a_segment_until_its_reply(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    future: Future[Answer] = pool.submit(surroundings.transport.infer, surroundings.prepared(4 * 4096))
    asked, _ = surroundings.supervisor.receive()
    assert (asked["op"], asked["request"], asked["model"]) == ("oversize", 1, 3)
    assert 4 * 4096 < asked["nbytes"] < 5 * 4096
    fd = segment.create(OVERSIZE, 80, 1, Geometry(0, 5 * 4096), sealed=True)
    surroundings.supervisor.send({"op": "oversize", "request": 1, "owner": 80}, [fd])
    os.close(fd)
    surroundings.transport.shared.receive()
    assert surroundings.supervisor.receive()[0] == {"op": "oversize_mapped", "owner": 80}
    surroundings.supervisor.send({"op": "oversize_ready", "owner": 80})
    surroundings.transport.shared.receive()
    rung(surroundings)
    number, block = surroundings.submitted()
    assert block == 0x000050_00000_00001
    assert surroundings.port.slab.num_taken == 0
    surroundings.refuse(number)
    assert isinstance(future.exception(), UnavailableError)
    assert surroundings.supervisor.receive()[0] == {"op": "oversize_gone", "owner": 80}


def test_no_segment_is_asked_for_where_too_much_is_in_flight(surroundings: Surroundings) -> None:
    for _ in range(2):
        surroundings.port.submit(3, surroundings.port.allocate(1), 0, 1, 0, 0)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        surroundings.transport.infer(surroundings.prepared(4 * 4096))
    surroundings.supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        surroundings.supervisor.receive()


def test_log_settings_are_in_force_and_told_before_they_are_acknowledged(
    surroundings: Surroundings, state: ServerState
) -> None:
    before = (log.logger.handlers[:], log.logger.level, log.logger.propagate)
    settings = {"log_verbose": 3, "log_info": True, "log_warning": True, "log_error": True, "log_format": "default"}
    try:
        surroundings.supervisor.send({"op": "log", "log": settings, "seq": 4})
        surroundings.transport.shared.receive()
        assert (log.logger.level, state.log_settings) == (log.verbose(3), settings)
        assert surroundings.supervisor.receive() == ({"op": "ack", "seq": 4}, [])
    finally:
        log.logger.handlers[:], log.logger.level, log.logger.propagate = before


# -- several answers --------------------------------------------------------------------------------------------------

EMPTY = b"\x92\x90\x80"  # msgpack: no outputs, no parameters
NAMED = b"\x92\x90\x81\xa1n\x01"  # the parameter n = 1


def test_a_stream_gives_each_answer_as_it_comes(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    parts = surroundings.transport.stream(surroundings.prepared(10))
    first = pool.submit(next, parts)
    rung(surroundings)
    number, _ = surroundings.submitted()
    surroundings.say(number, NAMED, more=True)
    part = first.result(timeout=10)
    assert part.answer is not None
    assert (part.answer.response.parameters, part.error, part.is_final) == ({"n": 1}, None, False)
    surroundings.say(number, b"oh", more=True, status=2)
    surroundings.say(number, more=False)
    part.answer.release()
    error, end = parts
    assert (str(error.error), error.is_final) == ("oh", False)
    assert (end.answer, end.error, end.is_final) == (None, None, True)
    assert [record[:2] for record in surroundings.records()] == [(3, number)] * 2
    assert surroundings.port.counts["replies_held"] == surroundings.port.num_in_flight == 0
    assert surroundings.port.slab.num_taken == 0


def test_a_stream_that_is_closed_is_cancelled_and_what_still_comes_is_given_back(
    surroundings: Surroundings, pool: ThreadPoolExecutor
) -> None:
    parts = surroundings.transport.stream(surroundings.prepared(10))
    first = pool.submit(next, parts)
    rung(surroundings)
    number, _ = surroundings.submitted()
    surroundings.say(number, EMPTY, more=True)
    surroundings.say(number, EMPTY, more=True)
    answer = first.result(timeout=10).answer
    assert answer is not None
    parts.close()
    surroundings.say(number, EMPTY, more=True)
    answer.release()
    assert sorted(record[0] for record in surroundings.records()) == [2, 3, 3, 3]  # CANCEL, and all three released
    assert surroundings.port.num_in_flight == 1
    surroundings.say(number, more=False)
    assert surroundings.port.counts["replies_held"] == surroundings.port.num_in_flight == 0


def test_a_stream_whose_client_gives_up_while_nothing_comes(surroundings: Surroundings) -> None:
    surroundings.transport._request_timeout_s = 0.01
    with pytest.raises(UnavailableError, match=r"^Request timeout expired: no answer within 0\.01 s"):
        next(surroundings.transport.stream(surroundings.prepared(10)))
    assert [record[0] for record in surroundings.records()] == [1, 2]


def test_infer_takes_the_last_of_several_replies(surroundings: Surroundings, pool: ThreadPoolExecutor) -> None:
    future = pool.submit(surroundings.transport.infer, surroundings.prepared(10))
    rung(surroundings)
    number, _ = surroundings.submitted()
    surroundings.say(number, EMPTY, more=True)
    surroundings.say(number, NAMED, more=False)
    assert future.result(timeout=10).response.parameters == {"n": 1}
    assert [record[0] for record in surroundings.records()] == [3]

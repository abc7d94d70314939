"""A client that asks for segments: news of other memory waits until it has read the replies that have come.

The test plays the supervisor and the batcher.
"""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.control import Channel
from shoal.messages import shared
from shoal.shm import layout, segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import Geometry
from shoal.shm.port import Port, Reply
from shoal.shm.ring import RingWriter
from shoal.shm.segment import Segment
from shoal.shm.slab import Slab
from shoal.star.models import ModelTable
from shoal.star.place import Place
from shoal.star.shared_port import SharedPort
from tests.batcher.star import MODEL, End
from tests.messages import receive
from tests.submitted import submit

GEOMETRY = Geometry(0, 4 * layout.UNIT)


class Worker:
    """Its slab, with one answer in it, and what the supervisor has of it."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        fd = segment.create(layout.WORKER, owner, GEOMETRY, sealed=True)
        self.fd = segment.read_only(fd)
        self.slab = Slab(Segment.attach(fd))
        block = self.slab.allocate(4)
        assert block is not None
        block.memory[:4] = b"%4d" % owner
        self.ref = block.ref


class Asking:
    """The client, whose requests have been replied to by a worker that it knows and by one that it does not."""

    def __init__(self, supervisor: socket.socket, channel: socket.socket) -> None:
        end = End(layout.CLIENT, 41)
        self.supervisor = Channel(supervisor)
        self.port = Port(end.own, end.link_view, Doorbell.create(), 8, asks_for_segments=True)
        self.batcher = RingWriter(end.link, end.own_view)
        place = Place(self.port, end.bell, Channel(channel), ModelTable(), 10, 10)
        #: What each request was answered with; None: nothing that could be read.
        self.answers: dict[int, bytes | None] = {}
        self.shared = SharedPort(place, self._take, place.apply)
        self.known, self.unknown = Worker(51), Worker(52)
        self.send(shared.SegmentAnnounced(owner=51, segment=self.known.fd))
        self.first, self.second = (submit(self.port, MODEL, self.shared.allocate(1, MODEL)) for _ in range(2))
        self._reply(self.first, self.unknown.ref)
        self._reply(self.second, self.known.ref)

    def _take(self, reply: Reply) -> None:
        self.answers[reply.number] = None if reply.block is None else bytes(reply.block[:4])

    def _reply(self, number: int, ref: int) -> None:
        self.batcher.push((layout.REPLY, number, 0, ref, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
        self.batcher.publish()

    def send(self, message: Any, seq: int = 0) -> None:
        self.supervisor.send(message, seq)
        self.shared.receive()

    def said(self) -> Any:
        message, _ = receive(self.supervisor)
        return message


@pytest.fixture
def asking() -> Iterator[Asking]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(10)
    with here, there:
        made = Asking(here, there)
        yield made
        for worker in (made.known, made.unknown):
            os.close(worker.fd)


def test_a_segment_goes_when_the_replies_that_lie_there_are_read(asking: Asking) -> None:
    asking.send(shared.SegmentGone(51), seq=7)
    assert asking.said() == shared.SegmentWanted(52)
    assert asking.answers == {}
    asking.send(shared.SegmentAnnounced(owner=52, segment=asking.unknown.fd))
    assert asking.answers == {asking.first: b"  52", asking.second: b"  51"}
    assert asking.said() == shared.Acknowledged(7)
    assert asking.port._segments.keys() == {52}


def test_the_segment_that_is_asked_for_may_be_the_one_that_goes(asking: Asking) -> None:
    asking.send(shared.SegmentGone(52), seq=7)
    assert asking.said() == shared.SegmentWanted(52)
    asking.send(shared.SegmentAnnounced(owner=52, segment=asking.unknown.fd))
    assert asking.answers == {asking.first: b"  52", asking.second: b"  51"}
    assert asking.said() == shared.Acknowledged(7)
    assert asking.port._segments.keys() == {51}


def test_a_batchers_successor_is_sent_no_request_that_is_answered(asking: Asking) -> None:
    asking.send(shared.BatcherReplaced(), seq=8)
    assert asking.said() == shared.SegmentWanted(52)
    asking.send(shared.SegmentMissing(52))
    assert asking.answers == {asking.first: None, asking.second: b"  51"}
    assert asking.said() == shared.Acknowledged(8)
    assert asking.port.counts["requests_open"] == 0

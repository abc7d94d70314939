"""A front end's transport over a real port, and what surrounds it: the test plays the batcher and the supervisor."""

import os
import socket
from collections.abc import Iterator

import pytest

from shoal.control import Channel
from shoal.datatypes import BY_NAME
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.road.transport import PortTransport
from shoal.frontend.state import ServerState
from shoal.shm import segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, WORKER, Geometry
from shoal.shm.port import Port
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab
from shoal.star.place import Place
from shoal.star.validation import PreparedInput


def pair(kind: int, owner: int, geometry: Geometry) -> tuple[Segment, SegmentView]:
    fd = segment.create(kind, owner, geometry, sealed=True)
    view = SegmentView.attach(segment.read_only(fd))
    return Segment.attach(fd), view


class TransportHarness:
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
        self.result: Block | None = None  # of the last reply
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

    def say(self, number: int, text: bytes = b"", *, more: bool, status: int = 0, tensors: bytes = b"") -> None:
        """A reply of worker 9, tensors before its text; without a text it says only that there are no more."""
        ref = 0
        if text:
            block = self.result = self.results.allocate(len(tensors) + len(text))
            assert block is not None
            block.memory[: len(tensors) + len(text)] = tensors + text
            ref = block.ref
        self.writer.push(
            (4, number, status, ref, len(tensors) << 32 | len(text), 0, 0, 0, 0, 0, 0, 0, int(more), 0, 0, 0)
        )
        self.writer.publish()
        self.transport.shared.deliver()

    def records(self) -> list[tuple[int, ...]]:
        """What the batcher finds: kind, number, and the block in the fourth word."""
        return [(record[0], record[1], record[3]) for record in self.reader.drain()]

    def refuse(self, number: int, reason: int = 1) -> None:
        """The batcher's reply: 503, unless told otherwise because the queue is full."""
        self.writer.push((4, number, 5, 0, 0, reason, *[0] * 10))
        self.writer.publish()
        self.transport.shared.deliver()


@pytest.fixture
def harness(state: ServerState) -> Iterator[TransportHarness]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(10)
    bells = Doorbell.create(), Doorbell.create()
    with here, there:
        yield TransportHarness(state, (Channel(here), Channel(there)), bells)
    for bell in bells:
        bell.close()


def rung(harness: TransportHarness) -> None:
    os.set_blocking(harness.batcher_bell.fd, True)
    os.eventfd_read(harness.batcher_bell.fd)

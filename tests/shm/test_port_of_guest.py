"""A port that is told of no segment unasked: which one it wants, and that replies keep their order meanwhile."""

import struct

from shoal.shm import layout
from shoal.shm.doorbell import Doorbell
from shoal.shm.port import Port
from shoal.shm.ring import RingWriter
from shoal.shm.slab import Slab
from tests.batcher.star import MODEL, End, make_segment
from tests.submitted import submit

WORKER, OTHER = 51, 52


class Harness:
    """A guest's port, and the test in the batcher's place."""

    def __init__(self) -> None:
        end = End(layout.CLIENT, 41)
        self.port = Port(end.own, end.link_view, Doorbell.create(), 8, asks_for_segments=True)
        self.writer = RingWriter(end.link, end.own_view)
        own, self.view = make_segment(layout.WORKER, WORKER)
        self.slab = Slab(own)

    def submit(self) -> int:
        return submit(self.port, MODEL)

    def reply(self, number: int, ref: int, more: int = 0) -> None:
        self.writer.push((4, number, 0, ref, 0, 0, 0, 0, 0, 0, 0, 0, more, 0, 0, 0))
        self.writer.publish()

    def polled(self) -> list[tuple[int, bool]]:
        return [(reply.number, reply.block is not None) for reply in self.port.poll()]


def test_replies_wait_for_the_segment_that_the_first_lies_in() -> None:
    here = Harness()
    first, second, third = (here.submit() for _ in range(3))
    block = here.slab.allocate(1)
    assert block is not None
    here.reply(first, 0)
    here.reply(second, block.ref)
    here.reply(third, 0)
    assert here.polled() == [(first, False)]
    assert here.port.wanted == WORKER
    assert here.polled() == []
    fourth = here.submit()
    here.reply(fourth, 0)
    assert here.polled() == []
    here.port.add_segment(WORKER, here.view)
    assert here.port.wanted == 0
    assert here.polled() == [(second, True), (third, False), (fourth, False)]
    assert here.polled() == []


def test_what_lies_in_a_segment_that_is_not_there_cannot_be_read() -> None:
    here = Harness()
    first, second = here.submit(), here.submit()
    here.reply(first, layout.pack_ref(OTHER, 1, 1))
    here.reply(second, layout.pack_ref(OTHER, 2, 1))
    assert here.polled() == []
    assert here.port.wanted == OTHER
    here.port.remove_segment(OTHER)
    assert here.polled() == [(first, False), (second, False)]


def test_an_answer_whose_tensors_lie_in_two_segments_that_are_not_there_comes_without_them() -> None:
    here = Harness()
    number = here.submit()
    here.port.add_segment(WORKER, here.view)
    block = here.slab.allocate(16)
    assert block is not None
    gone = (OTHER, OTHER + 1)
    block.memory[:16] = struct.pack("2Q", *[layout.pack_ref(each, 1, 1) for each in gone])
    here.writer.push((4, number, 0, block.ref, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0))
    here.writer.publish()
    for each in gone:
        assert here.polled() == []
        assert here.port.wanted == each
        here.port.remove_segment(each)
    assert here.polled() == [(number, False)]
    assert here.port.wanted == 0

"""Several blocks read as one, and a port's replies that lie in them."""

from collections.abc import Callable, Iterator

import pytest

from shoal.reasons import Reason
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import BATCHER, HOLD, RELEASE, REQUEST, Geometry
from shoal.shm.pieces import as_block, whole
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab
from tests.shm.port_star import Star

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]


def test_a_slice_lies_in_one_of_them() -> None:
    block = as_block([memoryview(b"abcd"), memoryview(b"efgh"), memoryview(b"ij")])
    assert len(block) == 10
    assert bytes(block[1:3]) == b"bc"
    assert bytes(block[4:8]) == b"efgh"
    assert bytes(block[8:10]) == b"ij"
    assert bytes(block[4:4]) == b""
    assert bytes(whole(block)) == b"abcdefghij"


def test_a_single_one_is_itself() -> None:
    piece = memoryview(b"abcd")
    assert as_block([piece]) is piece
    assert whole(piece) is piece


class StarWithBatcherSlab(Star):
    """And the batcher's own slab."""

    def __init__(self, make: MakePair, bell: Doorbell, **sizes: int) -> None:
        super().__init__(make, bell, **sizes)
        batcher, batcher_view = make(BATCHER, 8, Geometry(0, 4 * 4096))
        self.port.add_segment(8, batcher_view)
        self.own = Slab(batcher)

    def answer(self, number: int, *pieces: int) -> int:
        """A reply whose tensors lie in these blocks; returns the block that says so."""
        block = self.own.allocate(4096)
        assert block is not None
        said = b"".join(piece.to_bytes(8, "little") for piece in pieces) + b"header"
        block.memory[: len(said)] = said
        words = [4, number, 0, block.ref, 8 * len(pieces) << 32 | 6] + [0] * 8 + [len(pieces)]
        self.reply(*words)
        return block.ref

    def result(self, fill: bytes) -> Block:
        block = self.worker_slab.allocate(4096)
        assert block is not None
        block.memory[:] = fill * 4096
        return block


@pytest.fixture
def star(segment_pair: MakePair) -> Iterator[StarWithBatcherSlab]:
    bell = Doorbell.create()
    yield StarWithBatcherSlab(segment_pair, bell, num_records=40)
    bell.close()


def test_a_reply_in_two_blocks(star: StarWithBatcherSlab) -> None:
    number, _ = star.submit()
    first, second = star.result(b"1"), star.result(b"2")
    header = star.answer(number, first.ref, second.ref)
    (reply,) = star.port.poll()
    assert (reply.header, reply.part, reply.tensors_ref) == (b"header", 0, 0)
    assert reply.block is not None
    assert bytes(reply.block[4090:4096]) == b"111111"
    assert bytes(reply.block[4096:4098]) == b"22"
    assert star.port.num_held == 3
    star.port.flush()
    star.seen()
    star.port.resubmit()  # another batcher hears of all that is held
    held = {(record[0], record[3], record[12]) for record in star.seen()}
    assert held == {(HOLD, header, 0), (HOLD, first.ref, 1), (HOLD, second.ref, 1)}
    star.port.release(number)
    star.port.flush()
    assert [record[:4] for record in star.seen()] == [
        (RELEASE, number, 0, first.ref),
        (RELEASE, number, 0, second.ref),
        (RELEASE, number, 0, 0),
    ]
    assert star.port.num_held == 0


def test_a_reply_in_one_block_of_anothers(star: StarWithBatcherSlab) -> None:
    number, _ = star.submit()
    result = star.result(b"1")
    star.answer(number, result.ref)
    (reply,) = star.port.poll()
    assert reply.tensors_ref == result.ref
    assert reply.block is not None
    assert bytes(reply.block[:2]) == b"11"
    star.port.release(number)
    assert star.port.num_held == 0


def test_a_block_that_is_gone(star: StarWithBatcherSlab) -> None:
    number, _ = star.submit()
    first, second = star.result(b"1"), star.result(b"2")
    star.worker_slab.free(second.ref)
    star.answer(number, first.ref, second.ref)
    (reply,) = star.port.poll()
    assert (reply.block, reply.reason) == (None, Reason.NONE)
    star.port.flush()
    assert [record[0] for record in star.seen()] == [REQUEST] + [RELEASE] * 3
    assert star.port.num_held == 0

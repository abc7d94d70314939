"""Segments for single payloads that are kept for the next one: whose they are, and that no process reads another's."""

import os
from collections.abc import Callable

import pytest

from shoal.shm import segment
from shoal.shm.layout import OVERSIZE, Geometry
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import SlabView
from shoal.shm.whole_slabs import KEEP_S, WholeSlabs

READERS, OTHERS = 3, 4


@pytest.fixture
def make() -> Callable[..., tuple[Segment, SlabView]]:
    """A segment of some units, and a reader's view of it."""

    def make(owner: int = 80, num_units: int = 3) -> tuple[Segment, SlabView]:
        fd = segment.create(OVERSIZE, owner, Geometry(0, num_units * 4096), sealed=True)
        view = SegmentView.attach(os.dup(fd))
        return Segment.attach(fd), SlabView(view)

    return make


def test_a_block_is_taken_again_under_another_name(make: Callable[..., tuple[Segment, SlabView]]) -> None:
    slabs, (memory, view) = WholeSlabs(), make()
    first = slabs.add(memory, READERS, may_be_kept=True)
    assert slabs.allocate(1, READERS) is None  # it is taken
    assert slabs.free(first.ref, 10.0, keep=True) == 0
    assert view.open(first.ref) is None
    second = slabs.allocate(3 * 4096, READERS)
    assert second is not None
    assert (first.ref, second.ref) == (0x000050_00000_00001, 0x000050_00000_00003)
    assert slabs.taken_refs == [second.ref]
    second.memory[-4:] = b"last"
    opened = view.open(second.ref)
    assert opened is not None
    assert bytes(opened[-4:]) == b"last"
    assert view.open(first.ref) is None
    assert slabs.free(first.ref, 11.0, keep=True) == 0  # its name of old gives nothing back
    assert slabs.taken_refs == [second.ref]
    assert not slabs.kept


@pytest.mark.parametrize("may_be_kept", [True, False])
def test_what_may_not_be_kept_is_let_go_of(make: Callable[..., tuple[Segment, SlabView]], *, may_be_kept: bool) -> None:
    slabs = WholeSlabs()
    block = slabs.add(make()[0], READERS, may_be_kept=may_be_kept)
    assert slabs.free(block.ref, 10.0, keep=not may_be_kept) == 80
    assert slabs.free(block.ref, 10.0, keep=True) == 0  # once only
    assert slabs.allocate(1, READERS) is None


@pytest.mark.parametrize(
    ("nbytes", "readers", "is_right"),
    [(4 * 4096, READERS, True), (4096, READERS, True), (4095, READERS, False), (16385, READERS, False),
     (4 * 4096, OTHERS, False)],
)  # fmt: skip
def test_whose_payloads_a_kept_block_takes(
    make: Callable[..., tuple[Segment, SlabView]], nbytes: int, readers: int, *, is_right: bool
) -> None:
    slabs = WholeSlabs()
    slabs.free(slabs.add(make(num_units=4)[0], READERS, may_be_kept=True).ref, 10.0, keep=True)
    assert (slabs.allocate(nbytes, readers) is not None) is is_right
    assert len(slabs.kept) == (not is_right)


def test_the_last_freed_is_taken_and_those_that_stay_idle_are_let_go_of(
    make: Callable[..., tuple[Segment, SlabView]],
) -> None:
    slabs = WholeSlabs()
    blocks = [slabs.add(make(owner)[0], READERS, may_be_kept=True) for owner in (80, 81, 82)]
    for now_s, block in enumerate(blocks):
        slabs.free(block.ref, 10 + now_s / 4, keep=True)
    assert slabs.expire(10.25) == ([], KEEP_S - 0.25)
    taken = slabs.allocate(1 << 12, READERS)
    assert taken is not None
    assert taken.ref >> 40 == 82
    assert slabs.expire(10 + KEEP_S) == ([80], 0.25)
    assert slabs.expire(10.25 + KEEP_S) == ([81], None)
    assert slabs.taken_refs == [taken.ref]

"""shm/slab.py: blocks that never overlap, references that outlive them as None, tables that lie."""

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from shoal.shm.layout import OVERSIZE, WORKER, Geometry
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab, SlabView, WholeSlab, add_blocks

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]
OWNER = 7
NUM_UNITS = 13  # tiled by blocks of 8, 4 and 1 units
# Without a ring the generation words are the second page, the slab begins with the third.
GENERATIONS, SLAB = 4096, 8192


@pytest.fixture
def memory(segment_pair: MakePair) -> tuple[Segment, SegmentView]:
    return segment_pair(WORKER, OWNER, Geometry(0, NUM_UNITS * 4096))


def taken(slab: Slab, nbytes: int) -> Block:
    block = slab.allocate(nbytes)
    assert block is not None
    return block


def table(segment: Segment) -> list[int]:
    """The generation words, read by hand."""
    raw = bytes(segment.bytes[GENERATIONS : GENERATIONS + NUM_UNITS * 8])
    return [int.from_bytes(raw[start : start + 8], "little") for start in range(0, len(raw), 8)]


# -- Blocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (8193, 16384), (16384, 16384), (16385, 32768), (32768, 32768)],
)
def test_a_block_has_the_smallest_size_that_holds_its_bytes(
    memory: tuple[Segment, SegmentView], nbytes: int, size: int
) -> None:
    assert len(taken(Slab(memory[0]), nbytes).memory) == size


def test_the_first_reference_names_owner_unit_and_generation_one(memory: tuple[Segment, SegmentView]) -> None:
    block = taken(Slab(memory[0]), 8 * 4096)
    assert block.ref == 0x000007_00000_00001
    assert table(memory[0])[0] == 1 << 8 | 3
    block.memory[:4] = b"here"
    assert bytes(memory[1].bytes[SLAB : SLAB + 4]) == b"here"


def test_what_no_block_can_hold_is_refused_and_changes_nothing(memory: tuple[Segment, SegmentView]) -> None:
    slab = Slab(memory[0])
    assert slab.largest_nbytes == 8 * 4096
    assert slab.allocate(8 * 4096 + 1) is None
    assert slab.allocate(2**62) is None
    assert slab.num_taken == 0
    assert table(memory[0]) == [0] * NUM_UNITS


def test_a_slab_without_memory_hands_out_nothing(segment_pair: MakePair) -> None:
    owner, view = segment_pair(WORKER, OWNER, Geometry(8, 0))
    slab = Slab(owner)
    assert slab.largest_nbytes == 0
    assert slab.allocate(0) is None
    assert SlabView(view).open(0x000007_00000_00000) is None


def test_a_freed_block_is_handed_out_again_last_freed_first(memory: tuple[Segment, SegmentView]) -> None:
    slab = Slab(memory[0])
    blocks = [taken(slab, 4096) for _ in range(5)]
    for block in blocks:
        assert slab.free(block.ref)
    again = taken(slab, 1)
    assert again.ref == blocks[-1].ref + 2  # the same unit; freeing and allocating have each counted


def test_its_owner_opens_what_is_handed_out(memory: tuple[Segment, SegmentView]) -> None:
    slab = Slab(memory[0])
    taken(slab, 1)
    block = taken(slab, 5000)
    block.memory[8191] = 7
    opened = slab.open(block.ref)
    assert (len(opened), opened[8191]) == (8192, 7)
    slab.free(block.ref)
    with pytest.raises(KeyError):
        slab.open(block.ref)


def test_free_neighbours_are_joined_when_nothing_else_fits(memory: tuple[Segment, SegmentView]) -> None:
    slab = Slab(memory[0])
    small = [taken(slab, 4096) for _ in range(NUM_UNITS)]
    assert slab.allocate(1) is None
    by_unit = {block.ref >> 20 & 0xFFFFF: block for block in small}
    assert slab.free(by_unit[1].ref)
    assert slab.free(by_unit[2].ref)
    assert slab.allocate(8192) is None  # neighbours, but halves of two different pairs
    assert slab.free(by_unit[3].ref)
    pair = taken(slab, 8192)
    assert pair.ref >> 20 & 0xFFFFF == 2
    assert slab.num_taken == NUM_UNITS - 2


def test_what_finds_nothing_joins_free_blocks_once_for_those_that_have_come_back(
    memory: tuple[Segment, SegmentView],
) -> None:
    slab = Slab(memory[0])
    small = [taken(slab, 4096) for _ in range(NUM_UNITS)]
    assert slab.allocate(1) is None
    assert slab.num_joins == 0
    slab.free(small[1].ref)
    again = taken(slab, 4096)
    for _ in range(2):
        assert slab.allocate(1) is None
        assert slab.num_joins == 1  # one has come back, and is taken
    slab.free(again.ref)
    assert slab.allocate(8192) is None
    assert slab.num_joins == 2


@pytest.mark.parametrize(
    ("num_units", "max_order", "blocks"),
    [
        (0, 0, [[]]), (1, 0, [[0]]), (2, 1, [[], [0]]), (3, 1, [[2], [0]]), (13, 3, [[12], [], [8], [0]]),
        (16, 4, [[], [], [], [], [0]]), (17, 2, [[16], [], [12, 8, 4, 0]]), (3, 0, [[2, 1, 0]]),
    ],
)  # fmt: skip
def test_the_largest_blocks_that_tile_a_slab(num_units: int, max_order: int, blocks: list[list[int]]) -> None:
    free: list[list[int]] = [[] for _ in range(max_order + 1)]
    add_blocks(free, 0, num_units)
    assert free == blocks


@pytest.mark.parametrize(
    ("start", "end", "blocks"),
    [(2, 4, [[], [2], [], []]), (4, 13, [[12], [], [8, 4], []]), (4, 16, [[], [], [4], [8]]), (3, 3, [[], [], [], []])],
)
def test_blocks_that_are_added_later_are_as_large(start: int, end: int, blocks: list[list[int]]) -> None:
    free: list[list[int]] = [[] for _ in range(4)]
    add_blocks(free, start, end)
    assert free == blocks


@pytest.fixture
def small_beginning(segment_pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> Segment:
    """Two units of 13 and the last have pages."""
    monkeypatch.setattr("shoal.shm.segment.FIRST_SLAB_NBYTES", 2 * 4096)
    return segment_pair(WORKER, OWNER, Geometry(0, NUM_UNITS * 4096))[0]


def present_units(segment: Segment) -> int:
    return (segment.present_nbytes - SLAB) // 4096


def test_pages_come_as_blocks_are_handed_out(small_beginning: Segment) -> None:
    slab = Slab(small_beginning)
    assert (slab.free_nbytes, slab.largest_nbytes, present_units(small_beginning)) == (13 * 4096, 8 * 4096, 2)
    grown = []
    for _ in range(NUM_UNITS):
        block = taken(slab, 4096)
        block.memory[:] = b"x" * 4096
        grown.append(present_units(small_beginning))
    assert grown == [2, 2, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]  # the odd unit is there from the beginning
    assert slab.allocate(1) is None
    assert (slab.num_taken, slab.free_nbytes) == (13, 0)


def test_a_large_block_brings_its_pages_at_once(small_beginning: Segment) -> None:
    slab = Slab(small_beginning)
    block = taken(slab, 4 * 4096)
    assert (len(block.memory), present_units(small_beginning)) == (4 * 4096, 8)
    block.memory[:] = bytes(4 * 4096)
    assert slab.allocate(9 * 4096) is None


def test_the_largest_block_is_there_though_its_pages_come_in_pieces(small_beginning: Segment) -> None:
    slab = Slab(small_beginning)
    assert slab.largest_nbytes == 8 * 4096
    assert len(taken(slab, 8 * 4096).memory) == 8 * 4096


def test_memory_is_added_at_rest_while_less_than_half_is_free(small_beginning: Segment) -> None:
    slab = Slab(small_beginning)
    taken(slab, 4096)  # the odd unit
    present = []
    for _ in range(6):
        slab.prepare()
        present.append(present_units(small_beginning))
        taken(slab, 4096)
    slab.prepare()
    # Two of two, three of four, five of eight are taken.
    assert [*present, present_units(small_beginning)] == [2, 2, 4, 8, 8, 12, 12]


def test_a_slab_says_when_half_of_its_memory_has_been_cut_into_blocks(small_beginning: Segment) -> None:
    slab = Slab(small_beginning)
    taken(slab, 4096)  # the odd unit
    seen = []
    for _ in range(12):
        taken(slab, 4096)
        seen.append((slab.is_scarce, present_units(small_beginning)))
        if slab.is_scarce:
            slab.prepare()
            assert not slab.is_scarce
    # Three of four, five of eight; of twelve, all there are, no more can be added.
    assert [number for number, (is_scarce, _) in enumerate(seen, 1) if is_scarce] == [3, 5]
    assert [present for _, present in seen] == [2, 2, 4, 8, 8, *[12] * 7]


def test_without_memory_for_more_pages_a_slab_has_what_it_has(
    small_beginning: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    slab = Slab(small_beginning)
    taken(slab, 4096)  # the odd unit
    blocks = [taken(slab, 4096), taken(slab, 4096)]
    with monkeypatch.context() as patch:
        patch.setattr(small_beginning, "make_present", lambda _nbytes: False)
        assert slab.allocate(4096) is None
        slab.free(blocks[0].ref)
        slab.free(blocks[1].ref)
        assert len(taken(slab, 8192).memory) == 8192
        slab.prepare()
    assert len(taken(slab, 4096).memory) == 4096
    assert present_units(small_beginning) == 4


@pytest.mark.parametrize("num_present", [2, 4, 8, 17])
def test_a_spare_of_one_unit_costs_no_part_wherever_the_pages_begin(
    segment_pair: MakePair, monkeypatch: pytest.MonkeyPatch, num_present: int
) -> None:
    monkeypatch.setattr("shoal.shm.segment.FIRST_SLAB_NBYTES", num_present * 4096)
    slab = Slab(segment_pair(WORKER, OWNER, Geometry(0, 17 * 4096))[0], 4)
    spare = taken(slab, 4096)
    spare.memory[:] = b"x" * 4096
    assert spare.ref >> 20 & 0xFFFFF == 16
    assert all(slab.allocate(4 * 4096) for _ in range(4))


def test_in_parts_one_small_block_costs_one_large_one(segment_pair: MakePair) -> None:
    slab = Slab(segment_pair(WORKER, OWNER, Geometry(0, 17 * 4096))[0], 4)
    assert slab.largest_nbytes == 4 * 4096
    assert slab.allocate(4 * 4096 + 1) is None
    taken(slab, 4096)  # the odd unit
    small = taken(slab, 4096)
    large = [taken(slab, 4 * 4096) for _ in range(3)]
    assert slab.allocate(4 * 4096) is None
    for block in (small, *large):
        slab.free(block.ref)
    assert slab.allocate(4 * 4096 + 1) is None  # what is free is never joined beyond a part
    assert all(slab.allocate(4 * 4096) for _ in range(4))


def test_a_slab_is_roomy_again_after_a_peak_of_small_blocks(memory: tuple[Segment, SegmentView]) -> None:
    slab = Slab(memory[0])
    assert slab.is_roomy
    blocks = [taken(slab, 4096) for _ in range(NUM_UNITS)]
    assert not slab.is_roomy
    for block in blocks[:9]:
        slab.free(block.ref)
    assert not slab.is_roomy
    slab.free(blocks[9].ref)
    assert slab.is_roomy


def test_the_generations_tell_how_many_blocks_were_taken_and_given_back(memory: tuple[Segment, SegmentView]) -> None:
    slab = Slab(memory[0])
    assert slab.counts == (0, 0)
    first, second = taken(slab, 4096), taken(slab, 8192)
    assert slab.counts == (2, 0)
    for block in (first, second, taken(slab, 4096)):
        assert slab.free(block.ref)
        assert not slab.free(block.ref)
    assert slab.counts == (3, 3)
    assert sum(word >> 8 for word in table(memory[0])) == 6


# -- References ---------------------------------------------------------------------------------------------------


def test_a_freed_reference_opens_as_none_even_after_its_unit_is_used_again(memory: tuple[Segment, SegmentView]) -> None:
    slab, view = Slab(memory[0]), SlabView(memory[1])
    first = taken(slab, 4096)
    first.memory[:5] = b"first"
    opened = view.open(first.ref)
    assert opened is not None
    assert bytes(opened[:5]) == b"first"
    assert opened.readonly
    assert slab.free(first.ref)
    assert view.open(first.ref) is None
    second = taken(slab, 4096)
    assert second.ref >> 20 == first.ref >> 20
    assert view.open(first.ref) is None
    assert view.open(second.ref) is not None


def test_a_view_is_read_only_even_on_the_owners_own_mapping(memory: tuple[Segment, SegmentView]) -> None:
    block = taken(Slab(memory[0]), 4096)
    opened = SlabView(memory[0]).open(block.ref)
    assert opened is not None
    assert opened.readonly
    assert not block.memory.readonly


@pytest.mark.parametrize(
    "change",
    [1 << 40, 1 << 20, 1, (1 << 20) - 1, 12 << 20, 13 << 20, 0xFFFFF << 20],
    ids=["owner", "unit", "generation", "generations", "last unit", "unit beyond", "units beyond"],
)
def test_a_wrong_reference_frees_and_opens_nothing(memory: tuple[Segment, SegmentView], change: int) -> None:
    slab, view = Slab(memory[0]), SlabView(memory[1])
    block = taken(slab, 4096)
    before = table(memory[0])
    assert view.open(block.ref ^ change) is None
    assert slab.free(block.ref ^ change) is False
    assert slab.free(0) is False
    assert (slab.num_taken, table(memory[0])) == (1, before)
    assert view.open(block.ref) is not None


def test_a_block_is_freed_once(memory: tuple[Segment, SegmentView]) -> None:
    slab = Slab(memory[0])
    block, other = taken(slab, 4096), taken(slab, 4096)
    assert slab.free(block.ref) is True
    before = table(memory[0])
    assert slab.free(block.ref) is False
    assert (slab.num_taken, table(memory[0])) == (1, before)
    assert {taken(slab, 4096).ref >> 20 & 0xFFFFF for _ in range(NUM_UNITS - 1)}.isdisjoint({other.ref >> 20 & 0xFFFFF})


def test_generations_go_on_beyond_their_20_bits(memory: tuple[Segment, SegmentView]) -> None:
    slab, view = Slab(memory[0]), SlabView(memory[1])
    start = GENERATIONS + 12 * 8
    memory[0].bytes[start : start + 8] = (0xFFFFF << 8).to_bytes(8, "little")
    block = taken(slab, 4096)  # unit 12 is the smallest free block
    assert block.ref == 0x000007_0000C_00000
    assert view.open(block.ref) is not None
    assert slab.free(block.ref) is True
    assert view.open(block.ref) is None
    assert taken(slab, 4096).ref == 0x000007_0000C_00002


@pytest.mark.parametrize(
    ("unit", "order", "num_units"),
    [(0, 3, 8), (12, 0, 1), (12, 1, 1), (8, 3, 5), (0, 4, 13), (0, 20, 13), (0, 21, 13), (0, 64, 13), (0, 255, 13)],
)
def test_a_block_ends_where_the_slab_does_whatever_the_table_says(
    memory: tuple[Segment, SegmentView], unit: int, order: int, num_units: int
) -> None:
    start = GENERATIONS + unit * 8
    memory[0].bytes[start : start + 8] = (5 << 8 | order).to_bytes(8, "little")
    opened = SlabView(memory[1]).open(7 << 40 | unit << 20 | 5)
    assert opened is not None
    assert len(opened) == num_units * 4096


@pytest.mark.parametrize(("num_units", "order"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (512, 9), (513, 10)])
def test_a_whole_slab_is_one_block_of_any_size(segment_pair: MakePair, num_units: int, order: int) -> None:
    segment, view = segment_pair(OVERSIZE, OWNER, Geometry(0, num_units * 4096))
    assert SlabView(view).open(0x000007_00000_00001) is None
    slab = WholeSlab(segment)
    block = slab.allocate()
    assert block.ref == 0x000007_00000_00001
    assert segment.bytes[GENERATIONS : GENERATIONS + 8] == (1 << 8 | order).to_bytes(8, "little")
    block.memory[-4:] = b"last"
    opened = SlabView(view).open(block.ref)
    assert opened is not None
    assert (len(opened), bytes(opened[-4:]), opened.readonly) == (num_units * 4096, b"last", True)
    slab.free()
    assert SlabView(view).open(block.ref) is None
    assert slab.allocate().ref == 0x000007_00000_00003
    assert segment.bytes[GENERATIONS : GENERATIONS + 8] == (3 << 8 | order).to_bytes(8, "little")
    assert SlabView(view).open(block.ref) is None


class SlabMachine(RuleBasedStateMachine):
    """Blocks against a set of units; every live block carries its own reference as a pattern to its last byte."""

    def __init__(self, pair: tuple[Segment, SegmentView], num_present: int) -> None:
        super().__init__()
        pair[0].present_nbytes = SLAB + num_present * 4096  # as at the slab's beginning
        self.slab, self.view = Slab(pair[0]), SlabView(pair[1])
        self.live: dict[int, range] = {}
        self.stale: list[int] = []
        self.counts_before = self.slab.counts  # the memory has been a slab before

    @rule(nbytes=st.integers(0, 9 * 4096))
    def allocate(self, nbytes: int) -> None:
        num_units = next(size for size in (1, 2, 4, 8, 16) if size * 4096 >= nbytes)
        block = self.slab.allocate(nbytes)
        if block is None:
            assert not any(self.is_free(start, num_units) for start in range(0, NUM_UNITS, num_units))
            return
        first = block.ref >> 20 & 0xFFFFF
        assert block.ref >> 40 == OWNER
        assert first % num_units == 0
        assert self.is_free(first, num_units)
        assert len(block.memory) == num_units * 4096
        block.memory[:] = block.ref.to_bytes(8, "little") * (num_units * 512)
        assert block.ref not in self.live
        assert block.ref not in self.stale
        self.live[block.ref] = range(first, first + num_units)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.live)))
        assert self.slab.free(ref) is True
        del self.live[ref]
        self.stale.append(ref)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def free_again(self, data: st.DataObject) -> None:
        assert self.slab.free(data.draw(st.sampled_from(self.stale))) is False

    @invariant()
    def live_blocks_are_whole_and_stale_ones_gone(self) -> None:
        assert self.slab.num_taken == len(self.live)
        acquired, released = self.slab.counts
        assert (acquired - self.counts_before[0], released - self.counts_before[1]) == (
            len(self.live) + len(self.stale), len(self.stale),
        )  # fmt: skip
        for ref, units in self.live.items():
            memory = self.view.open(ref)
            assert memory is not None
            assert memory == ref.to_bytes(8, "little") * (len(units) * 512)
        assert all(self.view.open(ref) is None for ref in self.stale)

    def is_free(self, first: int, num_units: int) -> bool:
        wanted = set(range(first, first + num_units))
        return max(wanted) < NUM_UNITS and all(wanted.isdisjoint(units) for units in self.live.values())

    def teardown(self) -> None:
        """Everything given back, the slab is as large as on its first day."""
        for ref in self.live:
            assert self.slab.free(ref)
        whole = [self.slab.allocate(num_units * 4096) for num_units in (8, 4, 1)]
        assert None not in whole
        assert self.slab.allocate(1) is None
        for block in whole:
            assert block is not None
            assert self.slab.free(block.ref)


@pytest.mark.parametrize("num_present", [1, 2, 4, 8, NUM_UNITS])
def test_blocks_are_disjoint_aligned_and_come_back(memory: tuple[Segment, SegmentView], num_present: int) -> None:
    # hypothesis takes any factory
    factory = cast("type[RuleBasedStateMachine]", lambda: SlabMachine(memory, num_present))
    run_state_machine_as_test(factory, settings=settings(max_examples=30))

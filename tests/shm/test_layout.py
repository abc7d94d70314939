"""shm/layout.py: the bytes of a header, of references and of records, written by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.shm import layout, records
from shoal.shm.layout import Geometry, LayoutError

# A worker's segment (kind 3), owner 7: 16 records, a slab of two units.
GEOMETRY = Geometry(ring_capacity=16, slab_nbytes=8192)
HEADER = bytes.fromhex(
    "53484f414c000000"  # "SHOAL"
    "0200000003000000"  # layout version 2, kind 3
    "0700000000000000"  # owner
    "0000000000000000"  # unused
    "1000000000000000"  # 16 records
    "0020000000000000"  # slab at 8192: 4096 + 16 × 128 + 2 × 8 = 6160, rounded up to a page
    "0020000000000000"  # slab of 8192 bytes
    "0040000000000000"  # segment of 16384 bytes
)


def memory(header: bytes, nbytes: int = 16384) -> memoryview:
    return memoryview(header + bytes(nbytes - len(header)))


def test_the_header_of_a_new_segment() -> None:
    assert layout.pack_header(kind=3, owner=7, geometry=GEOMETRY) == HEADER


def test_the_offsets_follow_from_the_sizes() -> None:
    assert (GEOMETRY.generations_offset, GEOMETRY.slab_offset, GEOMETRY.nbytes) == (6144, 8192, 16384)
    ring_only = Geometry(ring_capacity=32, slab_nbytes=0)
    assert (ring_only.generations_offset, ring_only.slab_offset, ring_only.nbytes) == (8192, 8192, 8192)


@given(st.integers(0, 1 << 16), st.integers(0, 1 << 20), st.integers(0, 1 << 16))
def test_rings_generations_and_slab_do_not_overlap(ring_capacity: int, num_units: int, small: int) -> None:
    geometry = Geometry(ring_capacity, num_units * 4096, small)
    assert geometry.generations_offset == 4096 + 128 * (small or ring_capacity)
    assert geometry.generations_offset + 8 * num_units <= geometry.slab_offset
    assert geometry.slab_offset % 4096 == 0
    assert geometry.slab_end == geometry.slab_offset + 4096 * num_units
    assert 0 <= geometry.nbytes - geometry.slab_end - 128 * (ring_capacity if small else 0) < 4096
    assert geometry.nbytes % 4096 == 0


def test_a_ring_that_begins_small_lies_in_two_places() -> None:
    geometry = Geometry(ring_capacity=40, slab_nbytes=4096, small_capacity=8)
    assert (geometry.slab_offset, geometry.slab_end, geometry.nbytes) == (8192, 12288, 20480)
    header = layout.pack_header(kind=1, owner=7, geometry=geometry)
    assert header[32:40] == bytes.fromhex("2800000008000000")
    read = layout.read_header(memory(header, 20480))
    assert (read.ring_capacity, read.geometry) == (40, geometry)


def test_a_header_is_read_back() -> None:
    header = layout.read_header(memory(HEADER))
    assert (header.kind, header.owner) == (3, 7)
    assert (header.ring_capacity, header.slab_offset, header.slab_nbytes, header.segment_nbytes) == (
        16, 8192, 8192, 16384,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "value", "sentence"),
    [
        (0, 0, "no Shoal segment of layout version 2: 0x0"),
        (0, 0x4C414F4854, "no Shoal segment of layout version 2: 0x4c414f4854"),
        (1, 3 << 32 | 1, "no Shoal segment of layout version 2: 0x4c414f4853"),
        (4, 16 | 17 << 32, "a ring of 16 records is said to begin with 17"),
        (4, 17 + 32, "the segment says 16384 bytes, 16384 are mapped"),
        (4, 2**64 - 1, "the segment says 16384 bytes, 16384 are mapped"),
        (5, 4096, "the slab is said to start at 4096, not 8192"),
        (6, 4096, "the segment says 16384 bytes, 16384 are mapped"),
        (6, 2**64 - 4096, "the segment says 16384 bytes, 16384 are mapped"),
        (7, 20480, "the segment says 20480 bytes, 16384 are mapped"),
    ],
)
def test_a_damaged_header_is_refused(word: int, value: int, sentence: str) -> None:
    damaged = HEADER[: word * 8] + value.to_bytes(8, "little") + HEADER[word * 8 + 8 :]
    with pytest.raises(LayoutError) as caught:
        layout.read_header(memory(damaged))
    assert str(caught.value) == sentence


def test_memory_of_another_size_than_the_header_says_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"^the segment says 16384 bytes, 20480 are mapped$"):
        layout.read_header(memory(HEADER, 20480))


def test_memory_smaller_than_a_page_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"^a segment of 4095 bytes is smaller than its header page$"):
        layout.read_header(memory(HEADER, 4095))


@given(st.binary(min_size=64, max_size=64))
def test_arbitrary_bytes_are_never_a_header(noise: bytes) -> None:
    if noise == HEADER:
        return
    with pytest.raises(LayoutError):
        layout.read_header(memory(noise[:1] + b"\0" + noise[2:]))


def test_a_block_reference_is_owner_unit_and_generation() -> None:
    assert layout.pack_ref(1, 2, 3) == 0x0000_01_00002_00003
    assert layout.pack_ref(0xABCDEF, 0xFFFFF, 0x12345) == 0xABCDEF_FFFFF_12345
    assert layout.ref_owner(0xABCDEF_FFFFF_12345) == 0xABCDEF


def test_only_the_low_20_bits_of_a_generation_are_in_a_reference() -> None:
    assert layout.pack_ref(1, 2, 0x7_00003) == 0x0000_01_00002_00003


@given(st.integers(1, 2**24 - 1), st.integers(0, 2**20 - 1), st.integers(0, 2**20 - 1))
def test_a_reference_fits_a_word_is_not_zero_and_is_read_back(owner: int, unit: int, generation: int) -> None:
    ref = layout.pack_ref(owner, unit, generation)
    assert 0 < ref < 2**64
    assert (ref >> 40, ref >> 20 & 0xFFFFF, ref & 0xFFFFF) == (owner, unit, generation)


def test_a_span_is_offset_and_size() -> None:
    assert layout.pack_span(0x40, 0x10) == 0x00000040_00000010
    assert layout.unpack_span(0xFFFFFFFF_FFFFFFFE) == (0xFFFFFFFF, 0xFFFFFFFE)


def test_a_record_is_filled_up_with_zeros() -> None:
    assert layout.record(4, 9) == (4, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert layout.record(*range(16)) == tuple(range(16))


@pytest.mark.parametrize("words", [layout.R, layout.P, layout.B, layout.D, layout.T], ids=lambda words: words.__name__)
def test_no_two_names_of_a_record_are_one_word(words: type) -> None:
    indices = [index for name, index in vars(words).items() if name.isupper()]
    assert len(indices) >= 5
    assert sorted(indices) == list(range(1, len(indices) + 1))  # word 0 is the kind


TIMES = (21, 22, 23, 24, 25)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (records.cancel_record(5, is_sure=True), (2, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        (records.cancel_record(5, is_sure=False), (2, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)),
        (records.cancel_item_record(5), (2, 5)),
        (records.release_record(5), (3, 5, 0, 0)),
        (records.release_record(5, 6, 7), (3, 5, 0, 0, 6, 7)),
        (records.release_part_record(5, 90), (3, 5, 0, 90)),
        (records.hold_record(5, 90, is_first=True, is_part=False), (9, 5, 1, 90, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        (records.hold_record(5, 90, is_first=False, is_part=True), (9, 5, 0, 90, 0, 0, 0, 0, 0, 0, 0, 0, 1)),
        (records.trace_record(5), (11, 5, 0, 0, 0)),
        (records.trace_record(5, is_shown=True, trace_id=(7, 8)), (11, 5, 1, 7, 8)),
        (records.execution_record(5, range(20, 31)), (18, 5, *range(20, 31))),
        (records.child_request_record((1, *range(2, 13)), 80), (16, *range(2, 13), 80)),
        (records.child_request_record((1, *range(2, 17)), 80), (16, *range(2, 13), 80, 14, 15, 16)),
        (records.part_record(5, 3, 90, 60, 2), (4, 5, 3, 90, 60, 0, 0, 0, 0, 0, 0, 0, 1, 2)),
        (records.traced_reply_record(5, 3, 90, 60, TIMES, 2), (4, 5, 3, 90, 60, 0, 0, 21, 22, 23, 24, 25, 0, 2)),
        (records.refusal_record(5, 3, 8), (4, 5, 3, 0, 0, 8, 0)),
        (records.refusal_record(5, 3, 8, 9, TIMES), (4, 5, 3, 0, 0, 8, 9, 21, 22, 23, 24, 25)),
        (records.recall_record([7, 8], is_urgent=True), (15, 1, 7, 8)),
        (
            records.child_trace_record(5, 6, 7, 8, 9, (20, *TIMES), 26, is_call=True),
            (17, *range(5, 10), *range(20, 27), 1),
        ),
        (records.free_record(90), (6, 0, 0, 90)),
        (records.sender_record(5, 3, 90, 60, (21, 22, 23, 24), is_last=True), (7, 5, 0, 3, 90, 60, 21, 22, 23, 24)),
        (records.sender_record(5, 3, 90, 60, (21, 22, 23, 24), is_last=False), (12, 5, 0, 3, 90, 60, 21, 22, 23, 24)),
        (records.ready_record(4, (21, 22, 23, 24)), (13, 0, 4, 0, 0, 0, 21, 22, 23, 24)),
        (records.reschedule_record(5, 4), (14, 5, 4)),
        (records.want_record(layout.ROOM), (8, 0, 0, 1)),
        (records.have_record(90), (10, 0, 0, 0, 90)),
    ],
)
def test_each_record_has_its_words_in_their_places(made: tuple[int, ...], words: tuple[int, ...]) -> None:
    assert made == words


def test_head_and_tail_lie_on_cache_lines_of_their_own() -> None:
    assert (layout.TAIL_WORD, layout.HEAD_WORD, layout.PROGRESS_WORD, layout.BUSY_SINCE_WORD) == (8, 16, 24, 32)
    assert (layout.BUSY_FOR_WORD, layout.TAKEN_WORD) == (40, 48)
    assert layout.RECORD_BYTES == 128

"""shm/ring.py: the order of stores, wrap-around, refusals, and a state machine against a deque.

The races are in tests/stress; here every interleaving that matters is made by hand: `Watched` stands for a memoryview
and tells of each store, so a test can look, or act as the other process would, at that very moment.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from shoal.shm import ring
from shoal.shm.layout import CLIENT, LINK, RECORD, Geometry, LayoutError
from shoal.shm.ring import RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]
TAIL, HEAD = 8, 16  # words of the writer's and of the reader's segment
WIDENED = 64  # of the writer's
CAPACITY = 4


class Watched:
    """A memoryview's stand-in that calls `told(byte or word index)` right after each store."""

    def __init__(self, view: memoryview, told: Callable[[int], None]) -> None:
        self.view = view
        self.told = told

    def __getitem__(self, index: Any) -> Any:
        found = self.view[index]
        return Watched(found, self.told) if isinstance(found, memoryview) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        self.view[index] = value
        self.told(index.start if isinstance(index, slice) else index)


@contextmanager
def watched_records(told: Callable[[int], None]) -> Iterator[None]:
    """Calls `told(byte index)` right after a record has been packed. The ring's functions are replaced in their list,
    since compiled code does not look the list's name up."""

    def pack_into(buffer: Any, offset: int, /, *words: Any) -> None:
        RECORD.pack_into(buffer, offset, *words)
        told(offset)

    functions = list(ring._PACK_INTO)
    ring._PACK_INTO[:] = [pack_into] * len(functions)
    try:
        yield
    finally:
        ring._PACK_INTO[:] = functions


class Ends:
    """Both sides' segments of one ring, and how each looks from the other side."""

    def __init__(self, make: MakePair, capacity: int = CAPACITY, small_capacity: int = 0) -> None:
        self.writer_segment, self.writer_view = make(CLIENT, 5, Geometry(capacity, 0, small_capacity))
        self.reader_segment, self.reader_view = make(LINK, 1, Geometry(0, 0))

    def at(self, position: int) -> "Ends":
        """The ring as it stands, empty, after `position` records."""
        self.writer_segment.words[TAIL] = self.reader_segment.words[HEAD] = position
        return self

    def writer(self) -> RingWriter:
        return RingWriter(self.writer_segment, self.reader_view)

    def reader(self) -> RingReader:
        return RingReader(self.reader_segment, self.writer_view)


@pytest.fixture
def ends(segment_pair: MakePair) -> Ends:
    return Ends(segment_pair)


def record(number: int) -> tuple[int, ...]:
    return (number,) * 16


def push_all(writer: RingWriter, numbers: list[int]) -> None:
    for number in numbers:
        writer.push(record(number))


def drained(reader: RingReader) -> list[int]:
    records = list(reader.drain())
    assert all(found == record(found[0]) for found in records)
    return [found[0] for found in records]


def test_what_was_read_and_not_acknowledged_is_read_again_by_a_successor(ends: Ends) -> None:
    writer, reader = ends.writer(), ends.reader()
    push_all(writer, [1, 2])
    writer.publish()
    assert [found[0] for found in reader.read()] == [1, 2]
    assert reader.read() == ()
    assert [found[0] for found in ends.reader().read()] == [1, 2]
    reader.acknowledge()
    assert ends.reader().read() == ()


def test_words_that_are_left_out_are_0_whatever_stood_there(ends: Ends) -> None:
    writer, reader = ends.writer(), ends.reader()
    capacity = ends.writer_segment.header.ring_capacity
    push_all(writer, [7] * capacity)
    writer.publish()
    reader.drain()
    for num_words in (1, 5, 15, 16):
        writer.push((9,) * num_words)
        writer.publish()
        assert list(reader.drain()) == [(9,) * num_words + (0,) * (16 - num_words)]


# -- The order of stores ------------------------------------------------------------------------------------------


def test_records_are_stored_before_the_tail(ends: Ends) -> None:
    stores: list[tuple[str, int]] = []
    writer_end = ends.writer_segment
    writer_end.words = cast("memoryview", Watched(writer_end.words, lambda word: stores.append(("word", word))))
    writer = ends.writer()
    with watched_records(lambda byte: stores.append(("record at", byte))):
        push_all(writer, [1, 2])
        assert writer.publish()
        push_all(writer, [3])
        assert writer.publish()
    assert stores == [("record at", 0), ("record at", 128), ("word", 8), ("record at", 256), ("word", 8)]


def test_a_reader_that_looks_at_every_moment_sees_whole_groups_or_nothing(ends: Ends) -> None:
    reader, seen = ends.reader(), []
    ends.writer_segment.words = cast(
        "memoryview", Watched(ends.writer_segment.words, lambda _: seen.append(drained(reader)))
    )
    writer = ends.writer()
    with watched_records(lambda _: seen.append(drained(reader))):
        for group in ([1], [2, 3, 4], [5, 6], [7, 8, 9, 10]):
            push_all(writer, group)
            assert writer.publish()
    assert seen == [[], [1], [], [], [], [2, 3, 4], [], [], [5, 6], [], [], [], [], [7, 8, 9, 10]]


def test_slots_are_copied_out_before_the_head_moves(ends: Ends) -> None:
    """A writer that fills every slot again at the moment the head moves changes nothing the reader has drained."""
    writer = ends.at(3).writer()
    push_all(writer, [1, 2, 3, 4])
    writer.publish()

    def fill_again(word: int) -> None:
        assert word == HEAD
        push_all(writer, [11, 12, 13, 14])
        writer.publish()

    own = ends.reader_segment
    plain = own.words
    own.words = cast("memoryview", Watched(plain, fill_again))
    reader = ends.reader()
    assert drained(reader) == [1, 2, 3, 4]
    own.words = plain
    assert drained(ends.reader()) == [11, 12, 13, 14]


def test_an_empty_look_stores_nothing(ends: Ends) -> None:
    stores: list[int] = []
    ends.reader_segment.words = cast("memoryview", Watched(ends.reader_segment.words, stores.append))
    ends.writer_segment.words = cast("memoryview", Watched(ends.writer_segment.words, stores.append))
    assert list(ends.reader().drain()) == []
    assert ends.writer().publish() is False
    assert stores == []


# -- What lies where ----------------------------------------------------------------------------------------------


def test_the_bytes_of_a_record(ends: Ends) -> None:
    writer = ends.at(5).writer()
    writer.push((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 2**64 - 1))
    writer.publish()
    slot = bytes(ends.writer_view.bytes[4096 + 128 : 4096 + 256])  # position 5 of 4 slots: the second
    assert slot == b"".join(bytes([word, 0, 0, 0, 0, 0, 0, 0]) for word in range(1, 16)) + b"\xff" * 8
    assert bytes(ends.writer_view.bytes[64:72]) == bytes([6, 0, 0, 0, 0, 0, 0, 0])
    list(ends.reader().drain())
    assert bytes(ends.reader_view.bytes[128:136]) == bytes([6, 0, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("position", [0, 1, 2, 3, 4, 2**32 - 1, 2**63 - 2])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_groups_of_every_size_at_every_slot(ends: Ends, position: int, count: int) -> None:
    ends.at(position)
    writer, reader = ends.writer(), ends.reader()
    push_all(writer, list(range(count)))
    assert drained(reader) == []
    assert writer.publish() is True
    assert drained(reader) == list(range(count))
    assert writer.publish() is False
    assert drained(reader) == []


def test_a_drained_record_is_no_view(ends: Ends) -> None:
    writer, reader = ends.writer(), ends.reader()
    push_all(writer, [1])
    writer.publish()
    (found,) = reader.drain()
    push_all(writer, [2, 3, 4, 5])
    writer.publish()
    assert found == record(1)


# -- Refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 3, 2**40 + 1])
def test_a_full_ring_refuses_and_changes_nothing(ends: Ends, position: int) -> None:
    writer, reader = ends.at(position).writer(), ends.reader()
    push_all(writer, [1, 2])
    writer.publish()
    push_all(writer, [3, 4])  # not even published ones are given up
    before = bytes(ends.writer_segment.bytes)
    with pytest.raises(RingFullError, match=r"^all 4 records are unread$"):
        writer.push(record(5))
    assert bytes(ends.writer_segment.bytes) == before
    writer.publish()
    assert drained(reader) == [1, 2, 3, 4]
    writer.push(record(5))
    writer.publish()
    assert drained(reader) == [5]


@pytest.mark.parametrize("wrong", [(1,) * 17, (-1,) * 16, (2**64,) * 16, (1.5,) * 16, ()], ids=repr)
def test_what_is_no_record_is_refused_and_changes_nothing(ends: Ends, wrong: tuple[Any, ...]) -> None:
    writer, reader = ends.writer(), ends.reader()
    push_all(writer, [1])
    before = bytes(ends.writer_segment.bytes)
    with pytest.raises((struct.error, IndexError)):
        writer.push(wrong)
    assert bytes(ends.writer_segment.bytes) == before
    push_all(writer, [2])
    writer.publish()
    assert drained(reader) == [1, 2]


@pytest.mark.parametrize(
    ("tail", "claim"), [(9, "-1"), (0, "-10"), (15, "5"), (2**64 - 1, "18446744073709551605")], ids=str
)
def test_a_lying_tail_is_refused_and_nothing_is_taken(ends: Ends, tail: int, claim: str) -> None:
    writer, reader = ends.at(10).writer(), ends.reader()
    push_all(writer, [1, 2])
    ends.writer_segment.words[TAIL] = tail
    with pytest.raises(LayoutError, match=rf"^a ring of 4 records claims {claim} unread ones$"):
        reader.drain()
    assert ends.reader_segment.words[HEAD] == 10
    writer.publish()
    assert drained(reader) == [1, 2]


def test_a_peer_without_a_ring_can_claim_nothing(segment_pair: MakePair) -> None:
    ends = Ends(segment_pair, capacity=0)
    assert drained(ends.reader()) == []
    ends.writer_segment.words[TAIL] = 1
    with pytest.raises(LayoutError, match=r"^a ring of 0 records claims 1 unread ones$"):
        ends.reader().drain()
    ends.writer_segment.words[TAIL] = 0
    with pytest.raises(RingFullError, match=r"^all 0 records are unread$"):
        ends.writer().push(record(1))


# -- A successor picks a ring up where it stands --------------------------------------------------------------------


def test_a_writers_successor_goes_on_after_what_was_published(ends: Ends) -> None:
    first, reader = ends.writer(), ends.reader()
    push_all(first, [1, 2])
    first.publish()
    push_all(first, [3])  # never published: it dies with its writer
    second = ends.writer()
    push_all(second, [4, 5])
    second.publish()
    assert drained(reader) == [1, 2, 4, 5]


def test_a_readers_successor_goes_on_after_what_was_drained(ends: Ends) -> None:
    writer = ends.writer()
    push_all(writer, [1, 2])
    writer.publish()
    assert drained(ends.reader()) == [1, 2]
    push_all(writer, [3])
    writer.publish()
    assert drained(ends.reader()) == [3]


# -- A ring that begins small ---------------------------------------------------------------------------------------

SMALL, FULL = 4, 11


@pytest.fixture
def small(segment_pair: MakePair) -> Ends:
    return Ends(segment_pair, FULL, SMALL)


@pytest.mark.parametrize("position", [0, 3, 2**40 + 1])
def test_a_ring_is_widened_by_the_record_that_finds_no_slot(small: Ends, position: int) -> None:
    writer, reader = small.at(position).writer(), small.reader()
    push_all(writer, [1, 2, 3, 4])
    assert (writer.is_small, writer.num_free) == (True, 0)
    push_all(writer, list(range(5, 5 + FULL)))
    assert (writer.is_small, writer.num_free) == (False, 0)
    with pytest.raises(RingFullError, match=r"^all 11 records are unread$"):
        writer.push(record(99))
    writer.publish()
    assert drained(reader) == list(range(1, 5 + FULL))
    assert writer.num_free == FULL


def test_a_ring_that_is_widened_before_it_must_be_is_read_to_its_end_first(small: Ends) -> None:
    writer, reader = small.writer(), small.reader()
    push_all(writer, [1, 2])
    assert writer.widen()
    assert not writer.widen()
    push_all(writer, [3])
    writer.publish()
    assert drained(reader) == [1, 2, 3]


@pytest.mark.parametrize("num", [3, 4, 5, 9, 15, 16, 30])
def test_a_successor_finds_the_records_of_both_rings(small: Ends, num: int) -> None:
    writer, reader = small.writer(), small.reader()
    for number in range(1, num + 1):
        push_all(writer, [number])
        writer.publish()
        if number > SMALL:
            drained(reader)
    first = 1 if num <= SMALL + FULL else num - FULL + 1
    found = [(position, each[0]) for position, each in small.writer().history()]
    assert found == [(number - 1, number) for number in range(num, first - 1, -1)]


def test_a_ring_without_memory_stays_small_and_is_tried_again(small: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = small.writer(), small.reader()
    with monkeypatch.context() as patch:
        patch.setattr(small.writer_segment, "make_ring_present", lambda: False)
        push_all(writer, [1, 2, 3, 4])
        assert not writer.widen()
        with pytest.raises(RingFullError, match=r"^all 4 records are unread$"):
            writer.push(record(5))
    push_all(writer, [5])
    writer.publish()
    assert drained(reader) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("tail", "widened", "claim"), [(20, 3, "18"), (9, 15, "9"), (2**64 - 1, 1, "18446744073709551615")], ids=str
)
def test_a_lying_writer_that_has_widened_is_refused(small: Ends, tail: int, widened: int, claim: str) -> None:
    small.writer_segment.words[TAIL] = tail
    small.writer_segment.words[WIDENED] = widened
    with pytest.raises(LayoutError, match=rf"claims {claim} unread ones$"):
        small.reader().read()
    assert small.reader_segment.words[HEAD] == 0


class RingMachine(RuleBasedStateMachine):
    """A ring against a deque; either end may be replaced at any time."""

    def __init__(self, ends: Ends) -> None:
        super().__init__()
        self.ends = ends
        self.unpublished: list[int] = []
        self.published: deque[int] = deque()
        self.number = 0

    @initialize(position=st.integers(0, 2**62))
    def start(self, position: int) -> None:
        self.writer, self.reader = self.ends.at(position).writer(), self.ends.reader()

    @rule()
    def push(self) -> None:
        self.number += 1
        if len(self.unpublished) + len(self.published) < CAPACITY:
            self.writer.push(record(self.number))
            self.unpublished.append(self.number)
        else:
            with pytest.raises(RingFullError):
                self.writer.push(record(self.number))

    @rule()
    def publish(self) -> None:
        assert self.writer.publish() is bool(self.unpublished)
        self.published.extend(self.unpublished)
        self.unpublished.clear()

    @rule()
    def drain(self) -> None:
        assert drained(self.reader) == list(self.published)
        self.published.clear()

    @precondition(lambda self: self.number > 2)
    @rule()
    def replace_writer(self) -> None:
        self.writer = self.ends.writer()
        self.unpublished.clear()

    @precondition(lambda self: self.number > 2)
    @rule()
    def replace_reader(self) -> None:
        self.reader = self.ends.reader()


def test_a_ring_is_a_bounded_queue(ends: Ends) -> None:
    factory = cast("type[RuleBasedStateMachine]", lambda: RingMachine(ends))  # hypothesis takes any factory
    run_state_machine_as_test(factory, settings=settings(max_examples=30))


class SmallRingMachine(RingMachine):
    """A ring that begins small against a deque: the writer may also widen it."""

    def __init__(self, ends: Ends) -> None:
        super().__init__(ends)
        self.since: int | None = None  # the number of records before the full ring

    @initialize(position=st.integers(0, 2**62))
    def start(self, position: int) -> None:
        self.ends.writer_segment.words[WIDENED] = 0
        self.writer, self.reader = self.ends.at(position).writer(), self.ends.reader()
        self.num_pushed = 0

    @property
    def num_unread_there(self) -> int:
        """Records in the ring in use that were not read."""
        num_unread = len(self.unpublished) + len(self.published)
        return num_unread if self.since is None else min(num_unread, self.num_pushed - self.since)

    @rule()
    def push(self) -> None:
        self.number += 1
        if self.since is None and self.num_unread_there == SMALL:
            self.since = self.num_pushed
        if self.num_unread_there == (SMALL if self.since is None else FULL):
            with pytest.raises(RingFullError):
                self.writer.push(record(self.number))
            return
        self.writer.push(record(self.number))
        self.unpublished.append(self.number)
        self.num_pushed += 1

    @precondition(lambda self: self.number > 5)
    @rule()
    def widen(self) -> None:
        assert self.writer.widen() is (self.since is None)
        self.since = self.num_pushed if self.since is None else self.since

    @precondition(lambda self: self.number > 2)
    @rule()
    def replace_writer(self) -> None:
        self.writer = self.ends.writer()
        self.num_pushed -= len(self.unpublished)
        self.unpublished.clear()
        self.since = self.since if self.since is None else min(self.since, self.num_pushed)


def test_a_ring_that_begins_small_is_a_bounded_queue(small: Ends) -> None:
    factory = cast("type[RuleBasedStateMachine]", lambda: SmallRingMachine(small))
    run_state_machine_as_test(factory, settings=settings(max_examples=60))

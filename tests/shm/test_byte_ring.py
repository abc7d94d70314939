"""shm/byte_ring.py: entries come out as they went in, in order; what has no room changes nothing; a dead reader's and a
dead writer's successors go on where they were."""

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.shm.byte_ring import ByteRingReader, ByteRingWriter
from shoal.shm.layout import LINK, RECORDING, Geometry, LayoutError
from shoal.shm.segment import Segment, SegmentView, create, read_only

NBYTES = 4096
TAIL = 8  # word of the writer's segment


class Pair:
    """Both segments of a ring of NBYTES bytes."""

    def __init__(self) -> None:
        fds = [
            create(RECORDING, 0, Geometry(0, NBYTES), sealed=True),
            create(LINK, 0, Geometry(0, 0), sealed=True),
        ]
        self.views = [SegmentView.attach(read_only(fd)) for fd in fds]
        self.own = [Segment.attach(fd) for fd in fds]

    def writer(self) -> ByteRingWriter:
        return ByteRingWriter(self.own[0], self.views[1])

    def reader(self) -> ByteRingReader:
        return ByteRingReader(self.own[1], self.views[0])


def entry(number: int, nbytes: int) -> bytes:
    return bytes([number % 256]) * nbytes


@given(st.lists(st.one_of(st.integers(0, 125).map(lambda words: 8 * words), st.none()), max_size=60))
def test_what_was_pushed_is_read_in_order(schedule: list[int | None]) -> None:
    """Numbers are sizes to push, None is a look of the reader."""
    pair = Pair()
    writer, reader, expected = pair.writer(), pair.reader(), deque[bytes]()
    for number, nbytes in enumerate(schedule):
        if nbytes is None:
            found = [bytes(each) for each in reader.read()]
            assert found == list(expected)
            expected.clear()
            reader.acknowledge()
            assert not reader.has_unread()
        elif writer.push([entry(number, nbytes)], nbytes):
            expected.append(entry(number, nbytes))
        else:
            assert (
                sum(map(len, expected)) + 8 * len(expected) + 8 + nbytes > NBYTES // 2
            )  # a skip wastes less than half
    assert [bytes(each) for each in reader.read()] == list(expected)


def test_what_has_no_room_changes_nothing() -> None:
    pair = Pair()
    writer, reader = pair.writer(), pair.reader()
    for number in range(4):
        assert writer.push([entry(number, 992)], 992)
    tail = pair.own[0].words[TAIL]
    assert not writer.push([entry(9, 992)], 992)
    assert pair.own[0].words[TAIL] == tail
    assert [each[0] for each in reader.read()] == [0, 1, 2, 3]
    assert not writer.push([entry(9, 992)], 992)  # read, and not acknowledged
    reader.acknowledge()
    assert writer.push([entry(9, 992)], 992)


def test_an_entry_of_more_than_a_quarter_is_never_taken() -> None:
    writer = Pair().writer()
    assert writer.max_nbytes == 1016
    assert not writer.push([bytes(1024)], 1024)


def test_a_dead_readers_successor_reads_what_was_not_acknowledged() -> None:
    pair = Pair()
    writer = pair.writer()
    writer.push([entry(1, 8)], 8)
    first = pair.reader()
    assert [each[0] for each in first.read()] == [1]
    first.acknowledge()
    writer.push([entry(2, 8)], 8)
    assert [each[0] for each in first.read()] == [2]
    assert [each[0] for each in pair.reader().read()] == [2]


@pytest.mark.parametrize("size", [12, 1 << 40, 4096])
def test_a_damaged_size_is_found(size: int) -> None:
    pair = Pair()
    writer: Callable[..., bool] = pair.writer().push
    writer([entry(1, 8)], 8)
    header = pair.own[0].header
    pair.own[0].words[header.slab_offset // 8] = size
    with pytest.raises(LayoutError):
        list(pair.reader().read())
    reader = pair.reader()
    reader.skip()
    assert not reader.has_unread()

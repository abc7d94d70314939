"""shm/counters.py: the batcher's cells, and what a front end reads of them."""

from collections.abc import Callable

import pytest

from shoal.shm.counters import CELL, GEOMETRY, BatchStatistics, CounterTable, CounterTableView
from shoal.shm.layout import COUNTERS, Geometry
from shoal.shm.segment import Segment, SegmentView

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]
# The table starts after the header page and the (unused) page of generation words.
TABLE = 8192


def word(segment: Segment, row: int, index: int) -> int:
    start = TABLE + row * 4096 + index * 8
    return int.from_bytes(segment.bytes[start : start + 8], "little")


@pytest.fixture
def memory(segment_pair: MakePair) -> tuple[Segment, SegmentView]:
    return segment_pair(COUNTERS, 1, GEOMETRY)


def test_the_table_takes_512_rows_of_a_page() -> None:
    assert GEOMETRY.slab_offset == TABLE
    assert GEOMETRY.slab_nbytes == 512 * 4096


def test_a_cell_lies_where_its_index_says(memory: tuple[Segment, SegmentView]) -> None:
    row = CounterTable(memory[0]).row(2)
    for index, name in enumerate(("success_count", "success_ns", "fail_count", "fail_ns", "queue_ns")):
        row.cells[CELL[name]] += index + 1
        row.publish()
        assert word(memory[0], 2, index) == index + 1
    assert CELL["execution_count"] == 9
    assert CELL["cache_miss_ns"] == 19


def test_what_the_batcher_counts_a_front_end_reads(memory: tuple[Segment, SegmentView]) -> None:
    row, view = CounterTable(memory[0]).row(511), CounterTableView(memory[1])
    row.cells[CELL["success_count"]] += 3
    row.cells[CELL["queue_ns"]] += 2**63
    assert sum(view.read(511).cells.values()) == 0
    row.publish()
    read = view.read(511)
    assert read.cells["success_count"] == 3
    assert read.cells["queue_ns"] == 2**63
    assert sum(read.cells.values()) == 3 + 2**63
    assert read.batches == ()
    row.cells[CELL["success_count"]] += 1
    row.publish()
    assert read.cells["success_count"] == 3  # a look is a copy
    assert view.read(511).cells["success_count"] == 4
    assert sum(view.read(510).cells.values()) == 0


def test_executions_are_counted_by_batch_size_in_the_order_sizes_occur(memory: tuple[Segment, SegmentView]) -> None:
    row = CounterTable(memory[0]).row(0)
    row.count_execution(8, 10, 20, 30)
    row.count_execution(1, 1, 2, 3)
    row.publish()
    row.count_execution(8, 100, 200, 300)
    row.publish()
    assert [word(memory[0], 0, index) for index in range(40, 51)] == [8, 2, 110, 220, 330, 1, 1, 1, 2, 3, 0]
    read = CounterTableView(memory[1]).read(0)
    assert read.cells["execution_count"] == 3
    assert read.batches == (BatchStatistics(8, 2, 110, 220, 330), BatchStatistics(1, 1, 1, 2, 3))


def test_the_95th_batch_size_is_counted_but_not_listed(memory: tuple[Segment, SegmentView]) -> None:
    table = CounterTable(memory[0])
    row = table.row(0)
    for rows in range(1, 96):
        row.count_execution(rows, 1, 1, 1)
    row.count_execution(94, 1, 1, 1)
    row.publish()
    read = CounterTableView(memory[1]).read(0)
    assert [entry.batch_size for entry in read.batches] == list(range(1, 95))
    assert read.batches[93] == BatchStatistics(94, 2, 2, 2, 2)
    assert read.cells["execution_count"] == 96
    assert not any(word(memory[0], 1, index) for index in range(512))


def test_the_row_of_a_newly_loaded_model_is_all_zero(memory: tuple[Segment, SegmentView]) -> None:
    table, view = CounterTable(memory[0]), CounterTableView(memory[1])
    row, neighbour = table.row(3), table.row(4)
    neighbour.cells[CELL["fail_count"]] = 5
    neighbour.publish()
    row.count_execution(7, 1, 1, 1)
    row.publish()
    fresh = table.row(3)
    assert sum(view.read(3).cells.values()) == 0
    assert view.read(3).batches == ()
    assert view.read(4).cells["fail_count"] == 5
    fresh.count_execution(2, 1, 1, 1)
    fresh.publish()
    assert [entry.batch_size for entry in view.read(3).batches] == [2]


def test_a_cleared_row_forgets_its_batch_sizes(memory: tuple[Segment, SegmentView]) -> None:
    row, view = CounterTable(memory[0]).row(0), CounterTableView(memory[1])
    row.count_execution(7, 1, 1, 1)
    row.publish()
    row.clear()
    row.count_execution(2, 1, 1, 1)
    row.publish()
    row.count_execution(7, 1, 1, 1)
    row.publish()
    assert [entry.batch_size for entry in view.read(0).batches] == [2, 7]


def test_a_row_beyond_the_table_is_refused(memory: tuple[Segment, SegmentView]) -> None:
    before = bytes(memory[0].bytes)
    with pytest.raises(ValueError, match="structures"):
        CounterTable(memory[0]).row(512)
    assert bytes(memory[0].bytes) == before

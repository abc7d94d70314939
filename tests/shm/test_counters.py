"""shm/counters.py: the batcher's cells, and what a front end reads of them."""

from collections.abc import Callable

import pytest

from shoal.model_config import model_metrics
from shoal.shm import counters
from shoal.shm.counters import (
    CELL,
    GEOMETRY,
    GEOMETRY_WITH_WINDOWS,
    BatchStatistics,
    CounterTable,
    CounterTableView,
)
from shoal.shm.layout import COUNTERS, Geometry
from shoal.shm.segment import Segment, SegmentView

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]
# The table starts after the header page and the (unused) two pages of generation words.
TABLE = 12288
ROW_BYTES = 8192


def word(segment: Segment, row: int, index: int) -> int:
    start = TABLE + row * ROW_BYTES + index * 8
    return int.from_bytes(segment.bytes[start : start + 8], "little")


@pytest.fixture
def memory(segment_pair: MakePair) -> tuple[Segment, SegmentView]:
    return segment_pair(COUNTERS, 1, GEOMETRY)


def test_the_table_takes_512_rows_of_two_pages() -> None:
    assert GEOMETRY.slab_offset == TABLE
    assert GEOMETRY.slab_nbytes == 512 * ROW_BYTES


def test_a_cell_lies_where_its_index_says(memory: tuple[Segment, SegmentView]) -> None:
    row = CounterTable(memory[0]).row(2)
    names = ("success_count", "success_ns", "fail_count", "fail_ns", "queue_ns")
    for index, name in enumerate(names):
        row.cells[CELL[name]] += index + 1
    row.publish()
    assert [word(memory[0], 2, index) for index in range(len(names))] == [1, 2, 3, 4, 5]
    assert CELL["execution_count"] == 9
    assert CELL["cache_miss_ns"] == 19
    assert CELL["oldest_queued_ns"] == 20


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
    assert not any(word(memory[0], 1, index) for index in range(1024))


def test_how_the_queue_stands_is_shown_without_the_rest(memory: tuple[Segment, SegmentView]) -> None:
    row, view = CounterTable(memory[0]).row(1), CounterTableView(memory[1])
    row.cells[CELL["success_count"]] = 1
    row.publish()
    row.cells[CELL["pending_count"]], row.cells[CELL["oldest_queued_ns"]] = 7, 1_234
    row.publish()
    cells = view.read(1).cells
    assert (cells["pending_count"], cells["oldest_queued_ns"], cells["success_count"]) == (7, 1_234, 1)
    row.cells[CELL["pending_count"]] = row.cells[CELL["oldest_queued_ns"]] = 0
    row.cells[CELL["fail_count"]] = 2
    row.publish()
    cells = view.read(1).cells
    assert (cells["pending_count"], cells["oldest_queued_ns"], cells["fail_count"]) == (0, 0, 2)


def test_what_is_added_is_shown_though_no_request_has_ended(memory: tuple[Segment, SegmentView]) -> None:
    row, view = CounterTable(memory[0]).row(1), CounterTableView(memory[1])
    row.publish()
    row.add(CELL["recorded"], 3)
    row.publish()
    assert view.read(1).cells["recorded"] == 3


def test_histograms_lie_behind_the_batches_one_after_the_other(memory: tuple[Segment, SegmentView]) -> None:
    row, view = CounterTable(memory[0]).row(2), CounterTableView(memory[1])
    for number, histogram in enumerate(row.histograms):
        histogram[number] += number + 1
        histogram[64] += 9
    assert [word(memory[0], 2, 512 + 65 * number + number) for number in range(5)] == [1, 2, 3, 4, 5]
    assert [word(memory[0], 2, 512 + 65 * number + 64) for number in range(5)] == [9] * 5
    read = view.read(2).histograms
    assert list(read) == ["request", "queue", "compute_input", "compute_infer", "compute_output"]
    assert [(counts[number], counts[64], sum(counts)) for number, counts in enumerate(read.values())] == [
        (1, 9, 10), (2, 9, 11), (3, 9, 12), (4, 9, 13), (5, 9, 14),
    ]  # fmt: skip


def test_first_responses_fall_at_or_below_their_bounds(memory: tuple[Segment, SegmentView]) -> None:
    row, view = CounterTable(memory[0]).row(2), CounterTableView(memory[1])
    row.first_response_bounds = (-1.0, 0.0, 2.5, 100.0)
    for ms in (0, 0.9, 1, 2, 2.6, 3, 100, 100.9, 101, 10**9):
        row.count_first_response(int(ms * 1_000_000))
    assert [word(memory[0], 2, 840 + index) for index in range(6)] == [0, 2, 3, 3, 2, 0]  # of whole milliseconds
    assert tuple(view.read(2).first_response) == (0, 2, 3, 3, 2, *(0,) * 60)
    assert word(memory[0], 2, 905) == view.read(2).first_response_ns == 1_000_000_311_400_000


def test_windows_follow_the_rows_where_they_are_asked_for(segment_pair: MakePair) -> None:
    segment, view = segment_pair(COUNTERS, 1, GEOMETRY_WITH_WINDOWS)
    assert GEOMETRY_WITH_WINDOWS.slab_nbytes == 512 * (8192 + 6 * 8192)
    table, table_view = CounterTable(segment), CounterTableView(view)
    row = table.row(3)
    assert row.windows is not None
    row.windows.observe(10**10, (1_000, 2_000, 3_000, 4_000, 5_000))
    windows = table_view.windows(3)
    assert windows is not None
    assert [sum(bins) for bins in windows.read(10**10).values()] == [1] * 5
    other = table_view.windows(4)
    assert other is not None
    assert [sum(bins) for bins in other.read(10**10).values()] == [0] * 5
    table.row(3, is_restored=True)
    assert [sum(bins) for bins in windows.read(10**10).values()] == [1] * 5
    table.row(3)
    assert [sum(bins) for bins in windows.read(10**10).values()] == [0] * 5


def test_without_request_no_windows_are_kept(memory: tuple[Segment, SegmentView]) -> None:
    assert CounterTable(memory[0]).row(0).windows is None
    assert CounterTableView(memory[1]).windows(0) is None


def test_a_model_can_choose_as_many_bounds_as_a_row_has_room_for() -> None:
    assert counters.MAX_BOUNDS == model_metrics.MAX_BOUNDS == 64


def test_the_row_of_a_newly_loaded_model_is_all_zero(memory: tuple[Segment, SegmentView]) -> None:
    table, view = CounterTable(memory[0]), CounterTableView(memory[1])
    row, neighbour = table.row(3), table.row(4)
    neighbour.cells[CELL["fail_count"]] = 5
    neighbour.publish()
    row.count_execution(7, 1, 1, 1)
    row.publish()
    row.histograms[4][20] += 1
    fresh = table.row(3)
    assert not any(map(sum, view.read(3).histograms.values()))
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


def test_a_restored_row_goes_on_but_for_the_queue(memory: tuple[Segment, SegmentView]) -> None:
    table, view = CounterTable(memory[0]), CounterTableView(memory[1])
    row = table.row(5)
    row.cells[CELL["success_count"]], row.cells[CELL["pending_count"]] = 4, 2
    row.cells[CELL["oldest_queued_ns"]] = 99
    row.histograms[1][12] += 3
    row.publish()
    restored = table.row(5, is_restored=True)
    assert [restored.cells[CELL[name]] for name in ("success_count", "pending_count", "oldest_queued_ns")] == [4, 0, 0]
    restored.histograms[1][12] += 1
    restored.publish()
    read = view.read(5)
    assert (read.histograms["queue"][12], read.cells["success_count"], read.cells["pending_count"]) == (4, 4, 0)


def test_a_row_beyond_the_table_is_refused(memory: tuple[Segment, SegmentView]) -> None:
    before = bytes(memory[0].bytes)
    with pytest.raises(ValueError, match="structures"):
        CounterTable(memory[0]).row(512)
    assert bytes(memory[0].bytes) == before

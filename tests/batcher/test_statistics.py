"""batcher/statistics.py: what one request adds to its model's row."""

import pytest

from shoal.batcher.statistics import BACKEND, compute_times, count_cache_lookup, count_failure, count_success
from shoal.shm import counters, layout
from shoal.shm.counters import CounterTable, CounterTableView, RowView
from shoal.shm.layout import Geometry
from tests.batcher.star import make_segment

MINUTE_NS = 60 * 10**9


class Counted:
    """A row and a front end's view of it."""

    def __init__(self, geometry: Geometry = counters.GEOMETRY) -> None:
        table, view = make_segment(layout.COUNTERS, 1, geometry)
        self.row, self.view = CounterTable(table).row(0), CounterTableView(view)

    def read(self) -> RowView:
        self.row.publish()
        return self.view.read(0)


def non_zero(counts: object) -> dict[int, int]:
    assert isinstance(counts, list)
    return {index: count for index, count in enumerate(counts) if count}


def test_a_success_falls_into_the_bucket_of_its_bits_in_each_phase() -> None:
    counted = Counted()
    compute = compute_times(1_500, 1_503, 2_000, 2_000, 2_000)
    count_success(counted.row, 4, compute, start_ns=976, queue_ns=1_000, now_ns=2_000)
    count_success(counted.row, 4, compute, start_ns=977, queue_ns=1_000, now_ns=2_000)
    histograms = {phase: non_zero(counts) for phase, counts in counted.read().histograms.items()}
    assert histograms == {
        "request": {11: 1, 10: 1},  # 1024 and 1023 ns
        "queue": {9: 2},
        "compute_input": {2: 2},
        "compute_infer": {9: 2},
        "compute_output": {0: 2},
    }


def test_the_time_of_a_lookup_is_shown_while_its_request_waits() -> None:
    counted = Counted()
    count_success(counted.row, 1, (0, 0, 0, 0), start_ns=0, queue_ns=0, now_ns=1)
    counted.read()
    count_cache_lookup(counted.row, 70)
    assert counted.read().cells["cache_miss_ns"] == 70


def test_what_the_requests_of_an_execution_took_is_added_up_for_each() -> None:
    counted = Counted()
    slow, fast = (1_000, 4, 16, 64), (1_000, 1, 2, 3)
    for compute in (slow, slow, fast, slow):
        count_success(counted.row, 1, compute, start_ns=0, queue_ns=0, now_ns=2_000)
    read = counted.read()
    assert [read.cells[f"compute_{phase}_ns"] for phase in ("input", "infer", "output")] == [13, 50, 195]
    assert non_zero(read.histograms["compute_infer"]) == {5: 3, 2: 1}
    assert counted.read() == read
    counted.row.clear()
    assert not any(counted.read().cells.values())


def test_whatever_a_worker_claims_has_a_bucket() -> None:
    counted = Counted()
    compute = compute_times(0, 2**64 - 1, 0, 0, 2**62)
    count_success(counted.row, 1, compute, start_ns=0, queue_ns=0, now_ns=1)
    assert non_zero(counted.read().histograms["compute_input"]) == {63: 1}


def test_claims_never_add_up_to_more_than_a_cell_holds() -> None:
    counted = Counted()
    for claimed in ((0, 2**64 - 1, 0, 0), (2**64 - 1, 0, 0, 0), (0, 0, 0, 2**64 - 1)):
        compute = compute_times(*claimed, 1_000)
        count_success(counted.row, 1, compute, start_ns=0, queue_ns=0, now_ns=1_000)
    assert max(counted.read().cells.values()) <= 3 * (1_000 + 1_000_000_000)


def test_failures_are_in_no_phase() -> None:
    counted = Counted()
    count_failure(counted.row, BACKEND, start_ns=0, now_ns=7_000_000)
    count_success(counted.row, 1, (0, 0, 0, 0), start_ns=0, queue_ns=0, now_ns=20_000_000)
    assert [sum(counts) for counts in counted.read().histograms.values()] == [1] * 5


@pytest.mark.parametrize("num_requests", [1, 3])
def test_who_asks_for_summaries_gets_windows(num_requests: int) -> None:
    counted = Counted(counters.GEOMETRY_WITH_WINDOWS)
    for _ in range(num_requests):
        compute = MINUTE_NS + 4_000, 1_000, 2_000, 3_000
        count_success(counted.row, 1, compute, start_ns=MINUTE_NS, queue_ns=MINUTE_NS, now_ns=MINUTE_NS + 10_000)
    windows = counted.view.windows(0)
    assert windows is not None
    assert [bins.index(num_requests) for bins in windows.read(MINUTE_NS + 10_000).values()] == [10, 4, 1, 2, 3]

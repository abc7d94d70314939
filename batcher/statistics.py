"""Counting of requests and executions in a model's row of cells. Pure; times are monotonic nanoseconds."""

from typing import Final

from shoal.errors import CancelledError
from shoal.shm.counters import CELL, Row

_SUCCESS_COUNT, _FAIL_COUNT, _FAIL_NS = CELL["success_count"], CELL["fail_count"], CELL["fail_ns"]
# Those of every answered request and every step are Final: mypyc looks other names of a module up at each use.
_SUCCESS_NS: Final = CELL["success_ns"]
_QUEUE_NS: Final = CELL["queue_ns"]
_INFERENCE_COUNT: Final = CELL["inference_count"]
_HIT_COUNT, _HIT_NS = CELL["cache_hit_count"], CELL["cache_hit_ns"]
_MISS_COUNT, _MISS_NS = CELL["cache_miss_count"], CELL["cache_miss_ns"]
_LAST_INFERENCE_MS: Final = CELL["last_inference_ms"]
#: Reasons for which a request failed: each is the cell that counts the request beside `fail_count`.
REJECTED, CANCELED, BACKEND = CELL["failed_rejected"], CELL["failed_canceled"], CELL["failed_backend"]
OTHER = CELL["failed_other"]
#: Requests given to a split's stable version.
FALLEN_BACK = CELL["fallen_back"]
#: Cells with the state of the queue, which is read from the scheduler whenever a row is published.
PENDING_COUNT: Final = CELL["pending_count"]
OLDEST_QUEUED_NS: Final = CELL["oldest_queued_ns"]

#: Times of one execution in ns: its start, then the durations of input, inference and output.
Compute = tuple[int, int, int, int]
#: The times of a request that no worker has answered.
NO_COMPUTE: Compute = (0, 0, 0, 0)


class WallClock:
    """The wall clock as an offset from the monotonic clock, for dates that clients read.

    The offset changes when the wall clock is set, which may be minutes after the machine's start, so the batcher's loop
    measures the offset again from time to time.
    """

    __slots__ = ("offset_ns",)

    def __init__(self, offset_ns: int) -> None:
        #: Wall clock minus monotonic clock. Changed by the loop.
        self.offset_ns = offset_ns


#: Longer than any step of the batcher (ours; a batcher is killed after a second of silence).
_STEP_NS: Final = 1_000_000_000


def compute_times(start: int, input_end: int, output_start: int, end: int, now_ns: int) -> Compute:
    """The times of a DONE record, made ascending and not later than `now_ns`, since a worker could write anything: two
    times near 2^64 would overflow a cell. `now_ns` is when the batcher's step began.
    """
    latest = now_ns + _STEP_NS
    if not start <= input_end <= output_start <= end <= latest:
        start = min(start, latest)
        input_end = min(max(start, input_end), latest)
        output_start = min(max(input_end, output_start), latest)
        end = min(max(output_start, end), latest)
    return start, input_end - start, output_start - input_end, end - output_start


def time_points(compute: Compute) -> tuple[int, int, int, int]:
    """The inverse of `compute_times`: start, end of input, start of output, end."""
    start, input_ns, infer_ns, output_ns = compute
    return start, start + input_ns, start + input_ns + infer_ns, start + input_ns + infer_ns + output_ns


def count_success(row: Row, rows: int, compute: Compute, start_ns: int, queue_ns: int, now_ns: int) -> None:
    """Count an answered request; `start_ns` is when its client began to receive the request, `queue_ns` when it was
    queued."""
    cells = row.cells
    compute_start_ns = compute[0]
    request_ns = now_ns - start_ns if now_ns > start_ns else 0
    waited_ns = compute_start_ns - queue_ns if compute_start_ns > queue_ns else 0
    # Not `+=`, which mypyc compiles to operations on objects.
    cells[_SUCCESS_NS] = cells[_SUCCESS_NS] + request_ns
    cells[_QUEUE_NS] = cells[_QUEUE_NS] + waited_ns
    cells[_INFERENCE_COUNT] = cells[_INFERENCE_COUNT] + rows
    # Written out for each histogram: a loop would take 1.5 times as long.
    requests, queued, _, _, _ = row.histograms
    requests[request_ns.bit_length()] += 1
    queued[waited_ns.bit_length()] += 1
    if compute != row.compute:
        row.add_computed()
        row.compute = compute
    row.num_computed += 1
    if row.windows is not None:
        row.windows.observe(now_ns, (request_ns, waited_ns, *compute[1:]))


def count_cache_hit(row: Row, hit_ns: int, start_ns: int, queue_ns: int, now_ns: int) -> None:
    """Count a request that was answered without an execution of its own: no inference, as in Triton."""
    cells = row.cells
    request_ns, waited_ns = max(0, now_ns - start_ns), max(0, now_ns - queue_ns - hit_ns)
    cells[_SUCCESS_COUNT] += 1
    cells[_SUCCESS_NS] += request_ns
    cells[_QUEUE_NS] += waited_ns
    cells[_HIT_COUNT] += 1
    cells[_HIT_NS] += hit_ns
    requests, queued, *_ = row.histograms
    requests[request_ns.bit_length()] += 1
    queued[waited_ns.bit_length()] += 1
    count_first_response(row, start_ns, now_ns)


def count_first_response(row: Row, start_ns: int, now_ns: int) -> None:
    """Count the first response to a request, if the model has a histogram of them; `count_success` and `count_failure`
    do not. A canary's answer counts even if its client is not sent it."""
    if row.first_response_bounds:
        row.count_first_response(max(0, now_ns - start_ns))


def count_cache_miss(row: Row, miss_ns: int) -> None:
    """Count a request executed after a lookup in the cache; `miss_ns` is the time of lookup and storing together."""
    row.cells[_MISS_COUNT] += 1
    row.cells[_MISS_NS] += miss_ns


def count_cache_lookup(row: Row, lookup_ns: int) -> None:
    """Count the time of a failed lookup in the shared store. The miss that it is part of is counted when the request
    ends."""
    row.add(_MISS_NS, lookup_ns)


def count_failure(row: Row, reason: int, start_ns: int, now_ns: int) -> None:
    """Count a failed request; `reason` is REJECTED, CANCELED, BACKEND or OTHER."""
    cells = row.cells
    cells[_FAIL_COUNT] += 1
    cells[_FAIL_NS] += max(0, now_ns - start_ns)
    cells[reason] += 1


def reason_of_status(status: int, otherwise: int) -> int:
    """The reason to count for a request that was answered with an error."""
    return CANCELED if status == CancelledError.wire else otherwise


def count_execution(row: Row, rows: int, compute: Compute, wall_ns: int) -> None:
    """Count an executed batch; `wall_ns` is the time of the wall clock."""
    _, input_ns, infer_ns, output_ns = compute
    row.count_execution(rows, input_ns, infer_ns, output_ns)
    row.cells[_LAST_INFERENCE_MS] = wall_ns // 1_000_000

"""Statistics in shared memory: one row of u64 words per model version, written by the batcher, read by front ends.

`/v2/models/stats` and `/metrics` are views of these same words, so they cannot differ. Times are nanoseconds.

    word   what
    0      the named cells below
    40     94 entries of five words, statistics by executed batch size, filled in the order sizes first occur; only the
           first 94 distinct sizes are kept
    512    five histograms of 65 words, how long requests took by phase: word n counts times of n bits
    840    65 words, first responses by the bounds that the model or Triton sets; the last for those over all bounds
    905    the sum of the times of first responses

The last row has the figures of the response cache (CACHE_FIGURES). If summaries are enabled, the rows are followed by
one set of windows (windows.py) per row.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from shoal.fault import IS_ARMED, reached
from shoal.shm.layout import WORD, Geometry
from shoal.shm.segment import Mapping as MappedSegment
from shoal.shm.segment import Segment
from shoal.shm.windows import PHASES, WINDOWS_BYTES, Windows, WindowsView

ROW_WORDS = 1024
#: Model versions that can be loaded at once; a row is 8192 bytes, so this table takes 4 MiB.
MAX_ROWS = 511
_CACHE_WORD = MAX_ROWS * ROW_WORDS
GEOMETRY = Geometry(ring_capacity=0, slab_nbytes=(MAX_ROWS + 1) * ROW_WORDS * WORD)
GEOMETRY_WITH_WINDOWS = GEOMETRY._replace(slab_nbytes=GEOMETRY.slab_nbytes + (MAX_ROWS + 1) * WINDOWS_BYTES)

CELLS = (
    "success_count",
    "success_ns",
    "fail_count",
    "fail_ns",
    "queue_ns",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
    "inference_count",
    "execution_count",
    "last_inference_ms",
    "pending_count",
    "failed_rejected",
    "failed_canceled",
    "failed_backend",
    "failed_other",
    "cache_hit_count",
    "cache_hit_ns",
    "cache_miss_count",
    "cache_miss_ns",
    "oldest_queued_ns",  # the monotonic time at which the oldest waiting request was accepted; 0 = none waits
    "poison_refused",
    "poison_found",
    "recorded",
    "record_dropped",
    "fallen_back",  # requests given to the stable version because a canary has failed them, or had no instance
)
CELL = {name: index for index, name in enumerate(CELLS)}
_NUM_CELLS: Final = len(CELLS)
_SUCCESS_COUNT: Final = CELL["success_count"]
_FAIL_COUNT: Final = CELL["fail_count"]
_EXECUTION_COUNT: Final = CELL["execution_count"]
_PENDING_COUNT: Final = CELL["pending_count"]
_OLDEST_QUEUED_NS: Final = CELL["oldest_queued_ns"]
_INPUT_NS: Final = CELL["compute_input_ns"]
_INFER_NS: Final = CELL["compute_infer_ns"]
_OUTPUT_NS: Final = CELL["compute_output_ns"]
_BATCHES_WORD = 40
_BATCH_WORDS = 5
_MAX_BATCH_ENTRIES = 94
_HISTOGRAMS_WORD = 512
_HISTOGRAM_WORDS = 65  # a u64 has 0 to 64 significant bits, so there is a word for any time that a worker reports
_FIRST_RESPONSE_WORD, _FIRST_RESPONSE_NS_WORD = 840, 905
#: Most bounds that a histogram of first responses can have.
MAX_BOUNDS = 64
_NS_PER_MS = 1_000_000


def reserved_part(index: int) -> tuple[int, int]:
    """Offset and size in bytes of a row in the segment; the supervisor allocates its pages before use."""
    return GEOMETRY.slab_offset + index * ROW_WORDS * WORD, ROW_WORDS * WORD


class BatchStatistics(NamedTuple):
    """The executions of batches of one size so far, and their times together."""

    batch_size: int
    num_executions: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


class Row:
    """One model version's figures, writable, in the batcher: `row.cells[CELL["success_count"]] += 1`, then `publish`.

    Cells are private integers, which `publish` copies: changing one costs a third of changing a shared word. Histograms
    are counted in shared memory directly: copying all words that could have changed would cost more. If the batcher
    dies, at most the counts of its last step are lost.
    """

    def __init__(self, words: memoryview, windows: Windows | None) -> None:
        self._words = words
        #: One histogram per phase, in the order of PHASES: word n counts times of n bits (ns).
        self.histograms = tuple(
            words[start : start + _HISTOGRAM_WORDS]
            for start in range(_HISTOGRAMS_WORD, _HISTOGRAMS_WORD + len(PHASES) * _HISTOGRAM_WORDS, _HISTOGRAM_WORDS)
        )
        #: The times that requests took in the last minute; None if summaries are not enabled.
        self.windows = windows
        #: Upper bounds of the histogram of first responses, in ms, ascending; empty if the model has none. Set once.
        self.first_response_bounds: Sequence[float] = ()
        # Changed by the batcher and the methods here: the cells. Changed by count_execution, restore and clear: the
        # batches.
        self.cells = [0] * len(CELLS)
        #: Compute times shared by the last `num_computed` successful requests (one batch), not yet added to the cells
        #: (batcher/statistics.py): if each request were added by itself, the whole work for a request in a batch of
        #: eight would take 70k instructions instead of 65k.
        self.compute: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.num_computed = 0
        self._batches: dict[int, list[int]] = {}
        self._changed: set[int] = set()
        #: Requests and batches that had ended at the last `publish`; -1 if a cell was changed by `add` since.
        self._num_ended = 0

    def clear(self) -> None:
        """Set all figures to 0: the row is about to be used for a newly loaded model version."""
        self._words[:] = memoryview(bytes(ROW_WORDS * WORD)).cast("Q")
        self.cells[:] = [0] * len(CELLS)
        self._batches.clear()
        self._changed.clear()
        self._num_ended = self.num_computed = 0
        if self.windows is not None:
            self.windows.clear()

    def restore(self) -> None:
        """Read back the figures that a dead batcher published last, except the queue's cells, which are recomputed from
        the requests that clients send again."""
        words = self._words.tolist()
        self.cells[:] = words[: len(CELLS)]
        self.cells[CELL["pending_count"]] = self.cells[CELL["oldest_queued_ns"]] = 0
        for index, found in enumerate(_batches(words)):
            self._batches[found.batch_size] = [_BATCHES_WORD + index * _BATCH_WORDS, *found]

    def count_execution(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Count one executed batch of `rows` rows, with its three compute times in ns."""
        cells = self.cells
        cells[_EXECUTION_COUNT] = cells[_EXECUTION_COUNT] + 1  # not `+=`, which mypyc compiles to operations on objects
        entry = self._batches.get(rows)
        if entry is None:
            if len(self._batches) == _MAX_BATCH_ENTRIES:
                return
            entry = self._batches[rows] = [_BATCHES_WORD + len(self._batches) * _BATCH_WORDS, rows, 0, 0, 0, 0]
        entry[2] = entry[2] + 1
        entry[3] = entry[3] + input_ns
        entry[4] = entry[4] + infer_ns
        entry[5] = entry[5] + output_ns
        self._changed.add(rows)

    @property
    def num_succeeded(self) -> int:
        """Number of requests that have succeeded, including those that are not added to the cells yet."""
        return self.cells[_SUCCESS_COUNT] + self.num_computed

    def add_computed(self) -> None:
        """Add the pending requests and their compute times to the cells."""
        if not self.num_computed:
            return
        num, cells = self.num_computed, self.cells
        cells[_SUCCESS_COUNT] = cells[_SUCCESS_COUNT] + num
        _, input_ns, infer_ns, output_ns = self.compute
        _, _, inputs, infers, outputs = self.histograms
        cells[_INPUT_NS] = cells[_INPUT_NS] + num * input_ns
        cells[_INFER_NS] = cells[_INFER_NS] + num * infer_ns
        cells[_OUTPUT_NS] = cells[_OUTPUT_NS] + num * output_ns
        inputs[input_ns.bit_length()] += num
        infers[infer_ns.bit_length()] += num
        outputs[output_ns.bit_length()] += num
        self.num_computed = 0

    def count_first_response(self, ns: int) -> None:
        """Count a request's first response, sent `ns` nanoseconds after the request's first byte arrived; in the
        histogram the time is rounded down to whole ms, as in Triton."""
        self._words[_FIRST_RESPONSE_NS_WORD] += ns
        self._words[_FIRST_RESPONSE_WORD + bisect_left(self.first_response_bounds, ns // _NS_PER_MS)] += 1

    def add(self, cell: int, number: int) -> None:
        """Add to a cell; the next `publish` shows it even if no request or batch has ended."""
        self.cells[cell] += number
        self._num_ended = -1

    def publish(self) -> None:
        """Make changed figures visible to readers. If no request or batch has ended since the last call, and `add` was
        not called, only the two cells of the queue are copied."""
        if self.num_computed:
            self.add_computed()
        words, cells = self._words, self.cells
        num_ended = cells[_SUCCESS_COUNT] + cells[_FAIL_COUNT] + cells[_EXECUTION_COUNT]
        if num_ended == self._num_ended:  # a sixth of the instructions of copying all cells
            words[_PENDING_COUNT], words[_OLDEST_QUEUED_NS] = cells[_PENDING_COUNT], cells[_OLDEST_QUEUED_NS]
            return
        self._num_ended = num_ended
        words[:_NUM_CELLS] = array("Q", cells)
        for rows in self._changed:  # word by word: half the cost of storing an array
            start, size, num, input_ns, infer_ns, output_ns = self._batches[rows]
            words[start], words[start + 1], words[start + 2] = size, num, input_ns
            words[start + 3], words[start + 4] = infer_ns, output_ns
        self._changed.clear()
        if IS_ARMED:
            reached("counted")


class RowView(NamedTuple):
    """A copy of one model version's figures; the batcher may write during the copy."""

    cells: dict[str, int]
    batches: tuple[BatchStatistics, ...]
    #: Per phase, the numbers of requests by the bits of the time: entry n counts times of n bits (ns).
    histograms: Mapping[str, Sequence[int]]
    #: Number of first responses per bound and, as the last entry, of those over all bounds.
    first_response: Sequence[int]
    first_response_ns: int


ZERO_ROW = RowView(
    dict.fromkeys(CELLS, 0), (), dict.fromkeys(PHASES, (0,) * _HISTOGRAM_WORDS), (0,) * (MAX_BOUNDS + 1), 0
)


#: Figures of the whole response cache; times in ns. Counts outlive a batcher, the cached entries do not.
CACHE_FIGURES = (
    "num_lookups", "num_hits", "num_misses", "num_evictions", "lookup_ns", "insertion_ns", "num_entries", "used_bytes",
    "total_bytes",
)  # fmt: skip


class CacheFigures(dict[str, int]):
    """The response cache's figures, writable, in the batcher: change the items, then `publish`."""

    def __init__(self, words: memoryview, total_bytes: int) -> None:
        super().__init__(zip(CACHE_FIGURES, words, strict=True))
        self.update(num_entries=0, used_bytes=0, total_bytes=total_bytes)
        self._words = words

    def publish(self) -> None:
        """Copy the figures to shared memory, where front ends read them."""
        self._words[:] = array("Q", self.values())


class CounterTable:
    """The table of all rows, writable, in the batcher."""

    def __init__(self, segment: Segment) -> None:
        self._words = _slab(segment).cast("Q")
        self._windows = _windows(segment)

    def row(self, index: int, *, is_restored: bool = False) -> Row:
        """A model version's row: all zero if the version is newly loaded; with the figures that a dead batcher
        published last if `is_restored`."""
        words = self._words[index * ROW_WORDS : (index + 1) * ROW_WORDS]
        windows = self._windows[index * WINDOWS_BYTES : (index + 1) * WINDOWS_BYTES]
        row = Row(words, Windows(windows) if windows else None)
        if is_restored:
            row.restore()
        else:
            row.clear()
        return row

    def cache_figures(self, total_bytes: int) -> CacheFigures:
        """Figures of a response cache that may use `total_bytes`. A successor continues the counts of a dead batcher
        but starts with an empty cache."""
        return CacheFigures(self._words[_CACHE_WORD : _CACHE_WORD + len(CACHE_FIGURES)], total_bytes)


class CounterTableView:
    """The table of all rows, read-only, in a front end."""

    def __init__(self, mapping: MappedSegment) -> None:
        self._words = _slab(mapping).cast("Q")
        self._windows = _windows(mapping)

    def read(self, index: int) -> RowView:
        """A copy of a row's figures."""
        words = self._words[index * ROW_WORDS : (index + 1) * ROW_WORDS].tolist()
        histograms = {
            phase: words[start : start + _HISTOGRAM_WORDS]
            for phase, start in zip(
                PHASES, range(_HISTOGRAMS_WORD, _FIRST_RESPONSE_WORD, _HISTOGRAM_WORDS), strict=False
            )
        }
        first_response = words[_FIRST_RESPONSE_WORD : _FIRST_RESPONSE_WORD + MAX_BOUNDS + 1]
        batches, first_ns = tuple(_batches(words)), words[_FIRST_RESPONSE_NS_WORD]
        return RowView(dict(zip(CELLS, words, strict=False)), batches, histograms, first_response, first_ns)

    def cache_figures(self) -> dict[str, int]:
        """A copy of the figures in CACHE_FIGURES; all 0 without a cache."""
        return dict(zip(CACHE_FIGURES, self._words[_CACHE_WORD : _CACHE_WORD + len(CACHE_FIGURES)], strict=True))

    def windows(self, index: int) -> WindowsView | None:
        """The times that a row's requests took in the last minute, as a view of shared memory; None if summaries are
        not enabled."""
        windows = self._windows[index * WINDOWS_BYTES : (index + 1) * WINDOWS_BYTES]
        return WindowsView(windows) if windows else None


def _batches(words: list[int]) -> Iterator[BatchStatistics]:
    for start in range(_BATCHES_WORD, _BATCHES_WORD + _MAX_BATCH_ENTRIES * _BATCH_WORDS, _BATCH_WORDS):
        if words[start] == 0:
            return
        yield BatchStatistics(*words[start : start + _BATCH_WORDS])


def _slab(mapping: MappedSegment) -> memoryview:
    header = mapping.header
    return mapping.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes]


def _windows(mapping: MappedSegment) -> memoryview:
    """The memory after the rows, for windows; empty if summaries are not enabled."""
    return _slab(mapping)[GEOMETRY.slab_nbytes :]

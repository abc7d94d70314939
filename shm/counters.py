"""Statistics in shared memory: one row of u64 words per model version, written by the batcher, read by front ends.

`/v2/models/stats` and `/metrics` are views of these same words, so they cannot differ. Times are nanoseconds.

    word   what
    0      the named cells below
    40     94 entries of five words, statistics by executed batch size, filled in the order sizes first occur (a model
           that executes more distinct sizes than that reports the first 94)
    512    five histograms of 65 words, how long requests took by phase: word n counts times of n bits
    840    65 words, responses by the bounds that the model or Triton sets for them; the last for what is over all

The last row is the response cache's: CACHE_FIGURES. Where summaries are asked for, the table is followed by the windows
of windows.py, as many as there are rows.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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
    "oldest_queued_ns",  # the monotonic time at which the oldest waiting request was accepted; 0 where none waits
)
CELL = {name: index for index, name in enumerate(CELLS)}
_SUCCESS_COUNT, _FAIL_COUNT, _EXECUTION_COUNT = CELL["success_count"], CELL["fail_count"], CELL["execution_count"]
_PENDING_COUNT, _OLDEST_QUEUED_NS = CELL["pending_count"], CELL["oldest_queued_ns"]
_INPUT_NS, _INFER_NS, _OUTPUT_NS = CELL["compute_input_ns"], CELL["compute_infer_ns"], CELL["compute_output_ns"]
_BATCHES_WORD = 40
_BATCH_WORDS = 5
_MAX_BATCH_ENTRIES = 94
_HISTOGRAMS_WORD = 512
_HISTOGRAM_WORDS = 65  # a u64 has 0 to 64 bits, so whatever a worker claims has its word
_FIRST_RESPONSE_WORD = 840
#: Bounds that a histogram of first responses can have.
MAX_BOUNDS = 64
_NS_PER_MS = 1_000_000


class BatchStatistics(NamedTuple):
    """What executing batches of one size has cost so far."""

    batch_size: int
    num_executions: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


class Row:
    """One model version's cells as the batcher counts: `row.cells[CELL["success_count"]] += 1`, then `publish`.

    That counting is done in private integers, which cost a third of words in shared memory. The histograms are counted
    in shared memory all the same: to show all that could have changed would cost more, and a dead batcher's are right
    but for those of its last step.
    """

    def __init__(self, words: memoryview, windows: Windows | None) -> None:
        self._words = words
        #: In the order of PHASES, by the bits of a time in ns.
        self.histograms = tuple(
            words[start : start + _HISTOGRAM_WORDS]
            for start in range(_HISTOGRAMS_WORD, _HISTOGRAMS_WORD + len(PHASES) * _HISTOGRAM_WORDS, _HISTOGRAM_WORDS)
        )
        #: How long requests took in the last minute; None where nobody asked for summaries.
        self.windows = windows
        #: In ms, ascending; empty where nobody asked for the histogram of first responses. Set once.
        self.first_response_bounds: Sequence[float] = ()
        # Changed by whoever counts; the batches also by count_execution.
        self.cells = [0] * len(CELLS)
        #: How an execution spent its time (batcher/statistics.py), and how many of its requests have succeeded since it
        #: was added up: with an addition for each, batches of eight cost the batcher 65k → 70k instructions a request.
        self.compute: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.num_computed = 0
        self._batches: dict[int, list[int]] = {}
        self._changed: set[int] = set()
        #: Requests and batches that had ended when publish was called last.
        self._num_ended = 0

    def clear(self) -> None:
        """All to 0: the row's model was loaded anew."""
        self._words[:] = memoryview(bytes(ROW_WORDS * WORD)).cast("Q")
        self.cells[:] = [0] * len(CELLS)
        self._batches.clear()
        self._changed.clear()
        self._num_ended = self.num_computed = 0
        if self.windows is not None:
            self.windows.clear()

    def restore(self) -> None:
        """As a dead batcher published it last. What is pending will be counted anew."""
        words = self._words.tolist()
        self.cells[:] = words[: len(CELLS)]
        self.cells[CELL["pending_count"]] = self.cells[CELL["oldest_queued_ns"]] = 0
        for index, found in enumerate(_batches(words)):
            self._batches[found.batch_size] = [_BATCHES_WORD + index * _BATCH_WORDS, *found]

    def count_execution(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """One executed batch of `rows` rows."""
        self.cells[_EXECUTION_COUNT] += 1
        entry = self._batches.get(rows)
        if entry is None:
            if len(self._batches) == _MAX_BATCH_ENTRIES:
                return
            entry = self._batches[rows] = [_BATCHES_WORD + len(self._batches) * _BATCH_WORDS, rows, 0, 0, 0, 0]
        entry[2] += 1
        entry[3] += input_ns
        entry[4] += infer_ns
        entry[5] += output_ns
        self._changed.add(rows)

    def add_computed(self) -> None:
        """Add up what those requests took."""
        if not self.num_computed:
            return
        num, cells = self.num_computed, self.cells
        _, input_ns, infer_ns, output_ns = self.compute
        _, _, inputs, infers, outputs = self.histograms
        cells[_INPUT_NS] += num * input_ns
        cells[_INFER_NS] += num * infer_ns
        cells[_OUTPUT_NS] += num * output_ns
        inputs[input_ns.bit_length()] += num
        infers[infer_ns.bit_length()] += num
        outputs[output_ns.bit_length()] += num
        self.num_computed = 0

    def count_first_response(self, ns: int) -> None:
        """The first response to a request, `ns` after its client began to send it; in whole ms, as Triton has it."""
        self._words[_FIRST_RESPONSE_WORD + bisect_left(self.first_response_bounds, ns // _NS_PER_MS)] += 1

    def publish(self) -> None:
        """Show readers what has been counted; only how the queue stands, where no request or batch has ended since."""
        words, cells = self._words, self.cells
        num_ended = cells[_SUCCESS_COUNT] + cells[_FAIL_COUNT] + cells[_EXECUTION_COUNT]
        if num_ended == self._num_ended:  # two words: a sixth of the instructions
            words[_PENDING_COUNT], words[_OLDEST_QUEUED_NS] = cells[_PENDING_COUNT], cells[_OLDEST_QUEUED_NS]
            return
        self._num_ended = num_ended
        self.add_computed()
        words[: len(cells)] = array("Q", cells)
        for rows in self._changed:  # word by word: half of what an array costs
            start, *batch = self._batches[rows]
            words[start], words[start + 1], words[start + 2], words[start + 3], words[start + 4] = batch
        self._changed.clear()


class RowView(NamedTuple):
    """One model version's figures at one look."""

    cells: dict[str, int]
    batches: tuple[BatchStatistics, ...]
    #: By phase: how many times had how many bits.
    histograms: Mapping[str, Sequence[int]]
    #: By bound; one more for what is over all.
    first_response: Sequence[int]


ZERO_ROW = RowView(dict.fromkeys(CELLS, 0), (), dict.fromkeys(PHASES, (0,) * _HISTOGRAM_WORDS), (0,) * (MAX_BOUNDS + 1))


#: What the whole response cache does; times in ns. Those that are counted outlive a batcher, entries do not.
CACHE_FIGURES = (
    "num_lookups", "num_hits", "num_misses", "num_evictions", "lookup_ns", "insertion_ns", "num_entries", "used_bytes",
    "total_bytes",
)  # fmt: skip


class CacheFigures(dict[str, int]):
    """The response cache's figures as the batcher counts them: change them, then `publish`."""

    def __init__(self, words: memoryview, total_bytes: int) -> None:
        super().__init__(zip(CACHE_FIGURES, words, strict=True))
        self.update(num_entries=0, used_bytes=0, total_bytes=total_bytes)
        self._words = words

    def publish(self) -> None:
        """Show them to readers."""
        self._words[:] = array("Q", self.values())


class CounterTable:
    """The batcher's side of the table."""

    def __init__(self, segment: Segment) -> None:
        self._words = _slab(segment).cast("Q")
        self._windows = _windows(segment)

    def row(self, index: int) -> Row:
        """The row of a newly loaded model version, all zero."""
        row = self._row(index)
        row.clear()
        return row

    def restored_row(self, index: int) -> Row:
        """The row of a model version that another batcher has counted for."""
        row = self._row(index)
        row.restore()
        return row

    def cache_figures(self, total_bytes: int) -> CacheFigures:
        """Those of a cache with nothing in it, which may have so much."""
        return CacheFigures(self._words[_CACHE_WORD : _CACHE_WORD + len(CACHE_FIGURES)], total_bytes)

    def _row(self, index: int) -> Row:
        words = self._words[index * ROW_WORDS : (index + 1) * ROW_WORDS]
        windows = self._windows[index * WINDOWS_BYTES : (index + 1) * WINDOWS_BYTES]
        return Row(words, Windows(windows) if windows else None)


class CounterTableView:
    """A front end's side."""

    def __init__(self, mapping: MappedSegment) -> None:
        self._words = _slab(mapping).cast("Q")
        self._windows = _windows(mapping)

    def read(self, index: int) -> RowView:
        """Copy a row out."""
        words = self._words[index * ROW_WORDS : (index + 1) * ROW_WORDS].tolist()
        histograms = {
            phase: words[start : start + _HISTOGRAM_WORDS]
            for phase, start in zip(
                PHASES, range(_HISTOGRAMS_WORD, _FIRST_RESPONSE_WORD, _HISTOGRAM_WORDS), strict=False
            )
        }
        first_response = words[_FIRST_RESPONSE_WORD : _FIRST_RESPONSE_WORD + MAX_BOUNDS + 1]
        return RowView(dict(zip(CELLS, words, strict=False)), tuple(_batches(words)), histograms, first_response)

    def cache_figures(self) -> dict[str, int]:
        """Those of CACHE_FIGURES; all 0 where there is no cache."""
        return dict(zip(CACHE_FIGURES, self._words[_CACHE_WORD : _CACHE_WORD + len(CACHE_FIGURES)], strict=True))

    def windows(self, index: int) -> WindowsView | None:
        """How long a row's requests took in the last minute; None where nobody asked for summaries."""
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
    """What follows the rows: empty where nobody asked for summaries."""
    return _slab(mapping)[GEOMETRY.slab_nbytes :]

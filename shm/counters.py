"""Statistics in shared memory: one row of u64 cells per model version, written by the batcher, read by front ends.

`/v2/models/stats` and `/metrics` are views of these same cells, so they cannot differ. A row is 512 words: the named
cells below, then 94 entries of five words for statistics by executed batch size, filled in the order sizes first occur
(a model that executes more distinct sizes than that reports the first 94). Times are nanoseconds.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from shoal.shm.layout import WORD, Geometry
from shoal.shm.segment import Mapping, Segment

ROW_WORDS = 512
#: Model versions that can be loaded at once; a row is 4096 bytes, so this table takes 2 MiB.
MAX_ROWS = 512
GEOMETRY = Geometry(ring_capacity=0, slab_nbytes=MAX_ROWS * ROW_WORDS * WORD)

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
_EXECUTION_COUNT = CELL["execution_count"]
_BATCHES_WORD = 40
_BATCH_WORDS = 5
_MAX_BATCH_ENTRIES = (ROW_WORDS - _BATCHES_WORD) // _BATCH_WORDS


class BatchStatistics(NamedTuple):
    """What executing batches of one size has cost so far."""

    batch_size: int
    num_executions: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


class Row:
    """One model version's cells as the batcher counts: `row.cells[CELL["success_count"]] += 1`, then `publish`.

    The counting is done in private integers, which cost a fifth of words in shared memory.
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words
        # Changed by whoever counts; the batches also by count_execution.
        self.cells = [0] * len(CELLS)
        self._batches: dict[int, list[int]] = {}
        self._changed: set[int] = set()

    def clear(self) -> None:
        """All to 0: the row's model was loaded anew."""
        self._words[:] = memoryview(bytes(ROW_WORDS * WORD)).cast("Q")
        self.cells[:] = [0] * len(CELLS)
        self._batches.clear()
        self._changed.clear()

    def restore(self) -> None:
        """As a dead batcher published it last. What is pending will be counted anew."""
        words = self._words.tolist()
        self.cells[:] = words[: len(CELLS)]
        self.cells[CELL["pending_count"]] = 0
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

    def publish(self) -> None:
        """Show readers what has been counted."""
        self._words[: len(self.cells)] = array("Q", self.cells)
        for rows in self._changed:
            start, *words = self._batches[rows]
            self._words[start : start + _BATCH_WORDS] = array("Q", words)
        self._changed.clear()


class RowView(NamedTuple):
    """One model version's figures at one look."""

    cells: dict[str, int]
    batches: tuple[BatchStatistics, ...]


class CounterTable:
    """The batcher's side of the table."""

    def __init__(self, segment: Segment) -> None:
        self._words = _table(segment)

    def row(self, index: int) -> Row:
        """The row of a newly loaded model version, all zero."""
        row = Row(self._words[index * ROW_WORDS : (index + 1) * ROW_WORDS])
        row.clear()
        return row

    def restored_row(self, index: int) -> Row:
        """The row of a model version that another batcher has counted for."""
        row = Row(self._words[index * ROW_WORDS : (index + 1) * ROW_WORDS])
        row.restore()
        return row


class CounterTableView:
    """A front end's side."""

    def __init__(self, mapping: Mapping) -> None:
        self._words = _table(mapping)

    def read(self, index: int) -> RowView:
        """Copy a row out."""
        words = self._words[index * ROW_WORDS : (index + 1) * ROW_WORDS].tolist()
        return RowView(dict(zip(CELLS, words, strict=False)), tuple(_batches(words)))


def _batches(words: list[int]) -> Iterator[BatchStatistics]:
    for start in range(_BATCHES_WORD, _BATCHES_WORD + _MAX_BATCH_ENTRIES * _BATCH_WORDS, _BATCH_WORDS):
        if words[start] == 0:
            return
        yield BatchStatistics(*words[start : start + _BATCH_WORDS])


def _table(mapping: Mapping) -> memoryview:
    header = mapping.header
    return mapping.words[header.slab_offset // WORD : (header.slab_offset + header.slab_nbytes) // WORD]

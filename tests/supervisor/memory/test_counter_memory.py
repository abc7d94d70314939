"""supervisor/memory/batcher_memory.py: which rows of the table have memory."""

import os

import pytest

from shoal.shm.counters import MAX_ROWS, CounterTable
from shoal.shm.segment import OutOfSharedMemoryError, Segment
from shoal.supervisor.memory.batcher_memory import CounterMemory

ROW_NBYTES, PAGE = 8192, 4096


@pytest.fixture
def memory() -> CounterMemory:
    return CounterMemory()


def taken(memory: CounterMemory) -> int:
    """Bytes that the segment takes."""
    return 512 * os.fstat(memory.fd).st_blocks


def test_a_table_takes_memory_for_the_rows_in_use(memory: CounterMemory) -> None:
    memory.reserve(3)  # before there is a batcher
    assert memory.make(7, has_windows=False) > 512 * ROW_NBYTES
    assert taken(memory) == PAGE + 2 * ROW_NBYTES  # the header, the row, and that of the response cache
    memory.reserve(4)
    memory.reserve(3)  # again, by the next version that gets it
    assert taken(memory) == PAGE + 3 * ROW_NBYTES
    table = CounterTable(Segment.attach(os.dup(memory.fd), populate=False))
    for row in (3, 4):
        table.row(row).clear()
    assert memory.read().read(4).cells["success_count"] == 0
    assert taken(memory) == PAGE + 3 * ROW_NBYTES


def test_a_table_of_summaries_has_all_its_memory_from_the_beginning(memory: CounterMemory) -> None:
    nbytes = memory.make(7, has_windows=True)
    assert taken(memory) == nbytes


def test_a_row_without_memory_is_refused(memory: CounterMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.make(7, has_windows=False)

    def fail(_fd: int, offset: int, nbytes: int) -> None:
        assert nbytes == ROW_NBYTES
        assert offset % PAGE == 0
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail)
    with pytest.raises(OutOfSharedMemoryError, match=r"^no shared memory for a model's statistics: No space left"):
        memory.reserve(MAX_ROWS - 1)

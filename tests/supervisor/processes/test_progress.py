"""progress.py: a worker's words as the supervisor sees them, the test does the worker's and the batcher's part."""

import os
from collections.abc import Iterator

import pytest

from shoal.shm import segment
from shoal.shm.layout import LINK, WORKER, Geometry, record
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.supervisor.processes.progress import BusyShare, WorkerProgress, rss_bytes


class Worker:
    """A worker's segment, its link, and the rings between it and the batcher."""

    def __init__(self) -> None:
        self.fds = [
            segment.create(WORKER, 1, Geometry(4, 4096), sealed=True),
            segment.create(LINK, 1, Geometry(4, 0), sealed=False),
        ]
        own, link = (Segment.attach(os.dup(fd)) for fd in self.fds)
        self.words = own.words
        self.progress = WorkerProgress(*self.fds)
        self.batcher = RingWriter(link, own)
        self.reader = RingReader(own, SegmentView.attach(os.dup(self.fds[1])))

    def send(self, *kinds: int) -> None:
        """The batcher sends records of these kinds."""
        for kind in kinds:
            self.batcher.push(record(kind))
        self.batcher.publish()


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    for fd in found.fds:
        os.close(fd)


def test_words_are_where_the_layout_draws_them(worker: Worker) -> None:
    assert (worker.progress.number, worker.progress.busy_since_ns) == (0, 0)
    worker.words[24], worker.words[32], worker.words[40] = 17, 123, 99
    assert (worker.progress.number, worker.progress.busy_since_ns, worker.progress.busy_for_ns) == (17, 123, 99)


def test_an_execution_has_moved_when_it_began_or_when_it_said_so_since(worker: Worker) -> None:
    worker.words[56] = 50  # while an earlier batch was executed
    assert worker.progress.moved_ns == 0
    worker.words[32] = 123
    assert worker.progress.moved_ns == 123
    worker.words[56] = 200
    assert worker.progress.moved_ns == 200


@pytest.mark.parametrize(
    ("number", "busy_since_ns", "num_completed"), [(0, 0, 0), (0, 5, 0), (1, 5, 0), (1, 0, 1), (2, 5, 1), (2, 0, 2)]
)
def test_a_batch_is_completed_when_it_is_over(
    worker: Worker, number: int, busy_since_ns: int, num_completed: int
) -> None:
    worker.words[24], worker.words[32] = number, busy_since_ns
    assert worker.progress.num_completed == num_completed


def test_only_a_batch_that_was_not_looked_at_waits(worker: Worker) -> None:
    assert worker.progress.is_waited_for is False
    worker.send(6, 6)  # FREE
    assert worker.progress.is_waited_for is False
    worker.send(5, 6)  # BATCH_ITEM
    assert worker.progress.is_waited_for is True
    worker.reader.drain()
    assert worker.progress.is_waited_for is False
    worker.send(5)  # over the end of the ring
    assert worker.progress.is_waited_for is True


@pytest.mark.parametrize("head", [2**64 - 1, 5])
def test_a_false_head_is_ignored(worker: Worker, head: int) -> None:
    worker.send(6)
    worker.words[16] = head
    assert worker.progress.is_waited_for is False


def test_a_share_is_of_the_time_between_two_looks(worker: Worker) -> None:
    busy = BusyShare()
    words = worker.words
    shares = []
    # now, busy since, busy for
    for now_ns, since_ns, for_ns in ((1_000, 0, 400), (2_000, 1_750, 400), (3_000, 0, 1_000), (4_000, 0, 5_000)):
        words[32], words[40] = since_ns, for_ns
        busy.look(now_ns, worker.progress)
        shares.append(busy.share)
    assert shares == [0.0, 0.25, 0.35, 1.0]
    busy.look(5_000, None)
    assert busy.share == 0.0
    busy.look(6_000, worker.progress)
    assert busy.share == 0.0
    busy.look(7_000, worker.progress)
    assert busy.share == 0.0


def test_memory_of_a_process_that_is_there_and_of_one_that_is_not() -> None:
    assert rss_bytes(os.getpid()) > 1 << 20
    assert rss_bytes(0) == 0

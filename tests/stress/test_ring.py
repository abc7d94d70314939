"""Rings raced by real processes: nothing torn, lost or doubled, also when either end is killed at any moment."""

import os
import random
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.shm import segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, HEAD_WORD, LINK, RECORD_BYTES, TAIL_WORD, Geometry
from shoal.shm.ring import RingReader
from shoal.shm.segment import Segment, SegmentView
from tests.named_segments import left_behind, named_segments
from tests.stress.ring_end import record_of

ROOT = Path(__file__).parents[2]
CAPACITY = 1000  # no power of two: every slot is torn at the edge some time
DEADLINE_S = 60  # of what takes seconds; a race that stands still takes for ever
NUM_KILLS = 200

pytestmark = pytest.mark.stress


class End:
    """A process that is one end of the ring."""

    def __init__(self, forker: "subprocess.Popen[str]", role: str, limit: int, seed: int) -> None:
        self._forker = forker
        self.pid = int(self._tell(f"{role} {limit} {seed}"))
        # Changed by reap.
        self.status: int | None = None

    def has_ended(self, timeout_s: float) -> bool:
        """Whether the process ends within `timeout_s`; told by the kernel."""
        pidfd = os.pidfd_open(self.pid)
        try:
            return bool(select.select([pidfd], [], [], timeout_s)[0])
        finally:
            os.close(pidfd)

    def kill(self) -> int:
        """Its exit status."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.reap()

    def reap(self) -> int:
        """Wait for its end; its exit status."""
        if self.status is None:
            self.status = int(self._tell(f"reap {self.pid}"))
        return self.status

    def _tell(self, line: str) -> str:
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        print(line, file=self._forker.stdin, flush=True)
        return self._forker.stdout.readline()


class RacedRing:
    """A ring's memory and bells, as a supervisor holds them; it outlives whoever is at its ends."""

    def __init__(self) -> None:
        self.writer_fd = segment.create(CLIENT, 5, Geometry(CAPACITY, 0), sealed=False)
        self.reader_fd = segment.create(LINK, 1, Geometry(0, 0), sealed=False)
        self.writer_view_fd, self.reader_view_fd = map(segment.read_only, (self.writer_fd, self.reader_fd))
        self.bells = [Doorbell.create() for _ in range(3)]
        self.writer_view = SegmentView.attach(os.dup(self.writer_view_fd))
        self.reader_view = SegmentView.attach(os.dup(self.reader_view_fd))
        fds = [self.writer_fd, self.writer_view_fd, self.reader_fd, self.reader_view_fd, *(b.fd for b in self.bells)]
        command = [sys.executable, "-m", "tests.stress.ring_end", *map(str, fds)]
        self._forker = subprocess.Popen(
            command, cwd=ROOT, pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ends: list[End] = []

    @property
    def started(self) -> Doorbell:
        return self.bells[2]

    def start(self, role: str, limit: int, seed: int) -> End:
        """A process that starts where its predecessor in this role has ended."""
        self.ends.append(End(self._forker, role, limit, seed))
        return self.ends[-1]

    def drain_the_rest(self) -> list[tuple[int, ...]]:
        """Be the last reader."""
        return list(RingReader(Segment.attach(os.dup(self.reader_fd)), self.writer_view).drain())

    def unpublished_is_in_the_next_slot(self) -> bool:
        """Whether the slot at the tail has been written, in part at least, by who died before publishing it."""
        tail = self.writer_view.words[TAIL_WORD]
        start = 4096 + tail % CAPACITY * RECORD_BYTES
        return int.from_bytes(self.writer_view.bytes[start : start + 8], "little") == tail > 0

    def close(self) -> None:
        for end in self.ends:
            end.kill()
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        with self._forker.stdin, self._forker.stdout:
            """It ends when it has no more to read."""
        assert self._forker.wait(DEADLINE_S) == 0
        for fd in (self.writer_fd, self.reader_fd, self.writer_view_fd, self.reader_view_fd):
            os.close(fd)
        for bell in self.bells:
            bell.close()


@pytest.fixture
def ring(num_descriptors: Callable[[], int]) -> Iterator[RacedRing]:
    """A ring to race on; afterwards no descriptor, no mapping and no name of it is left, whoever was killed."""
    before, names = num_descriptors(), named_segments()
    ring = RacedRing()
    yield ring
    ring.close()
    mappings = [weakref.ref(view.bytes.obj) for view in (ring.writer_view, ring.reader_view)]
    del ring.writer_view, ring.reader_view
    assert num_descriptors() == before
    assert [mapping() for mapping in mappings] == [None, None]
    assert left_behind(names) == set()


def test_two_million_records_arrive_once_whole_and_in_order(ring: RacedRing, seed: int) -> None:
    writer, reader = (ring.start(role, 2_000_000, seed) for role in ("writer", "reader"))
    for end in (writer, reader):
        assert end.has_ended(DEADLINE_S), "the race is not over"
        assert end.reap() == 0
    assert ring.writer_view.words[TAIL_WORD] == ring.reader_view.words[HEAD_WORD] == 2_000_000
    assert ring.drain_the_rest() == []


def test_either_end_may_be_killed_at_any_moment(ring: RacedRing, seed: int) -> None:
    moments = random.Random(seed)
    limit = 2**62  # nobody gets there
    ends = {}
    for role in ("writer", "reader"):
        ends[role] = ring.start(role, limit, seed)
        wait_for(ring.started)
    killed_while_pushing = 0
    for number in range(NUM_KILLS):
        head = ring.reader_view.words[HEAD_WORD]
        while ring.reader_view.words[HEAD_WORD] == head:  # both are at work, however busy the machine is
            assert not ends["reader"].has_ended(0.001), f"the reader ended with {ends['reader'].reap()}"
        role = moments.choice(("writer", "reader"))
        assert not ends[role].has_ended(moments.uniform(0, 0.004)), f"the {role} ended with {ends[role].reap()}"
        assert ends[role].kill() == -9
        if role == "writer":
            killed_while_pushing += ring.unpublished_is_in_the_next_slot()
        ends[role] = ring.start(role, limit, seed + number)
        wait_for(ring.started)
    for role in ("writer", "reader"):
        assert not ends[role].has_ended(0), f"the {role} ended with {ends[role].reap()}"
        assert ends[role].kill() == -9
    tail, head = ring.writer_view.words[TAIL_WORD], ring.reader_view.words[HEAD_WORD]
    assert 0 <= tail - head <= CAPACITY
    assert ring.drain_the_rest() == [record_of(number) for number in range(head, tail)]
    assert killed_while_pushing >= 5, "the moments were badly chosen: hardly a record was in the making"


def wait_for(bell: Doorbell) -> None:
    """One ring of a bell that counts to one at a time: its ringers are started one after another."""
    assert select.select([bell], [], [], DEADLINE_S)[0], "the successor did not start"
    bell.clear()

"""A result that finds no room in the slab: what the worker asks for, in which order, and for how long it waits."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from shoal.messages.shared import PayloadGranted, PayloadMapped, PayloadReady, PayloadRefused, PayloadWanted
from shoal.shm import segment
from shoal.shm.layout import OVERSIZE, WANT, Geometry
from shoal.shm.ring import RingReader
from shoal.shm.segment import SegmentView
from shoal.shm.slab import Block, SlabView
from shoal.workers.loop import Loop
from shoal.workers.memory import Memory
from tests.messages import receive
from tests.workers.worker_harness import VARIABLE, Batcher, loop_of

#: Four quarters of 16 KiB, and the odd unit.
SLAB = 65536 + 4096
ROOM, ROOM_NOW = 1, 2


@pytest.fixture
def batcher(make_batcher: Callable[..., Batcher]) -> Batcher:
    return make_batcher(worker=SLAB)


def make(owner: int, nbytes: int) -> tuple[int, SegmentView]:
    fd = segment.create(OVERSIZE, owner, Geometry(0, nbytes), sealed=True)
    return fd, SegmentView.attach(segment.read_only(fd))


class Supervisor:
    """Grants segments, or refuses them, in a thread of its own; `asked` are their sizes."""

    def __init__(self, batcher: Batcher, max_segments: int = 100) -> None:
        self.asked: list[int] = []
        self.views: dict[int, SegmentView] = {}
        self._batcher = batcher
        self._max_segments = max_segments
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        channel = self._batcher.supervisor
        while True:
            try:
                message, _ = receive(channel)
            except (EOFError, OSError):
                return
            if isinstance(message, PayloadWanted):
                self.asked.append(message.nbytes)
                if len(self.views) >= self._max_segments:
                    channel.send(PayloadRefused(request=message.request, wire=5, sentence="no room"))
                    continue
                owner = 50 + len(self.views)
                fd, self.views[owner] = make(owner, -(-message.nbytes // 4096) * 4096)
                channel.send(PayloadGranted(request=message.request, owner=owner, may_be_kept=True, segment=fd))
            elif isinstance(message, PayloadMapped):
                channel.send(PayloadReady(message.owner))


def run(loop: Loop, batcher: Batcher, nbytes: int) -> tuple[int, int]:
    """(status, owner of the block) of a result of so many bytes, header excluded."""
    tensor = np.arange(nbytes // 4, dtype=np.float32)[None]
    batcher.send(batcher.request([("INPUT0", "FP32", tensor)]))
    loop.step()
    records = [record for record in batcher.reader.drain() if record[0] == 7]
    ((_, _, _, status, ref, *_),) = records
    return status, ref >> 40


def wants(batcher: Batcher) -> set[int]:
    """What the worker has said that it wants, since the last time; then all that it says is read."""
    return {record[3] for record in batcher.reader.drain() if record[0] == WANT}


def on_want(memory: Memory, batcher: Batcher, react: Callable[[int], None]) -> None:
    """Whenever the worker rings, `react` is called with the urgency of each WANT that it has sent. The records stay in
    the ring."""
    reader, wake = RingReader(batcher.own, batcher.worker_view), memory.ring

    def ring() -> None:
        wake()
        for record in reader.read():
            if record[0] == WANT:
                react(record[3])

    memory.ring = ring


def test_a_result_beyond_a_quarter_of_the_slab_has_a_segment_of_its_own(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher)
    assert run(loop, batcher, 16000) == (0, 3)
    assert run(loop, batcher, 17000) == (0, 50)
    assert len(supervisor.asked) == 1
    assert loop._memory.slab.num_taken == 2  # and the spare unit


def test_one_small_block_that_is_held_keeps_no_large_result_waiting(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher)
    assert run(loop, batcher, 4) == (0, 3)
    for _ in range(5):
        assert run(loop, batcher, 40_000)[0] == 0
    assert len(supervisor.asked) == 5


def test_results_that_clients_hold_are_asked_for_before_a_segment_is(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher)
    assert [run(loop, batcher, 16000) for _ in range(4)] == [(0, 3)] * 4
    batcher.send(batcher.request([("INPUT0", "FP32", np.zeros((1, 4000), np.float32))]))
    loop.step()
    records = list(batcher.reader.drain())
    assert {record[3] for record in records if record[0] == WANT} == {ROOM}
    assert [record[4] >> 40 for record in records if record[0] == 7] == [50]
    (nbytes,) = supervisor.asked
    assert 16000 <= nbytes <= 16384


def test_a_block_that_comes_back_is_taken_before_a_segment_is_made(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher, max_segments=0)
    memory = loop._memory
    held = [memory.allocate(16384) for _ in range(4)]

    def give_back(urgency: int) -> None:
        if urgency == ROOM and (block := held.pop()) is not None:
            batcher.free(block.ref)

    on_want(memory, batcher, give_back)
    assert run(loop, batcher, 16000) == (0, 3)
    assert supervisor.asked == []


def test_what_was_awaited_in_vain_is_not_awaited_again_until_a_block_comes_back(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher)
    memory = loop._memory
    held = [memory.allocate(16384) for _ in range(4)]
    allocate = memory.allocate
    tries = 0

    def counted(nbytes: int) -> Block | None:
        nonlocal tries
        tries += 1
        return allocate(nbytes)

    def has_waited(owner: int) -> bool:
        nonlocal tries
        tries = 0
        assert run(loop, batcher, 16000) == (0, owner)
        return tries > 2  # twice without a wait: once by the result, once after records were read

    memory.allocate = counted
    assert [has_waited(owner) for owner in (50, 51, 52)] == [True, False, False]
    assert len(supervisor.asked) == 3
    block = held.pop()
    assert block is not None
    batcher.free(block.ref)
    assert [has_waited(owner) for owner in (3, 53)] == [False, True]


def test_what_is_awaited_in_vain_is_asked_for_all_the_same(batcher: Batcher) -> None:
    loop = loop_of(batcher, VARIABLE)
    Supervisor(batcher)
    for _ in range(4):
        assert loop._memory.allocate(16384) is not None
    run(loop, batcher, 16000)
    batcher.send(batcher.request([("INPUT0", "FP32", np.zeros((1, 4000), np.float32))]))
    loop.step()
    assert wants(batcher) == {ROOM}


def test_where_there_is_no_segment_either_the_slowest_readers_are_given_up(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher, max_segments=0)
    memory = loop._memory
    held = [memory.allocate(16384) for _ in range(4)]
    said: list[int] = []

    def give_back(urgency: int) -> None:
        said.append(urgency)
        if urgency == ROOM_NOW and held and (block := held.pop()) is not None:
            batcher.free(block.ref)

    on_want(memory, batcher, give_back)
    assert run(loop, batcher, 16000) == (0, 3)
    assert len(supervisor.asked) == 1
    assert said[0] == ROOM
    assert set(said) == {ROOM, ROOM_NOW}


def test_a_large_result_waits_for_another_of_its_kind_to_come_back(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher, max_segments=1)
    assert run(loop, batcher, 40_000) == (0, 50)
    (ref,) = loop._memory.oversize.refs
    memory = loop._memory

    def give_back(urgency: int) -> None:
        if urgency == ROOM_NOW:
            batcher.free(ref)

    on_want(memory, batcher, give_back)
    assert run(loop, batcher, 40_000) == (0, 50)  # in the same segment
    assert len(supervisor.asked) == 2


def test_what_nothing_could_help_fails_at_once(batcher: Batcher) -> None:
    loop = loop_of(batcher, VARIABLE)
    Supervisor(batcher, max_segments=0)
    status, _ = run(loop, batcher, 40_000)
    assert status == 5
    assert wants(batcher) == set()


def test_a_result_in_a_segment_is_read_where_it_lies(batcher: Batcher) -> None:
    loop, supervisor = loop_of(batcher, VARIABLE), Supervisor(batcher)
    tensor = np.arange(10_000, dtype=np.float32)[None]
    batcher.send(batcher.request([("INPUT0", "FP32", tensor)]))
    loop.step()
    batcher.results = SlabView(supervisor.views[50])
    (done,) = batcher.done()
    assert np.array_equal(done.outputs["OUTPUT0"], tensor)


def test_a_block_that_came_back_while_a_batch_was_executed_is_found(batcher: Batcher) -> None:
    memory = loop_of(batcher, VARIABLE)._memory
    Supervisor(batcher)
    held = [memory.allocate(16384) for _ in range(4)]
    assert memory.find_block(16000).ref >> 40 == 50
    block = held.pop()
    assert block is not None
    batcher.free(block.ref)
    assert memory.find_block(16000).ref >> 40 == 3


def test_a_segment_that_came_back_while_a_batch_was_executed_is_found(batcher: Batcher) -> None:
    memory, supervisor = loop_of(batcher, VARIABLE)._memory, Supervisor(batcher)
    batcher.free(memory.find_block(40_000).ref)
    assert memory.find_block(40_000).ref >> 40 == 50
    assert len(supervisor.asked) == 1

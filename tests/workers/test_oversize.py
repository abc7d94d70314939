"""Results in segments of their own; the test plays the supervisor at the other end of a real control connection."""

import os
import time
from collections.abc import Callable

import numpy as np
import pytest

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.messages.message import Message
from shoal.messages.shared import (
    PayloadGranted,
    PayloadMapped,
    PayloadReady,
    PayloadRefused,
    PayloadReleased,
    PayloadWanted,
    SegmentGone,
)
from shoal.shm import segment
from shoal.shm.layout import OVERSIZE, Geometry
from shoal.shm.segment import SegmentView
from shoal.shm.slab import SlabView
from shoal.shm.whole_slabs import KEEP_S
from shoal.workers.tensors import Array
from tests.messages import receive
from tests.workers.worker_harness import VARIABLE, Batcher, loop_of

UNITS = 4
ASKED = PayloadWanted(request=1, nbytes=12025)


@pytest.fixture
def batcher(make_batcher: Callable[..., Batcher]) -> Batcher:
    return make_batcher(worker=8192)


@pytest.fixture
def hasty(make_batcher: Callable[..., Batcher]) -> Batcher:
    """One whose worker waits for nothing that is not there at once."""
    return make_batcher(worker=8192, block_wait_s=0.01)


def grant(batcher: Batcher, owner: int = 50, request: int = 1, *, keep: bool = False) -> SegmentView:
    """Send the worker a segment; a reader's view of it."""
    fd = segment.create(OVERSIZE, owner, Geometry(0, UNITS * 4096), sealed=True)
    view = SegmentView.attach(segment.read_only(fd))
    batcher.supervisor.send(PayloadGranted(request, owner, keep, fd))
    os.close(fd)
    return view


def refuse(batcher: Batcher, request: int) -> None:
    """Tell the worker that it gets no segment now."""
    batcher.supervisor.send(PayloadRefused(request, UnavailableError.wire, "no room"))


def send(batcher: Batcher) -> Array:
    tensor = np.arange(3000, dtype=np.float32)[None]
    batcher.send(batcher.request([("INPUT0", "FP32", tensor)]))
    return tensor


def heard(batcher: Batcher) -> Message:
    message: Message = receive(batcher.supervisor)[0]
    return message


def test_a_large_result_is_written_into_a_segment_that_was_asked_for(batcher: Batcher) -> None:
    loop = loop_of(batcher, VARIABLE)
    tensor = send(batcher)
    view = grant(batcher)
    batcher.supervisor.send(PayloadReady(50))
    batcher.results = SlabView(view)
    loop.step()
    (done,) = batcher.done()
    assert (done.status, done.ref) == (0, 0x000032_00000_00001)
    assert np.array_equal(done.outputs["OUTPUT0"], tensor)
    assert isinstance(heard(batcher), PayloadWanted)
    assert heard(batcher) == PayloadMapped(50)
    batcher.free(done.ref)
    loop.step()
    assert heard(batcher) == PayloadReleased(50)
    batcher.free(done.ref)  # once only
    loop.step()
    batcher.supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(batcher.supervisor)


@pytest.mark.parametrize(("wire", "status"), [(5, 5), (4, 2)], ids=["now", "never"])
def test_a_refusal_is_the_answer_with_the_models_name(batcher: Batcher, wire: int, status: int) -> None:
    loop = loop_of(batcher, VARIABLE)
    send(batcher)
    batcher.supervisor.send(PayloadRefused(request=1, wire=wire, sentence="raise --shm-oversize-mib"))
    loop.step()
    (done,) = batcher.done()
    assert done.status == status
    assert done.sentence == (
        "output 'OUTPUT0' of model 'm' is 12000 bytes, the results of one batch do not fit into memory: "
        "raise --shm-oversize-mib"
    )


def test_what_was_awaited_too_long_fails_and_is_given_back_when_it_comes(
    hasty: Batcher, num_descriptors: Callable[[], int]
) -> None:
    memory = hasty.memory()
    before = num_descriptors()
    with pytest.raises(UnavailableError, match=r"^no shared memory for a result of 12025 bytes: .* within 0\.01 s"):
        memory.oversize.allocate(12025)
    assert heard(hasty) == ASKED
    grant(hasty)
    memory.oversize.receive(receive(hasty.worker_channel)[0])
    assert heard(hasty) == PayloadReleased(50)
    memory.oversize._wait_s = 10.0
    hasty.supervisor.send(PayloadRefused(request=2, wire=4, sentence="never"))
    with pytest.raises(InvalidArgumentError, match=r"^never$"):
        memory.oversize.allocate(12025)
    assert num_descriptors() == before


def test_a_segment_that_is_not_announced_in_time_is_given_back(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = batcher.memory()

    def listen() -> None:
        message = receive(batcher.worker_channel)[0]
        memory.oversize.receive(message)
        if isinstance(message, PayloadReady):
            now_s[0] += 10.0  # the time is up

    memory.oversize.listen = listen
    now_s = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    grant(batcher)
    batcher.supervisor.send(PayloadReady(51))  # another one's
    with pytest.raises(UnavailableError):
        memory.oversize.allocate(12025)
    assert [type(heard(batcher)) for _ in range(3)] == [PayloadWanted, PayloadMapped, PayloadReleased]


def test_other_messages_are_obeyed_while_a_segment_is_awaited(batcher: Batcher) -> None:
    memory = batcher.memory()
    others = list[object]()

    def obey() -> None:
        message = receive(batcher.worker_channel)[0]
        if isinstance(message, SegmentGone):
            others.append(message.owner)
        else:
            memory.oversize.receive(message)

    memory.oversize.listen = obey
    grant(batcher)
    batcher.supervisor.send(SegmentGone(7))
    batcher.supervisor.send(PayloadReady(50))
    block = memory.oversize.allocate(12025)
    assert (block.ref, len(block.memory), others) == (0x000032_00000_00001, UNITS * 4096, [7])


def test_one_that_may_be_kept_is_there_for_the_next_result(batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(batcher, VARIABLE)
    oversize = loop._memory.oversize
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    view = grant(batcher, keep=True)
    batcher.supervisor.send(PayloadReady(50))
    batcher.results = SlabView(view)
    for ref in (0x000032_00000_00001, 0x000032_00000_00003):
        tensor = send(batcher)
        loop.step()
        (done,) = batcher.done()
        assert (done.status, done.ref) == (0, ref)
        assert np.array_equal(done.outputs["OUTPUT0"], tensor)
        assert oversize.refs == [ref]
        batcher.free(ref)
        loop.step()
    assert [type(heard(batcher)) for _ in range(2)] == [PayloadWanted, PayloadMapped]
    batcher.free(0x000032_00000_00001)  # a name of old
    loop.step()
    assert oversize.refs == []
    now_s += KEEP_S
    assert oversize.look() is None
    assert heard(batcher) == PayloadReleased(50)


def test_one_that_is_kept_makes_room_for_a_result_that_needs_another(batcher: Batcher) -> None:
    memory = batcher.memory()
    grant(batcher, keep=True)
    batcher.supervisor.send(PayloadReady(50))
    memory.free(memory.oversize.allocate(4096).ref)
    refuse(batcher, request=2)
    grant(batcher, owner=51, request=3)
    batcher.supervisor.send(PayloadReady(51))
    assert memory.oversize.allocate(UNITS * 4096 + 1).ref >> 40 == 51
    types = [PayloadWanted, PayloadMapped, PayloadWanted, PayloadReleased, PayloadWanted, PayloadMapped]
    assert [type(heard(batcher)) for _ in types] == types


def test_one_that_another_thread_frees_is_kept_and_looked_for(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = batcher.memory()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    memory.share()
    grant(batcher, keep=True)
    batcher.supervisor.send(PayloadReady(50))
    block = memory.oversize.allocate(12025)
    assert memory.oversize.look() == KEEP_S  # it may be freed while the loop's thread sleeps
    memory.free(block.ref)
    assert memory.oversize.look() == KEEP_S
    now_s += KEEP_S
    assert memory.oversize.look() is None
    assert [type(heard(batcher)) for _ in range(3)] == [PayloadWanted, PayloadMapped, PayloadReleased]
    assert not memory.oversize.segments

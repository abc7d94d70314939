"""A worker's loop with real segments, rings and bells, on the identity backend."""

import gc
import os
import socket
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shoal import log
from shoal.control import Channel
from shoal.messages.shared import Acknowledged, LogChanged, SegmentAnnounced, SegmentGone
from shoal.messages.to_batcher import BatcherMemoryMade
from shoal.messages.to_worker import StopWorker
from shoal.model_config.signature import Signature
from shoal.workers.backends.identity import IdentityBackend
from shoal.workers.faults import SMALLER_FOR_NS, DeviceLostError
from shoal.workers.loop import Loop
from shoal.workers.requests import RequestReader
from shoal.workers.tensors import Array
from tests.messages import receive
from tests.workers.worker_harness import (
    CONFIG,
    CPU,
    Batcher,
    Returning,
    loop_of,
    model,
    rows,
)


def test_one_request_is_answered_in_a_block_of_the_worker(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1, 2))]), batch=9, rows=2)
    assert loop.step() == 1
    (done,) = batcher.done()
    assert (done.key, done.batch, done.status) == (1, 9, 0)
    assert np.array_equal(done.outputs["OUTPUT0"], rows(1, 2))
    assert done.offsets == {"OUTPUT0": 0}
    assert done.parameters == {}
    start, input_end, output_start, end = done.times
    assert 0 < start <= input_end <= output_start <= end
    assert loop.step() == 0


def test_misaligned_input_is_answered(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(7))], offset=3))
    loop.step()
    assert batcher.done()[0].outputs["OUTPUT0"].tolist() == [[7, 7, 7, 7]]


def test_several_batches_of_one_step_are_answered_in_order(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    progress = batcher.worker_view.words[24]
    for batch in (1, 2, 3):
        batcher.send(batcher.request([("INPUT0", "FP32", rows(batch))]), batch=batch)
    assert loop.step() == 3
    assert [done.batch for done in batcher.done()] == [1, 2, 3]
    assert batcher.worker_view.words[24] == progress + 3


@pytest.mark.parametrize(("ring_after_ns", "rings"), [(-1, 2), (60_000_000_000, 1)])
def test_the_batcher_is_woken_once_for_what_is_ready(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch, ring_after_ns: int, rings: int
) -> None:
    monkeypatch.setattr("shoal.workers.loop.RING_AFTER_NS", ring_after_ns)
    loop = loop_of(batcher)
    for batch in (1, 2):
        batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]), batch=batch)
    assert loop.step() == 2
    assert os.eventfd_read(batcher.bell.fd) == rings
    assert len(batcher.done()) == 2


def test_without_a_batch_dimension_requests_run_one_by_one(batcher: Batcher) -> None:
    config = {**CONFIG, "max_batch_size": 0}
    loop = loop_of(batcher, config)
    batcher.send(*(batcher.request([("INPUT0", "FP32", np.full(4, value, np.float32))]) for value in (1, 2)))
    assert loop.step() == 2
    done = batcher.done()
    assert [one.outputs["OUTPUT0"].tolist() for one in done] == [[1, 1, 1, 1], [2, 2, 2, 2]]
    assert done[0].ref != done[1].ref


# -- the GPU's faults --------------------------------------------------------------------------------------------------


class Tight(Returning):
    """A model that has memory for batches of two rows, and for none with a negative number."""

    def __init__(self) -> None:
        super().__init__(self._double)
        self.tried: list[int] = []

    def _double(self, inputs: dict[str, Array]) -> dict[str, Array]:
        array = inputs["INPUT0"]
        self.tried.append(len(array))
        if (array < 0).any():
            raise RuntimeError("CUDA error: device-side assert triggered")
        if len(array) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return {"OUTPUT0": 2 * array}


class Placing(Tight):
    """The same, its outputs written where clients read them."""

    def known_outputs(self, inputs: dict[str, Array], rows: int) -> dict[str, tuple[int, ...]]:
        return {"OUTPUT0": (rows, 4)}


def send_ones(batcher: Batcher, *values: int, batch: int = 1) -> None:
    batcher.send(*(batcher.request([("INPUT0", "FP32", rows(value))]) for value in values), batch=batch)


@pytest.mark.parametrize("backend", [Tight(), Placing()], ids=["returned", "in place"])
def test_a_batch_too_large_for_the_gpu_is_split_and_none_as_large_is_tried_for_a_while(
    batcher: Batcher, backend: Tight, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, collections = loop_of(batcher, backend=backend), list[int]()
    monkeypatch.setattr(gc, "collect", lambda: collections.append(1))
    send_ones(batcher, 1, 2, 3, 4, 5)
    loop.step()
    done = batcher.done()
    assert [(one.key, one.batch, one.status) for one in done] == [(key, 1, 0) for key in range(1, 6)]
    assert [one.outputs["OUTPUT0"].tolist()[0][0] for one in done] == [2, 4, 6, 8, 10]
    assert (backend.tried, len(collections)) == ([5, 3, 2, 2, 1], 2)
    send_ones(batcher, 1, 2, 3)
    loop.step()
    assert (backend.tried[5:], len(collections)) == ([2, 1], 2)  # nothing was raised
    later_ns = time.monotonic_ns() + SMALLER_FOR_NS
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    send_ones(batcher, 1, 2, 3)
    loop.step()
    assert backend.tried[7:] == [3, 2, 1]
    assert all(one.status == 0 for one in batcher.done())


def test_what_may_not_run_again_fails_and_later_batches_are_split_before_they_run(batcher: Batcher) -> None:
    backend = Tight()
    loop = loop_of(batcher, backend=backend, may_run_again=False)
    send_ones(batcher, 1, 2, 3)
    loop.step()
    done = batcher.done()
    assert [one.status for one in done] == [2, 2, 2]
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in done[0].sentence
    send_ones(batcher, 1, 2, 3)
    loop.step()
    assert [one.status for one in batcher.done()] == [0, 0, 0]
    assert backend.tried == [3, 2, 1]


def test_a_single_request_too_large_for_the_gpu_fails_with_the_words_of_its_framework(batcher: Batcher) -> None:
    backend = Tight()
    loop = loop_of(batcher, backend=backend)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1, 2, 3))]), batcher.request([("INPUT0", "FP32", rows(4))]))
    loop.step()
    large, small = batcher.done()
    assert (large.status, small.status) == (2, 0)
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in large.sentence


def test_a_lost_gpu_ends_the_loop_once_its_batch_is_answered_and_begins_no_other(batcher: Batcher) -> None:
    backend = Tight()
    loop = loop_of(batcher, backend=backend)
    send_ones(batcher, -1, 1)
    send_ones(batcher, 1, batch=2)
    with pytest.raises(DeviceLostError):
        loop.step()
    done = batcher.done()
    assert [(one.batch, one.status) for one in done] == [(1, 2), (1, 2)]
    assert "CUDA error: device-side assert triggered" in done[0].sentence
    assert backend.tried == [2]


def test_a_batch_none_of_whose_requests_can_be_read_has_failed_in_its_execution(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a GPU is lost while an input in a client's memory there is read."""

    def refuse(*_arguments: object) -> None:
        raise RuntimeError("CUDA error 2: out of memory")

    monkeypatch.setattr(RequestReader, "open", refuse)
    loop = loop_of(batcher)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]))
    loop.step()
    assert "out of memory" in batcher.done()[0].sentence
    assert [vars(line)["stage"] for line in caplog.records] == ["execute"]


def test_of_a_batch_in_parts_nothing_is_executed_once_the_gpu_is_lost(batcher: Batcher) -> None:
    backend = Tight()
    loop = loop_of(batcher, backend=backend)
    send_ones(batcher, 1, 2, 3)
    loop.step()
    assert len(batcher.done()) == 3
    send_ones(batcher, 1, -1, 1, 1)
    with pytest.raises(DeviceLostError):
        loop.step()
    assert [one.status for one in batcher.done()] == [2, 2, 2, 2]
    assert backend.tried == [3, 2, 1, 2]


def test_without_a_batch_dimension_too_a_lost_gpu_fails_all_requests(batcher: Batcher) -> None:
    backend = Tight()
    loop = loop_of(batcher, {**CONFIG, "max_batch_size": 0}, backend)
    batcher.send(*(batcher.request([("INPUT0", "FP32", np.full(4, value, np.float32))]) for value in (-1, 1)))
    with pytest.raises(DeviceLostError):
        loop.step()
    done = batcher.done()
    assert [one.status for one in done] == [2, 2]
    assert "CUDA error: device-side assert triggered" in done[1].sentence
    assert len(backend.tried) == 1


# -- the supervisor ---------------------------------------------------------------------------------------------------


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        yield Channel(here), Channel(there)


def test_announced_segments_are_acknowledged_and_stop_answers_what_was_taken(
    batcher: Batcher, channels: tuple[Channel, Channel]
) -> None:
    supervisor, worker = channels
    memory = batcher.memory()
    memory.segments.remove(7)
    backend = IdentityBackend()
    backend.load(model(CONFIG), CPU)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(5))]))
    supervisor.send(SegmentAnnounced(owner=7, segment=batcher.client_fd), seq=12)
    supervisor.send(SegmentGone(8))
    supervisor.send(StopWorker())
    Loop(backend, Signature.from_config(CONFIG), "m_0_0", memory).run(worker)
    assert receive(supervisor) == (Acknowledged(12), 0)
    assert batcher.done()[0].outputs["OUTPUT0"].tolist() == [[5, 5, 5, 5]]


def test_the_loop_ends_when_the_supervisor_is_gone(batcher: Batcher, channels: tuple[Channel, Channel]) -> None:
    supervisor, worker = channels
    supervisor.close()
    with pytest.raises(EOFError):
        loop_of(batcher).run(worker)


def test_log_settings_are_in_force_before_the_next_batch(batcher: Batcher, channels: tuple[Channel, Channel]) -> None:
    supervisor, worker = channels
    before = (log.logger.handlers[:], log.logger.level, log.logger.propagate)
    try:
        supervisor.send(LogChanged({"log_verbose": 2}))
        loop_of(batcher).obey(worker, *receive(worker))
        assert log.logger.level == log.verbose(2)
    finally:
        log.logger.handlers[:], log.logger.level, log.logger.propagate = before


def test_unknown_messages_are_acknowledged_and_their_descriptors_closed(
    batcher: Batcher, channels: tuple[Channel, Channel], num_descriptors: Callable[[], int]
) -> None:
    supervisor, worker = channels
    loop = loop_of(batcher)
    before = num_descriptors()
    supervisor.send(BatcherMemoryMade(batcher.client_fd), seq=5)  # which is the batcher's
    loop._listen(worker)
    assert num_descriptors() == before
    assert receive(supervisor) == (Acknowledged(5), 0)

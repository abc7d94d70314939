"""Segments of others: announced, or asked for when a request names one that was not announced."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.control import Channel
from shoal.messages.shared import SegmentAnnounced, SegmentMissing, SegmentWanted
from shoal.shm import layout, segment
from shoal.shm.layout import WORKER, Geometry
from shoal.shm.segment import Segment
from shoal.shm.slab import Slab
from shoal.workers.loop import Loop
from tests.messages import receive
from tests.request_headers import request_header
from tests.workers.worker_harness import WIRE, Batcher, loop_of, rows

LENDER = 77


class Lender:
    """Another worker's slab, and a supervisor that lends it in its own thread."""

    def __init__(self, supervisor: Channel) -> None:
        fd = segment.create(WORKER, LENDER, Geometry(0, 4 * layout.UNIT), sealed=True)
        self.read_only_fd = segment.read_only(fd)
        self.slab = Slab(Segment.attach(fd))
        self.supervisor = supervisor
        self.asked: list[int] = []

    def answer(self, *, is_there: bool = True) -> threading.Thread:
        def serve() -> None:
            message, _ = receive(self.supervisor)
            assert isinstance(message, SegmentWanted)
            self.asked.append(message.owner)
            if is_there:
                self.supervisor.send(SegmentAnnounced(owner=message.owner, segment=self.read_only_fd))
            else:
                self.supervisor.send(SegmentMissing(message.owner))

        thread = threading.Thread(target=serve)
        thread.start()
        return thread


@pytest.fixture
def lender(batcher: Batcher) -> Iterator[Lender]:
    made = Lender(batcher.supervisor)
    yield made
    os.close(made.read_only_fd)


def connected(batcher: Batcher) -> Loop:
    """A loop that can ask, as `run` makes it."""
    loop = loop_of(batcher)
    channel = batcher.worker_channel
    loop._memory.segments.connect(channel, lambda: loop.obey(channel, *receive(channel)))
    return loop


def lent_request(
    batcher: Batcher, lender: Lender, *arrays: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> list[tuple[int, int]]:
    """For each array a request whose input lies at 64 of a block of the lender's."""
    requests = []
    for array in arrays:
        block = lender.slab.allocate(64 + array.nbytes)
        assert block is not None
        block.memory[64 : 64 + array.nbytes] = array.tobytes()
        ref = ["INPUT0", WIRE["FP32"], list(array.shape), 64, array.nbytes, block.ref]
        header = request_header("", [ref], [], {})
        requests.append(batcher.raw_request(b"", header))
    return requests


def test_a_lent_tensor_is_read_where_it_lies(batcher: Batcher, lender: Lender) -> None:
    loop = connected(batcher)
    thread = lender.answer()
    batcher.send(*lent_request(batcher, lender, rows(1, 2)), rows=2)
    loop.step()
    thread.join()
    assert np.array_equal(batcher.done()[0].outputs["OUTPUT0"], rows(1, 2))
    assert lender.asked == [LENDER]


def test_it_is_asked_for_once_and_batched_with_others(batcher: Batcher, lender: Lender) -> None:
    loop = connected(batcher)
    thread = lender.answer()
    own = batcher.request([("INPUT0", "FP32", rows(3))])
    batcher.send(*lent_request(batcher, lender, rows(1), rows(2)), own)
    loop.step()
    thread.join()
    assert [done.outputs["OUTPUT0"][0, 0] for done in batcher.done()] == [1, 2, 3]
    assert lender.asked == [LENDER]


def test_a_freed_block_is_said_to_be_gone(batcher: Batcher, lender: Lender) -> None:
    loop = connected(batcher)
    thread = lender.answer()
    request = lent_request(batcher, lender, rows(1))
    for ref in lender.slab.taken_refs:
        lender.slab.free(ref)
    batcher.send(*request)
    loop.step()
    thread.join()
    (done,) = batcher.done()
    assert done.status == 2
    assert done.sentence == "input 'INPUT0' is gone: the block of shared memory that it was passed on in was freed"


def test_a_lender_that_is_gone(batcher: Batcher, lender: Lender) -> None:
    loop = connected(batcher)
    thread = lender.answer(is_there=False)
    batcher.send(*lent_request(batcher, lender, rows(1)))
    loop.step()
    thread.join()
    assert "is gone" in batcher.done()[0].sentence


def test_a_lent_header_is_not_kept(batcher: Batcher, lender: Lender) -> None:
    loop = connected(batcher)
    thread = lender.answer()
    (request,) = lent_request(batcher, lender, rows(1))
    batcher.send(request)
    loop.step()
    thread.join()
    batcher.done()
    for ref in lender.slab.taken_refs:
        lender.slab.free(ref)
    batcher.send(request)  # the same bytes, whose block is freed now
    loop.step()
    assert "is gone" in batcher.done()[0].sentence

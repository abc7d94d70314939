"""A batcher's place is taken while a worker executes: a real exchange and a real worker, records and blocks between
them; the test is the supervisor and the client."""

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.control import Channel
from shoal.messages.shared import BatcherReplaced, PayloadGranted, PayloadReady
from shoal.model_config.signature import Signature
from shoal.reasons import Reason
from shoal.shm import segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import OVERSIZE, REQUEST, Geometry, P
from shoal.shm.segment import SegmentView
from shoal.shm.slab import Slab, SlabView
from shoal.workers.loop import Loop
from shoal.workers.memory import Memory
from shoal.workers.oversize import WorkerOversizeBlocks
from tests.batcher.star import CLIENT, MODEL, WORKER, one_of_each
from tests.messages import receive
from tests.request_headers import request_header
from tests.workers.worker_harness import VARIABLE, Returning

#: More than the worker's slab has.
LARGE = np.arange(100_000, dtype=np.float32)[None]
RESULT = 50


class Pair:
    """A worker whose results no slab takes, and whose batcher dies when the test says so."""

    def __init__(self) -> None:
        self.star, self.client, worker = one_of_each({"name": "m", "max_batch_size": 0})
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.supervisor, self.channel = map(Channel, ends)
        self.batcher_bell = Doorbell.create()
        oversize = WorkerOversizeBlocks(self.channel)
        self.memory = Memory(worker.own, worker.link_view, worker.bell, self.batcher_bell, oversize)
        self.memory.segments.add(CLIENT, self.client.own_view)
        backend = Returning(lambda _inputs: {"OUTPUT0": LARGE})
        self.loop = Loop(backend, Signature.from_config(VARIABLE), "m_0_0", self.memory)
        oversize.listen = self.listen
        self._slab = Slab(self.client.own)
        self._requests: dict[int, tuple[int, ...]] = {}
        self._is_resumed = False

    def ask(self, number: int) -> None:
        header = request_header("", [["INPUT0", 11, [1, 4], 0, 16]], [], {})
        block = self._slab.allocate(16 + len(header))
        assert block is not None
        block.memory[16 : 16 + len(header)] = header
        self._requests[number] = (REQUEST, number, MODEL, block.ref, 16 << 32 | len(header), 1, 0, 0, 0, 0, 0, 100)
        self.client.send(*self._requests[number])

    def listen(self) -> None:
        """Obey the next message; where it is of a new batcher, that serves at once."""
        message, fds = receive(self.channel)
        self.loop.obey(self.channel, message, fds)
        if isinstance(message, BatcherReplaced):
            self.star.exchange.resume(now_ns=700)

    def succeed(self) -> None:
        """The batcher dies; what the client has open it says again."""
        self.star.succeed()
        self.star.exchange.blocks.add_result(RESULT, WORKER)
        for record in self._requests.values():
            self.client.send(*record)
        self.supervisor.send(BatcherReplaced())

    def grant(self) -> SlabView:
        """Give the worker a segment, which it may keep for its next result."""
        fd = segment.create(OVERSIZE, RESULT, Geometry(0, 128 * 4096), sealed=True)
        view = SegmentView.attach(segment.read_only(fd))
        self.supervisor.send(PayloadGranted(request=1, owner=RESULT, may_be_kept=True, segment=fd))
        os.close(fd)
        return SlabView(view)

    def close(self) -> None:
        self.batcher_bell.close()
        self.supervisor.close()
        self.channel.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_a_segment_that_is_still_awaited_is_not_freed_by_a_successor(pair: Pair) -> None:
    pair.ask(1)
    pair.star.exchange.step(now_ns=500)
    results = pair.grant()
    pair.succeed()
    pair.supervisor.send(PayloadReady(RESULT))
    pair.loop.step()
    pair.star.exchange.step(now_ns=800)
    (reply,) = pair.client.received()
    assert (reply[P.NUMBER], reply[P.REASON]) == (1, Reason.NONE)
    pair.loop.step()  # takes back whatever the successor has freed
    assert pair.memory.oversize.refs == [reply[P.BLOCK]]
    block = results.open(reply[P.BLOCK])
    assert block is not None
    assert np.array_equal(np.frombuffer(block, np.float32, LARGE.size), LARGE[0])

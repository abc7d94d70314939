"""Blocks that a worker's records name: a name of another process's block ends the worker, and does nothing else."""

import pytest

from shoal.messages.from_batcher import ProcessDistrusted
from shoal.reasons import Reason
from shoal.shm.layout import BATCHER as BATCHER_KIND
from shoal.shm.layout import DONE, HAVE, RESPONSE, B, Geometry, P, pack_ref
from tests.batcher.star import BATCHER, CLIENT, HEADER, MODEL, SINGLE, WORKER, ask, make_segment, one_of_each

TIMES = 1_000, 1_010, 1_110, 1_115
OTHER, OTHERS_RESULT, RESULT, PAYLOAD, GONE = WORKER + 1, 98, 99, 97, 96


class Two:
    """Two workers: one has a request, the other has a block that nobody holds yet. The batcher has one, too."""

    def __init__(self) -> None:
        self.star, self.client, self.worker = one_of_each(SINGLE)
        self.other = self.star.add_worker(OTHER, self.star.add_model(MODEL + 1, SINGLE))
        blocks = self.star.exchange.blocks
        own, _ = make_segment(BATCHER_KIND, BATCHER, Geometry(0, 1 << 16))
        blocks.connect(own)
        assert blocks.own is not None
        block = blocks.own.allocate(100)
        assert block is not None
        self.batchers = block.ref
        _, view = make_segment(BATCHER_KIND, PAYLOAD, Geometry(0, 1 << 16))
        blocks.add_payload(PAYLOAD, CLIENT, view)
        blocks.add_result(RESULT, WORKER)
        blocks.add_result(OTHERS_RESULT, OTHER)
        blocks.add_result(GONE, WORKER)
        blocks.remove(GONE)
        ask(self.client, 1)
        self.star.exchange.step(now_ns=500)
        (self.item,) = self.worker.received()

    def name(self, kind: int, ref: int) -> None:
        """The first worker names a block."""
        self.worker.send(kind, self.item[B.KEY], self.item[B.BATCH], 0, ref, HEADER, *TIMES)
        self.star.exchange.step(now_ns=600)


@pytest.mark.parametrize("kind", [HAVE, DONE, RESPONSE])
@pytest.mark.parametrize("owner", [OTHER, OTHERS_RESULT, CLIENT, PAYLOAD, BATCHER])
def test_a_block_of_another_process_is_left_alone_and_ends_the_worker(kind: int, owner: int) -> None:
    two = Two()
    ref = two.batchers if owner == BATCHER else pack_ref(owner, 2, 1)
    two.name(kind, ref)
    two.star.exchange.step(now_ns=700)
    assert two.other.received() == []
    blocks = two.star.exchange.blocks
    assert blocks.own is not None
    assert blocks.own.is_taken(two.batchers)
    assert [(reply[P.BLOCK], reply[P.REASON]) for reply in two.client.received()] == [(0, Reason.DAMAGED)]
    assert two.star.reports() == [ProcessDistrusted(WORKER)]
    assert len(two.star.exchange.holders) == 0


@pytest.mark.parametrize("kind", [DONE, RESPONSE])
@pytest.mark.parametrize("owner", [GONE, 12345])
def test_an_answer_in_a_segment_that_is_not_there_ends_the_worker(kind: int, owner: int) -> None:
    two = Two()
    two.name(kind, pack_ref(owner, 0, 1))
    assert two.star.reports() == [ProcessDistrusted(WORKER)]


def test_a_block_of_a_segment_that_is_gone_may_be_told_late() -> None:
    """A worker tells each successor of its blocks, and the first one may have freed them by then."""
    two = Two()
    two.name(HAVE, pack_ref(GONE, 0, 1))
    two.name(DONE, pack_ref(RESULT, 0, 1))
    assert two.star.reports() == []
    assert [(reply[P.BLOCK], reply[P.REASON]) for reply in two.client.received()] == [(pack_ref(RESULT, 0, 1), 0)]


def test_a_result_of_an_unknown_worker_has_no_owner() -> None:
    two = Two()
    two.star.exchange.blocks.add_result(95, OTHER + 1)
    two.name(DONE, pack_ref(95, 0, 1))
    assert two.star.reports() == [ProcessDistrusted(WORKER)]

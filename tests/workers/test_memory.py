"""A worker's own memory: blocks freed, awaited and missing."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.messages.shared import Acknowledged, LedgerCounted, LedgerWanted
from shoal.shm.layout import DONE, HAVE, RESPONSE, LayoutError
from shoal.workers.answers import Answers
from shoal.workers.loop import Loop
from shoal.workers.memory import ALONE
from shoal.workers.requests import Request
from shoal.workers.tensors import Array
from tests.messages import receive
from tests.workers.worker_harness import Batcher, Returning, loop_of, rows


def counts(loop: Loop, batcher: Batcher) -> list[int]:
    """What the worker answers when it is asked for its ledger: blocks taken, given back and spare, segments for single
    results, slots taken and given back."""
    loop.obey(batcher.worker_channel, LedgerWanted(), 3)
    told = receive(batcher.supervisor)[0]
    assert receive(batcher.supervisor)[0] == Acknowledged(3)
    assert isinstance(told, LedgerCounted)
    names = ("blocks_acquired", "blocks_released", "blocks_spare", "oversize_held", "slots_acquired", "slots_released")
    counted = tuple(name for name in told.counts if not name.startswith("memo_"))
    assert counted == ("descriptors", "mapped_bytes", *names)
    return [told.counts[name] for name in names]


def test_a_block_is_used_again_once_it_is_freed(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    request = batcher.request([("INPUT0", "FP32", rows(1))])
    batcher.send(request)
    loop.step()
    (first,) = batcher.done()
    batcher.free(first.ref)
    batcher.send(request)
    loop.step()
    (second,) = batcher.done()
    assert first.ref != second.ref  # another generation of the same block
    assert first.ref >> 20 == second.ref >> 20
    assert batcher.results.open(first.ref) is None


def test_no_block_for_too_long_fails_with_503_in_the_spare_block(make_batcher: Callable[..., Batcher]) -> None:
    batcher = make_batcher(worker=3 * 4096, block_wait_s=0.01)  # two units and a spare one
    loop = loop_of(batcher)
    request = batcher.request([("INPUT0", "FP32", rows(1))])
    for batch in (1, 2, 3, 4):
        batcher.send(request, batch=batch)
    loop.step()
    first, second, third, fourth = batcher.done()
    assert (first.status, second.status, third.status, fourth.status) == (0, 0, 5, 5)
    assert third.sentence.startswith("model 'm', instance 'm_0_0': no shared memory for a result of ")
    assert third.sentence.endswith(
        "clients still hold the earlier ones. Raise --shm-worker-slab-mib or --shm-oversize-mib"
    )
    assert fourth.ref == 0  # not even for the sentence
    batcher.free(third.ref)
    batcher.free(second.ref)
    batcher.send(request)
    loop.step()
    assert batcher.done()[0].status == 0


def test_a_batch_waits_for_a_block_and_what_comes_meanwhile_follows(make_batcher: Callable[..., Batcher]) -> None:
    batcher = make_batcher(worker=2 * 4096)
    meanwhile: list[Callable[[], None]] = []

    def result(inputs: dict[str, Array]) -> dict[str, Array]:
        # The ring has been drained and the bell cleared when a model runs: what it sends now arrives during the wait.
        if meanwhile:
            meanwhile.pop(0)()
        return {"OUTPUT0": inputs["INPUT0"]}

    loop = loop_of(batcher, backend=Returning(result))
    request = batcher.request([("INPUT0", "FP32", rows(1))])
    batcher.send(request, batch=1)
    batcher.send(request, batch=2)
    loop.step()
    first, second = batcher.done()
    meanwhile[:] = [
        lambda: batcher.free(first.ref, then=(request, 4)),
        lambda: batcher.free(second.ref),
    ]
    batcher.send(request, batch=3)
    assert loop.step() == 2
    assert [(done.batch, done.status) for done in batcher.done()] == [(3, 0), (4, 0)]


def test_what_is_taken_and_given_back_is_counted(make_batcher: Callable[..., Batcher]) -> None:
    batcher = make_batcher(worker=3 * 4096)  # two units and a spare one
    loop = loop_of(batcher)
    assert counts(loop, batcher) == [0, 0, 1, 0, 0, 0]
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]))
    loop.step()
    (done,) = batcher.done()
    assert counts(loop, batcher) == [1, 0, 1, 0, 1, 1]
    batcher.free(done.ref)
    assert counts(loop, batcher) == [1, 1, 1, 0, 2, 2]  # the FREE was seen, though no batch came after it


def test_a_batch_that_comes_while_it_is_counted_runs(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]))
    assert counts(loop, batcher) == [0, 0, 0, 0, 1, 1]  # of an even slab nothing is spare
    assert loop.step() == 1
    assert batcher.done()[0].status == 0


def test_an_unknown_record_ends_the_worker(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    batcher.writer.push((4, *[0] * 15))
    batcher.writer.publish()
    with pytest.raises(LayoutError, match="the batcher sent a record of kind 4"):
        loop.step()


# -- looks from several threads ---------------------------------------------------------------------------------------


class SlowWords:
    """The words at a ring's end that is read, which notice two readers at once."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self._both = threading.Barrier(2)
        self.have_met = False

    def __getitem__(self, index: int) -> int:
        try:
            self._both.wait(0.1)
            self.have_met = True
        except threading.BrokenBarrierError:
            self._both.reset()
        return self.words[index]


def test_threads_that_look_whether_a_request_is_cancelled_take_turns(batcher: Batcher) -> None:
    """A model without senders, so nothing else has told the worker that several threads are at work."""

    class Looking(Returning):
        def execute(self, requests: Sequence[Request], answers: Answers) -> None:
            reader = memory._reader
            self.slow = reader._peer_words = SlowWords(reader._peer_words)  # type: ignore[assignment]
            with ThreadPoolExecutor(2) as pool:
                assert list(pool.map(Request.is_cancelled, requests)) == [False, False]
            reader._peer_words = self.slow.words
            super().execute(requests, answers)

    backend = Looking(lambda inputs: {"OUTPUT0": inputs["INPUT0"]})
    loop = loop_of(batcher, backend=backend)
    memory = loop._memory
    assert not memory.is_cancelled(1)  # no batch is at work: nobody looks
    assert memory.use == ALONE
    request = batcher.request([("INPUT0", "FP32", rows(1))])
    batcher.send(request, request)
    loop.step()
    assert not backend.slow.have_met
    assert [done.status for done in batcher.done()] == [0, 0]


def test_of_a_block_that_another_thread_is_filling_a_new_batcher_hears_with_its_response(batcher: Batcher) -> None:
    memory = batcher.memory()
    known = memory.allocate(5000)
    assert known is not None
    memory.push((DONE, 1, 1, 0, known.ref))
    memory.share()
    said, unsaid, freed = [block for _ in range(3) if (block := memory.allocate(5000)) is not None]
    for block in (said, freed):
        assert memory.send_record((RESPONSE, 2, 1, 0, block.ref))
    memory.free(freed.ref)
    batcher.reader.drain()
    memory.report_blocks()
    assert {record[4] for record in batcher.reader.drain()} == {known.ref, said.ref}
    assert memory.send_record((RESPONSE, 2, 1, 0, unsaid.ref))
    memory.report_blocks()
    assert {record[4] for record in batcher.reader.drain() if record[0] == HAVE} == {known.ref, said.ref, unsaid.ref}

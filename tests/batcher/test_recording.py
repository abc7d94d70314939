"""The exchange and what it leaves for the recorder: whole batches, before their replies, within the ring's bounds."""

import signal
from collections.abc import Sequence

from shoal.batcher.recording import ModelRecording
from shoal.datatypes import BY_NAME
from shoal.errors import InternalError
from shoal.reasons import DeathDetail, Reason
from shoal.recorder.entry import Entry, Outcome, unpack
from shoal.request import InferRequest, InferResponse, TensorRef, pack_request, pack_response
from shoal.shm import layout
from shoal.shm.byte_ring import ByteRingReader, ByteRingWriter
from shoal.shm.layout import B, Geometry, pack_span
from shoal.shm.slab import Slab
from tests.batcher.last_store import dying
from tests.batcher.star import BATCHING, CLIENT, MODEL, SINGLE, WORKER, Star, cell, make_segment

UINT8 = BY_NAME["UINT8"].wire


class Play:
    """A star with a recorded model, a front end that writes requests and a worker that answers them."""

    def __init__(self, config: dict[str, object], sample: float = 1.0, ring_nbytes: int = 1 << 16) -> None:
        self.star = Star()
        self.model = self.star.add_model(MODEL, config)
        self.client = self.star.add_client(CLIENT, is_front_end=True)
        self.worker = self.star.add_worker(WORKER, self.model)
        self._inputs, self._outputs = Slab(self.client.own), Slab(self.worker.own)
        self._record(sample, ring_nbytes)
        self._asked: dict[int, int] = {}  # number → block
        self.now_ns = 1000

    def _record(self, sample: float = 1.0, ring_nbytes: int = 1 << 16) -> None:
        ring, ring_view = make_segment(layout.RECORDING, 0, Geometry(0, ring_nbytes))
        heads, heads_view = make_segment(layout.LINK, 0, Geometry(0, 0))
        recording = self.star.exchange.record(ByteRingWriter(ring, heads_view))
        self.model.recording = ModelRecording(recording, self.model, "m", sample)
        self.model.finished.note_all(is_on=True)
        self._reader = ByteRingReader(heads, ring_view)

    def succeed(self) -> None:
        """The batcher is dead; its successor, with a ring of its own, serves before the client has heard of it."""
        self.star.succeed(late=[CLIENT])
        self.model = self.star.model(MODEL)
        self._record()
        self.now_ns += 100
        self.star.exchange.resume(self.now_ns)

    def ask(self, *numbers: int, nbytes: int = 1) -> None:
        """Requests whose only input is as many bytes of their number."""
        for number in numbers:
            header = pack_request(
                InferRequest(f"id-{number}", (TensorRef("X", UINT8, (1, nbytes), 0, nbytes),), (), {})
            )
            block = self._inputs.allocate(nbytes + len(header))
            assert block is not None
            block.memory[: nbytes + len(header)] = bytes([number % 256]) * nbytes + header
            span = pack_span(nbytes, len(header))
            self._asked[number] = block.ref
            self.client.send(layout.REQUEST, number, MODEL, block.ref, span, 1, 0, 0, 0, 0, 0, self.now_ns)
        self.step()

    def step(self) -> None:
        self.now_ns += 100
        self.star.exchange.step(self.now_ns)

    def items(self) -> list[tuple[int, ...]]:
        """The requests that the worker has been given; blocks that it gets back are free."""
        records = self.worker.received()
        for record in records:
            self._outputs.free(record[B.FREED] if record[0] == layout.BATCH_ITEM else record[B.BLOCK])
        return [record for record in records if record[0] == layout.BATCH_ITEM]

    def answer(self, items: Sequence[tuple[int, ...]]) -> None:
        """Answer these items of one batch, out of one block: each with its number in the batch."""
        self.send_answer(items)
        self.step()
        self.read()
        self.step()

    def send_answer(self, items: Sequence[tuple[int, ...]]) -> None:
        header = [
            pack_response(InferResponse((TensorRef("Y", UINT8, (1, 1), each, 1),), {})) for each in range(len(items))
        ]
        block = self._outputs.allocate(4096)
        assert block is not None
        at = len(items)
        block.memory[:at] = bytes(range(at))
        for item, each in zip(items, header, strict=True):
            block.memory[at : at + len(each)] = each
            span = pack_span(at, len(each))
            self.worker.send(layout.DONE, item[B.KEY], item[B.BATCH], 0, block.ref, span, 1000, 1010, 1110, 1115)
            at += len(each)

    def read(self) -> None:
        for reply in self.client.received():  # read, and released: both blocks are used again
            self._inputs.free(self._asked.pop(reply[layout.P.NUMBER]))
            self.client.send(layout.RELEASE, reply[layout.P.NUMBER])

    def entries(self) -> list[Entry]:
        found = [unpack(memoryview(bytes(each))) for each in self._reader.read()]
        self._reader.acknowledge()
        return found


def test_a_batch_is_one_entry_with_its_order_and_its_block() -> None:
    play = Play(BATCHING)
    play.ask(1, 2, 3, 4)
    play.answer(play.items())
    (entry,) = play.entries()
    assert (entry.model, entry.version, entry.is_sampled) == ("m", 1, True)
    assert [(each.position, each.num_requests, each.batch_rows) for each in entry.requests] == [
        (position, 4, 4) for position in range(4)
    ]
    assert [bytes(each[:1]) for each in entry.inputs] == [b"\1", b"\2", b"\3", b"\4"]
    assert bytes(entry.output[:4]) == bytes(range(4))
    assert {each.outcome for each in entry.requests} == {Outcome.OK}
    assert cell(play.model, "recorded") == 4


def test_the_order_holds_where_a_batch_is_answered_backwards_and_in_parts() -> None:
    play = Play(BATCHING)
    play.ask(1, 2, 3, 4)
    items = play.items()
    play.answer(items[:1:-1])
    play.answer(items[1::-1])
    entries = play.entries()
    assert [[each.position for each in entry.requests] for entry in entries] == [[3, 2], [1, 0]]


def test_a_death_leaves_what_was_executed_before_its_end() -> None:
    play = Play(BATCHING)
    play.ask(1, 2, 3, 4, 5)
    items = play.items()
    play.worker.begin(items[0][B.BATCH])
    detail = DeathDetail(77, 0, 0, -signal.SIGSEGV & 0xFFFF).pack()
    play.star.exchange.remove_worker(WORKER, play.now_ns, Reason.INSTANCE_DIED, detail)
    play.step()
    found = [each for entry in play.entries() for each in entry.requests]
    died = [each for each in found if each.outcome == Outcome.DIED]
    assert [(each.position, each.status, each.reason, each.detail) for each in died] == [
        (position, InternalError.wire, Reason.INSTANCE_DIED, detail) for position in range(4)
    ]
    assert {each.key for each in found if each.outcome == Outcome.REFUSED} >= {each.key for each in died}
    # the fifth waits for another instance, and is in no entry yet
    assert not [each for each in found if each.key & 0xFF == 5]


def test_the_sample_is_of_batches_and_failures_are_always_in_it() -> None:
    play = Play(BATCHING, sample=0.5, ring_nbytes=1 << 20)
    for number in range(200):
        play.ask(2 * number + 1, 2 * number + 2)
        play.answer(play.items())
    entries = play.entries()
    assert all(len(entry.requests) == 2 for entry in entries)
    assert abs(sum([entry.is_sampled for entry in entries]) - 100) <= 2
    assert cell(play.model, "recorded") == 2 * sum([entry.is_sampled for entry in entries])
    play = Play(SINGLE, sample=0.0)
    play.ask(1)
    (item,) = play.items()
    play.worker.send(layout.DONE, item[B.KEY], item[B.BATCH], InternalError.wire, 0, 0, 1000, 1010, 1110, 1115)
    play.step()
    assert [(entry.is_sampled, entry.requests[0].outcome) for entry in play.entries()] == [(True, Outcome.FAILED)]


def test_what_has_no_room_is_dropped_and_counted_and_answered() -> None:
    play = Play(SINGLE, ring_nbytes=1 << 14)
    for number in range(1, 41):
        play.ask(number, nbytes=500)
        play.answer(play.items())
    num_kept = len(play.entries())
    assert 5 < num_kept < 40
    assert (cell(play.model, "recorded"), cell(play.model, "record_dropped")) == (num_kept, 40 - num_kept)
    assert cell(play.model, "success_count") == 40
    play.ask(41)
    play.answer(play.items())
    assert len(play.entries()) == 1  # there is room again


def test_an_answer_that_a_dead_batcher_did_not_pass_on_is_recorded_by_its_successor() -> None:
    play = Play(SINGLE)
    play.ask(1, 2)
    play.send_answer(play.items())
    play.succeed()
    (entry,) = play.entries()
    ((request,), (data,)) = entry.requests, entry.inputs
    assert (request.outcome, bytes(data)[:1]) == (Outcome.OK, b"\1")


def test_an_answer_to_a_client_that_has_not_heard_of_the_successor_is_recorded() -> None:
    play = Play(SINGLE)
    play.ask(1)
    items = play.items()
    play.succeed()
    play.send_answer(items)
    play.step()
    (entry,) = play.entries()
    assert (entry.requests[0].outcome, bytes(entry.inputs[0])[:1]) == (Outcome.OK, b"\1")


def test_an_answer_that_a_dead_batcher_had_passed_on_is_recorded_once() -> None:
    play = Play(SINGLE)
    play.ask(1)
    play.send_answer(play.items())
    with dying(2):  # after the counters, the reply is visible to the client; nothing is acknowledged
        play.step()
    assert len(play.entries()) == 1
    play.read()
    play.succeed()
    assert play.entries() == []


def test_a_model_that_is_not_recorded_leaves_nothing() -> None:
    play = Play(SINGLE)
    play.model.recording = None
    play.model.finished.note_all(is_on=False)
    play.ask(1)
    play.answer(play.items())
    assert play.entries() == []
    assert play.star.exchange.recording is not None
    assert play.star.exchange.recording.noted == []

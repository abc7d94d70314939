"""batcher/mirror.py: requests are mirrored by reference, give way to all others, and give back all that they keep."""

from random import Random

import pytest

from shoal.batcher.mirror import Drop, Mirror
from shoal.batcher.scheduling.shadow_queue import MAX_WAITING, PATIENCE_NS
from shoal.datatypes import UINT8
from shoal.errors import InternalError
from shoal.messages.from_batcher import RequestsMirrored
from shoal.recorder.disagreements import Compared, compared_of, entries_of
from shoal.request import CudaTensorRef, InferRequest, InferResponse, TensorRef, pack_request, pack_response
from shoal.shadow import ShadowRule
from shoal.shm import layout
from shoal.shm.byte_ring import ByteRingReader, ByteRingWriter
from shoal.shm.layout import BATCH_ITEM, MIRROR_OWNER, NUMBER_BITS, REPLY, RETURN, B, Geometry, P, pack_span
from shoal.shm.slab import Slab
from tests.batcher.star import BATCHING, CLIENT, MODEL, SINGLE, WORKER, Star, make_segment

SHADOW, SHADOW_WORKER = 6, 32
NAMES = {MODEL: "m", SHADOW: "m"}
RULE = ShadowRule("m", 1, 2)
ROOMY = Geometry(ring_capacity=256, slab_nbytes=256 * layout.UNIT)


class Play:
    """A star with a version and its shadow, a front end that writes requests, and a worker of each."""

    def __init__(self, config: dict[str, object] = SINGLE, rule: ShadowRule = RULE, ring_nbytes: int = 1 << 16) -> None:
        self.star = star = Star()
        self.primary = star.add_model(MODEL, config)
        self.shadow = star.add_model(SHADOW, config, may_run_again=True)
        self.shadow.version = 2
        self.client = star.add_client(CLIENT, is_front_end=True, geometry=ROOMY, link_geometry=ROOMY)
        self.workers = [
            star.add_worker(WORKER, self.primary, ROOMY),
            star.add_worker(SHADOW_WORKER, self.shadow, ROOMY),
        ]
        self._inputs = Slab(self.client.own)
        self._outputs = [Slab(worker.own) for worker in self.workers]
        ring, ring_view = make_segment(layout.RECORDING, 0, Geometry(0, ring_nbytes))
        heads, heads_view = make_segment(layout.LINK, 0, Geometry(0, 0))
        self.mirror.connect(ByteRingWriter(ring, heads_view))
        self.mirror.bind([rule], NAMES)
        self._reader = ByteRingReader(heads, ring_view)
        self.asked: dict[int, int] = {}  # number → block, which the client must not free yet
        self.lent = set[int]()
        self.returned = list[int]()
        self.replies = list[tuple[int, ...]]()
        self.given: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
        self.now_ns = 10_000_000_000

    @property
    def mirror(self) -> Mirror:
        return self.star.exchange.mirror

    def ask(self, *numbers: int) -> None:
        """Requests whose only input is a byte."""
        for number in numbers:
            header = pack_request(InferRequest(f"id-{number}", (TensorRef("X", UINT8.wire, (1, 1), 0, 1),), (), {}))
            self.ask_with(number, header)

    def ask_with(self, number: int, header: bytes) -> None:
        block = self._inputs.allocate(1 + len(header))
        assert block is not None
        block.memory[: 1 + len(header)] = bytes([number % 256]) + header
        self.asked[number] = block.ref
        span = pack_span(1, len(header))
        self.client.send(layout.REQUEST, number, MODEL, block.ref, span, 1, 0, 0, 0, 0, 0, self.now_ns)
        self.step()

    def step(self, after_ns: int = 1000) -> None:
        """A step of the batcher, and what its peers read then."""
        self.now_ns += after_ns
        self.star.exchange.step(self.now_ns)
        for worker, given, outputs in zip(self.workers, self.given, self._outputs, strict=True):
            for record in worker.received():
                outputs.free(record[B.FREED] if record[0] == BATCH_ITEM else record[B.BLOCK])
                if record[0] == BATCH_ITEM:
                    given.append(record)
        for record in self.client.received():
            number = record[P.NUMBER]
            if record[0] == REPLY:
                self.replies.append(record)
                if record[P.IS_LENT]:
                    self.lent.add(number)
                else:
                    self._inputs.free(self.asked.pop(number))
                self.client.send(layout.RELEASE, number)
            elif record[0] == RETURN and number:
                self.lent.remove(number)
                self._inputs.free(self.asked.pop(number))
                self.returned.append(number)

    def answer(self, which: int, value: int = 7, status: int = 0) -> None:
        """The primary's worker (0) or the shadow's (1) answers the first request that it has."""
        item = self.given[which].pop(0)
        header = (
            b"it fell over" if status else pack_response(InferResponse((TensorRef("Y", UINT8.wire, (1, 1), 0, 1),), {}))
        )
        block = self._outputs[which].allocate(4096)
        assert block is not None
        block.memory[: 1 + len(header)] = bytes([value]) + header
        span = pack_span(1, len(header))
        worker = self.workers[which]
        at_ns = self.now_ns
        worker.send(
            layout.DONE, item[B.KEY], item[B.BATCH], status, block.ref, span, at_ns, at_ns, at_ns + 5, at_ns + 5
        )
        self.step()

    def compared(self) -> list[Compared]:
        found = [compared_of(*entries_of(memory)) for memory in self._reader.read()]
        self._reader.acknowledge()
        return found

    def counts(self) -> dict[str, int]:
        counts = dict[str, int]()
        for message in self.star.exchange.mirror.counts():
            assert isinstance(message, RequestsMirrored)
            assert (message.model, message.primary, message.shadow) == ("m", 1, 2)
            counts |= message.counts
        return counts

    def is_at_rest(self) -> bool:
        """Whether nothing is kept: requests, blocks of clients and of workers, holds."""
        exchange = self.star.exchange
        self.step()
        self.step()
        return not (exchange.num_open or len(exchange.holders) or self.lent or self.asked or exchange.mirror.is_busy)


def test_a_request_is_mirrored_by_reference_and_compared() -> None:
    play = Play()
    play.ask(1)
    block = play.asked[1]
    assert play.given[1] == []
    play.answer(0, value=5)
    assert play.lent == {1}, "the client was answered, and keeps the block"
    (item,) = play.given[1]
    assert (item[B.BLOCK], item[B.KEY] >> NUMBER_BITS) == (block, MIRROR_OWNER)
    play.answer(1, value=6)
    assert play.returned == [1]
    (compared,) = play.compared()
    assert compared.request.id == "id-1"
    assert compared.request.inputs[0].array().tolist() == [[1]]
    assert compared.request.responses[0].outputs[0].array().tolist() == [[5]]
    assert compared.response is not None
    assert compared.response.outputs[0].array().tolist() == [[6]]
    assert compared.compute_ns == 5
    assert play.counts() == {"mirrored": 1}
    assert play.is_at_rest()


def test_the_reply_to_a_traced_request_has_its_times_and_says_that_the_block_is_lent() -> None:
    play = Play()
    play.ask(1)
    play.client.send(layout.TRACE, 1)
    queued_ns, answered_ns = play.now_ns, play.now_ns + 5
    play.answer(0)
    (reply,) = play.replies
    assert reply[P.QUEUE_START_NS] == queued_ns
    assert reply[P.COMPUTE_START_NS : P.COMPUTE_END_NS + 1] == (queued_ns, queued_ns, answered_ns, answered_ns)
    assert play.lent == {1}
    play.answer(1)
    assert play.is_at_rest()


def test_without_a_rule_nothing_is_lent() -> None:
    play = Play()
    play.star.exchange.mirror.bind([], NAMES)
    play.ask(1)
    play.answer(0)
    assert (play.lent, play.given[1], play.counts()) == (set(), [], {})
    assert play.is_at_rest()


def test_requests_of_the_primary_come_first() -> None:
    play = Play()
    play.ask(1, 2)
    play.answer(0)
    assert play.lent == {1}
    assert play.given[1] == [], "request 2 is being executed"
    play.ask(3)
    play.answer(0)
    assert play.given[1] == [], "now request 3 is"
    play.answer(0)
    assert len(play.given[1]) == 1, "one for the idle instance"
    play.ask(4)
    assert len(play.given[0]) == 1, "a mirrored request that runs keeps no other from running"
    play.answer(1)
    assert play.given[1] == []
    play.answer(0)
    assert len(play.given[1]) == 1
    for _ in range(3):
        play.answer(1)
    assert play.counts() == {"mirrored": 4}
    assert len(play.compared()) == 4
    assert play.is_at_rest()


def test_requests_of_the_shadow_itself_come_first() -> None:
    play = Play()
    play.client.send(layout.REQUEST, 1, SHADOW, layout.pack_ref(CLIENT, 3, 1), 8, 1)
    play.step()
    play.ask(2)
    play.answer(0)
    assert [item[B.KEY] >> NUMBER_BITS for item in play.given[1]] == [CLIENT]
    play.asked[1] = 0
    play.answer(1)
    assert [item[B.KEY] >> NUMBER_BITS for item in play.given[1]] == [MIRROR_OWNER]


def test_one_that_cannot_run_soon_is_dropped() -> None:
    play = Play()
    play.ask(1, 2)
    play.answer(0)
    due_ns = play.star.exchange.next_deadline_ns()
    assert due_ns == play.now_ns + PATIENCE_NS
    play.step(PATIENCE_NS)
    assert (play.returned, play.counts()) == ([1], {Drop.BUSY.value: 1})
    play.answer(0)
    play.answer(1)
    assert play.is_at_rest()


def test_one_that_the_shadows_batcher_keeps_waiting_is_dropped() -> None:
    batching = {**BATCHING["dynamic_batching"], "max_queue_delay_microseconds": 60_000_000}  # type: ignore[dict-item]
    play = Play({**BATCHING, "dynamic_batching": batching}, RULE._replace(share=0.5))
    play.ask(1, 2, 3, 4)
    for _ in range(4):
        play.answer(0)
    num_lent = len(play.lent)
    assert 0 < num_lent < 4, "too few for a full batch"
    for _ in range(6):
        play.step(PATIENCE_NS)
    assert play.counts() == {"mirrored": num_lent, Drop.BUSY.value: num_lent}
    assert play.is_at_rest()


def test_requests_that_wait_together_are_executed_as_one_batch() -> None:
    play = Play({**BATCHING, "dynamic_batching": {}})
    play.ask(1, 2, 3, 4)
    while play.given[0]:
        play.answer(0)
    assert len(play.given[1]) > 1
    batches = {item[B.BATCH] for item in play.given[1]}
    assert len(batches) == 1, "of one idle instance"
    while play.given[1]:
        play.answer(1)
    assert [each.request.id for each in play.compared()] == ["id-1", "id-2", "id-3", "id-4"]
    assert play.counts() == {"mirrored": 4}
    assert play.is_at_rest()


def test_more_than_the_room_are_dropped_and_not_lent() -> None:
    play = Play()
    for number in range(1, MAX_WAITING + 10):
        play.ask(number)
    for _ in range(MAX_WAITING + 8):
        play.answer(0)
    assert len(play.lent) == MAX_WAITING
    assert play.counts() == {Drop.FULL.value: 8}


def test_without_the_shadow_nothing_is_lent() -> None:
    play = Play()
    play.star.exchange.remove_model(SHADOW, play.now_ns)
    play.mirror.bind([RULE], {MODEL: "m"})
    play.ask(1)
    play.answer(0)
    assert (play.lent, play.counts()) == (set(), {Drop.UNAVAILABLE.value: 1})
    assert play.is_at_rest()


def test_a_failure_of_the_primary_is_not_mirrored() -> None:
    play = Play()
    play.ask(1)
    play.answer(0, status=InternalError.wire)
    assert (play.lent, play.given[1], play.counts()) == (set(), [], {})


def test_a_failure_of_the_shadow_is_compared_and_no_client_hears_of_it() -> None:
    play = Play()
    play.ask(1)
    play.answer(0)
    play.answer(1, status=InternalError.wire)
    (compared,) = play.compared()
    assert compared.response is None
    assert "it fell over" in str(compared.error)
    assert play.returned == [1]
    assert play.is_at_rest()


def test_a_death_of_the_shadow_is_compared_and_the_request_not_executed_again() -> None:
    play = Play()
    play.ask(1)
    play.answer(0)
    play.workers[1].begin(1)
    play.star.remove_worker(SHADOW_WORKER, play.now_ns)
    play.step()
    (compared,) = play.compared()
    assert compared.error is not None
    assert play.returned == [1]
    assert play.is_at_rest()


def test_memory_on_a_gpu_is_not_read_again() -> None:
    play = Play()
    far = CudaTensorRef("X", UINT8.wire, (1, 1), 0, 1, b"place")
    play.ask_with(1, pack_request(InferRequest("", (far,), (), {})))  # type: ignore[arg-type]
    play.answer(0)
    assert (play.given[1], play.returned, play.counts()) == ([], [1], {Drop.MEMORY.value: 1})


def test_a_worker_that_lacks_memory_gets_it_back() -> None:
    play = Play()
    play.ask(1, 2)
    play.answer(0)
    held = len(play.star.exchange.holders)
    play.workers[0].send(layout.WANT, 0, 0, layout.ROOM)
    play.step()
    assert (held, len(play.star.exchange.holders)) == (1, 0)
    assert (play.returned, play.counts()) == ([1], {Drop.MEMORY.value: 1})


def test_a_worker_that_lacks_memory_does_not_wait_for_a_shadow() -> None:
    play = Play()
    play.ask(1)
    play.answer(0)
    play.workers[0].send(layout.WANT, 0, 0, layout.ROOM)
    play.step()
    assert len(play.star.exchange.holders) == 0
    play.answer(1)
    assert (play.compared(), play.returned) == ([], [1])
    assert play.counts() == {"mirrored": 1, Drop.MEMORY.value: 1}
    assert play.is_at_rest()


def test_a_full_ring_drops() -> None:
    play = Play(ring_nbytes=4096)
    for number in range(1, 9):
        play.ask(number)
        play.answer(0)
        play.answer(1)
    assert play.returned == list(range(1, 9))
    counts = play.counts()
    assert counts["mirrored"] == 8
    assert counts[Drop.COMPARATOR.value] + len(play.compared()) == 8
    assert counts[Drop.COMPARATOR.value] > 0


@pytest.mark.parametrize("is_running", [False, True])
def test_a_client_that_dies_is_forgotten(*, is_running: bool) -> None:
    play = Play()
    play.ask(*[1] if is_running else [1, 2])
    play.answer(0)
    assert len(play.given[1]) == is_running
    play.star.exchange.remove_client(CLIENT, play.now_ns)
    play.lent.clear()
    play.asked.clear()
    if is_running:
        play.answer(1)
    else:
        play.answer(0)
    assert play.compared() == []
    assert play.counts() == ({"mirrored": 1} if is_running else {}) | {Drop.GONE.value: 1}
    assert play.is_at_rest()


def test_a_worker_that_dies_with_the_answer_is_forgotten() -> None:
    play = Play()
    play.ask(1, 2)
    play.answer(0)
    play.star.remove_worker(WORKER, play.now_ns)
    play.step(PATIENCE_NS)
    assert play.returned == [1]
    assert play.compared() == []


def test_a_successor_returns_blocks_once_no_worker_reads_them() -> None:
    play = Play()
    play.ask(1)
    play.answer(0)
    assert play.lent == {1}
    star = play.star
    star.succeed()
    play.client.send(RETURN, 0)  # as the port does, which has blocks that were lent
    star.exchange.resume(play.now_ns)
    assert RETURN not in [record[0] for record in play.client.received()]
    item = play.given[1][0]
    play.workers[1].send(layout.DONE, item[B.KEY], item[B.BATCH], 0, 0, 0, 1, 1, 1, 1)
    star.exchange.step(play.now_ns + 1)
    star.exchange.step(play.now_ns + 2)
    assert [record[:2] for record in play.client.received()] == [(RETURN, 0)]
    assert star.exchange.num_open == 0
    assert not star.exchange.mirror.is_busy


def test_a_successor_returns_blocks_at_once_if_no_worker_reads_them() -> None:
    play = Play()
    play.ask(1, 2)
    play.answer(0)
    star = play.star
    star.succeed()
    play.client.send(RETURN, 0)
    star.exchange.resume(play.now_ns)
    assert [record[:2] for record in play.client.received()] == [(RETURN, 0)]


@pytest.mark.parametrize("config", [SINGLE, BATCHING])
def test_whatever_happens_all_is_given_back(config: dict[str, object]) -> None:
    num_compared = num_dropped = 0
    for seed in range(12):
        random, play = Random(seed), Play(config)
        number = 0
        for _ in range(60):
            kind = random.randrange(8)
            if kind < 3 and number - len(play.returned) < 40:
                number += 1
                play.ask(number)
            elif kind < 5 and play.given[0]:
                play.answer(0, status=InternalError.wire if random.randrange(9) == 0 else 0)
            elif kind == 5 and play.given[1]:
                play.answer(1, status=InternalError.wire if random.randrange(9) == 0 else 0)
            elif kind == 6:
                play.step(random.choice((1, PATIENCE_NS // 3, PATIENCE_NS)))
            elif random.randrange(5) == 0:
                play.mirror.bind([RULE._replace(share=random.choice((0.5, 1.0)))], NAMES)
            num_compared += len(play.compared())
        while play.given[0] or play.given[1]:
            play.answer(0 if play.given[0] else 1)
        play.step(PATIENCE_NS)
        while play.given[1]:
            play.answer(1)
        num_compared += len(play.compared())
        counts = play.counts()
        mirrored = counts.pop("mirrored", 0)
        num_dropped += sum(counts.values())
        assert play.is_at_rest(), seed
        assert len(play.returned) == len(set(play.returned))
        assert mirrored <= number
    assert num_compared > 30
    assert num_dropped > 6

"""Equal requests of several servers, record by record: who looks for others' answers, and what comes of it."""

from collections import Counter
from random import Random

import pytest

from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.shared_answers import SharedAnswers
from shoal.messages.from_batcher import ModelRetired
from shoal.reasons import Reason
from shoal.shm.layout import CANCEL, P
from tests.batcher.caching_star import DIGEST, NUM_BLOCKS, SINGLE, Larder
from tests.batcher.scripted_store import Shelf
from tests.batcher.star import CLIENT, MODEL, cell


class SharingLarder(Larder):
    """A cache that shares its answers: what is on the shelf, or looked for there, is the test's business."""

    def __init__(self, shelf: Shelf | None = None) -> None:
        self.shelf = Shelf() if shelf is None else shelf
        super().__init__(shared=SharedAnswers(self.shelf))

    def key(self, number: int) -> int:
        return self.exchange.clients[CLIENT].first_key + number

    def find(self, number: int, value: bytes | None = None) -> None:
        """The store says what it has for a request."""
        self.shelf.found.append((self.key(number), value))
        self.step()

    @property
    def asked(self) -> list[int]:
        """The numbers of those who wait for the store."""
        return [key - self.key(0) for key, *_ in self.shelf.asked]

    def learn(self, value: bytes = b"abcd") -> bytes:
        """What another server keeps for the digest that all ask with."""
        other = SharingLarder()
        other.ask(1)
        other.find(1)
        other.execute(value)
        (kept,) = other.shelf.kept.values()
        return kept


@pytest.fixture
def larder() -> SharingLarder:
    return SharingLarder()


def counted(larder: Larder) -> tuple[int, ...]:
    return tuple(larder.cache[f"num_{name}"] for name in ("lookups", "hits", "misses", "entries"))


def test_who_finds_nothing_is_executed_and_lets_others_find_it(larder: SharingLarder) -> None:
    larder.ask(1)
    assert (larder.asked, larder.items()) == ([1], [])
    assert larder.shelf.asked[0][1] == b"shoal:1:m:%d:%032x" % (MODEL, 9 << 64 | 7)
    larder.find(1)
    block = larder.execute(b"data")
    assert larder.replies() == [(1, block, 0)]
    assert len(larder.shelf.kept) == 1
    larder.ask(2)
    (reply,) = larder.client.heard()
    assert larder.read(reply) == b"data"
    assert larder.asked == [1], "what is kept here is not looked for"
    assert counted(larder) == (2, 1, 1, 1)
    assert cell(larder.cached_model, "cache_miss_count") == 1
    assert cell(larder.cached_model, "cache_miss_ns") >= 1000, "with the time of the look-up"
    assert larder.cache["lookup_ns"] >= 1000


def test_what_another_has_answered_is_copied_once_and_answered(larder: SharingLarder) -> None:
    for number in (1, 2):
        larder.ask(number)
    assert larder.asked == [1], "the second waits for the first"
    larder.find(1, larder.learn(b"data"))
    replies = larder.client.heard()
    assert [larder.read(each) for each in replies] == [b"data"] * 2
    assert len({each[P.BLOCK] for each in replies}) == 1
    larder.ask(3)
    assert larder.read(larder.client.heard()[0]) == b"data"
    assert larder.items() == []
    assert counted(larder) == (3, 3, 0, 1)
    names = "success_count", "inference_count", "cache_hit_count", "cache_miss_count"
    assert [cell(larder.cached_model, name) for name in names] == [3, 0, 3, 0]
    assert larder.shelf.kept == {}, "it is there"
    for number in (1, 2, 3):
        larder.release(number)
    assert larder.exchange.num_open == 0


@pytest.mark.parametrize("value", [b"", b"garbage", bytes(200)])
def test_garbage_is_a_miss(larder: SharingLarder, value: bytes) -> None:
    larder.ask(1)
    larder.find(1, value)
    larder.execute()
    assert counted(larder) == (1, 0, 1, 1)
    assert len(larder.shelf.kept) == 1, "and written over"


def test_what_there_is_no_room_for_is_executed(larder: SharingLarder) -> None:
    for number in range(10, 10 * NUM_BLOCKS + 1, 10):
        larder.ask(number, (number, 0))
        larder.find(number)
        larder.execute()
        larder.ask(number + 1, (number, 0))  # is being read
    larder.client.heard()
    larder.ask(90)
    larder.find(90, larder.learn())
    assert larder.execute()
    assert [number for number, *_ in larder.replies()] == [90]


def test_a_store_that_is_not_there_is_not_waited_for(larder: SharingLarder) -> None:
    larder.shelf.is_there = False
    larder.ask(1)
    larder.execute()
    assert counted(larder) == (1, 0, 1, 1)


def test_the_loop_wakes_when_the_store_must_be_looked_at(larder: SharingLarder) -> None:
    assert larder.exchange.next_deadline_ns() is None
    larder.shelf.deadline_ns = 77
    assert larder.exchange.next_deadline_ns() == 77


def test_who_is_looked_up_can_be_cancelled_and_the_next_is_executed(larder: SharingLarder) -> None:
    for number in (1, 2, 3):
        larder.ask(number)
    larder.client.say(CANCEL, 1)
    larder.step()
    assert larder.replies() == [(1, 0, Reason.CANCELLED)]
    assert larder.asked == []
    block = larder.execute()
    assert larder.replies() == [(2, block, 0), (3, block, 0)]
    assert counted(larder) == (3, 1, 1, 1)


def test_a_client_that_dies_while_it_is_looked_up_leaves_the_others_their_turn(larder: SharingLarder) -> None:
    other = larder.add_client(41)
    larder.exchange.clients[41].is_front_end = True
    larder.ask(1, client=other)
    larder.ask(1)
    larder.exchange.remove_client(41)
    larder.step()
    assert larder.asked == []
    block = larder.execute()
    assert larder.replies() == [(1, block, 0)]
    assert larder.exchange.num_open == 0


def test_who_has_less_time_than_the_first_looks_for_itself(larder: SharingLarder) -> None:
    larder.cached_model.heed_deadlines()
    assert isinstance(larder.cached_model.scheduler, DeadlineScheduler)
    larder.ask(1)
    larder.ask(2, deadline=larder.now_ns + 3_000_000)
    assert larder.asked == [1, 2]
    assert larder.shelf.asked[1][2] == larder.now_ns - 1000 + 3_000_000
    larder.find(2, larder.learn(b"data"))
    (reply,) = larder.client.heard()
    assert (reply[P.NUMBER], larder.read(reply)) == (2, b"data")
    larder.find(1)
    (reply,) = larder.client.heard()
    assert (reply[P.NUMBER], larder.read(reply)) == (1, b"data"), "it has come meanwhile"


def test_a_model_that_goes_is_reported_when_nobody_is_looked_up(larder: SharingLarder) -> None:
    larder.ask(1)
    larder.exchange.retire_model(MODEL)
    larder.step()
    assert larder.exchange.reports == []
    larder.find(1, larder.learn())
    assert larder.exchange.reports == [ModelRetired(MODEL)]


def test_a_model_that_is_gone_has_nobody_looked_up(larder: SharingLarder) -> None:
    for number in (1, 2):
        larder.ask(number)
    larder.exchange.remove_model(MODEL, larder.now_ns)
    larder.step()
    assert sorted(larder.replies()) == [(1, 0, Reason.NOT_READY), (2, 0, Reason.NOT_READY)]
    assert larder.asked == []


def test_what_is_executed_of_a_model_that_is_gone_is_kept_for_nobody(larder: SharingLarder) -> None:
    larder.ask(1)
    larder.find(1)
    larder.exchange.remove_model(MODEL, larder.now_ns)
    larder.execute()
    assert [number for number, *_ in larder.replies()] == [1]
    assert larder.shelf.kept == {}


def test_those_whom_the_queue_has_no_room_for_are_refused_after_the_look_up() -> None:
    larder = SharingLarder()
    larder.add_cached(8, SINGLE, max_queue=1)
    larder.ask(1, (1, 1), model=8)
    larder.ask(2, (2, 2), model=8)
    larder.find(1)
    larder.find(2)
    assert [(number, reason) for number, _, reason in larder.replies()] == [(2, Reason.QUEUE_FULL)]


def test_where_an_ensembles_models_change_nothing_of_before_is_true(larder: SharingLarder) -> None:
    assert larder.exchange.cached is not None
    larder.ask(1, (9, 9))
    larder.find(1)
    larder.execute(b"old!")
    larder.ask(2)
    larder.find(2)
    (running,) = larder.items()
    for number, digest in ((3, DIGEST), (4, (5, 5)), (5, (5, 5))):
        larder.ask(number, digest)
    larder.replies()
    larder.exchange.cached.name(MODEL, "other", larder.now_ns)
    assert larder.asked == [1, 2], "who was looked up is not any more"
    larder.step()
    larder.answer(running, b"old!")
    for _ in range(3):
        (item,) = larder.items()
        larder.answer(item, b"new!")
    assert sorted(number for number, *_ in larder.replies()) == [2, 3, 4, 5]
    assert larder.cache["num_entries"] == 0, "each was executed for itself"
    larder.ask(6, (9, 9))
    assert larder.shelf.asked[-1][1].startswith(b"shoal:1:other:"), "what is kept here is forgotten"


def run_schedule(seed: int, value: bytes) -> Counter[str]:
    """Requests, findings, answers, errors and cancellations as they fall; each request is answered once, and nothing
    is left. Counts what has come to pass."""
    random, larder, told = Random(seed), SharingLarder(), Counter[str]()
    waiting: list[tuple[int, ...]] = []
    last = 0

    def find(key: int) -> None:
        larder.shelf.asked = [each for each in larder.shelf.asked if each[0] != key]
        larder.shelf.found.append((key, random.choice([None, value, b"garbage"])))
        larder.step()

    def answer() -> None:
        status = int(random.random() < 0.3)
        larder.answer(waiting.pop(0), status=status)
        told["failed" if status else "executed"] += 1

    for _ in range(random.randint(5, 30)):
        larder.shelf.is_there = random.random() < 0.9
        kind = random.random()
        waiting += larder.items()
        if kind < 0.5:
            last += 1
            larder.ask(last, (random.randint(1, 3), 0))
        elif kind < 0.7 and larder.shelf.asked:
            find(random.choice(larder.shelf.asked)[0])
        elif kind < 0.9 and waiting:
            answer()
        elif last:
            larder.client.say(CANCEL, random.randint(1, last))
            larder.step()
    while larder.exchange.num_open:
        waiting += larder.items()
        if larder.shelf.asked:
            find(larder.shelf.asked[0][0])
        elif waiting:
            answer()
        else:
            larder.step()
    replies = larder.replies()
    assert sorted(number for number, *_ in replies) == list(range(1, last + 1))
    for number, _, reason in replies:
        told["cancelled"] += reason == Reason.CANCELLED
        larder.release(number)
    assert larder.exchange.blocks.own is not None
    assert larder.exchange.blocks.own.num_taken == larder.cache["num_entries"] == len(larder.exchange.holders)
    told["hit"] += larder.cache["num_hits"]
    return told


def test_any_schedule_answers_each_request_once(larder: SharingLarder) -> None:
    value, told = larder.learn(), Counter[str]()
    for seed in range(20_261_122, 20_261_122 + 40):
        try:
            told += run_schedule(seed, value)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert min(told[what] for what in ("executed", "failed", "cancelled", "hit")) > 10, told

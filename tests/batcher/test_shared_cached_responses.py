"""Equal requests of several servers, record by record: who looks for others' answers, and what comes of it."""

from collections import Counter
from random import Random

import pytest

from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.shared_answers import SharedAnswers
from shoal.messages.from_batcher import ModelRetired
from shoal.reasons import Reason
from shoal.shm.layout import CANCEL, P
from tests.batcher.caching_star import DIGEST, NUM_BLOCKS, SINGLE, CachingStar
from tests.batcher.scripted_store import ScriptedStore
from tests.batcher.star import CLIENT, MODEL, cell


class SharingStar(CachingStar):
    """A cache that shares its answers: what is on the shelf, or looked for there, is the test's business."""

    def __init__(self, store: ScriptedStore | None = None) -> None:
        self.store = ScriptedStore() if store is None else store
        super().__init__(shared=SharedAnswers(self.store))

    def key(self, number: int) -> int:
        return self.exchange.clients[CLIENT].first_key + number

    def find(self, number: int, value: bytes | None = None) -> None:
        """The store says what it has for a request."""
        self.store.found.append((self.key(number), value))
        self.step()

    @property
    def asked(self) -> list[int]:
        """The numbers of those who wait for the store."""
        return [key - self.key(0) for key, *_ in self.store.asked]

    def learn(self, value: bytes = b"abcd") -> bytes:
        """What another server keeps for the digest that all ask with."""
        other = SharingStar()
        other.ask(1)
        other.find(1)
        other.execute(value)
        (kept,) = other.store.kept.values()
        return kept


@pytest.fixture
def star() -> SharingStar:
    return SharingStar()


def counted(star: CachingStar) -> tuple[int, ...]:
    return tuple(star.cache[f"num_{name}"] for name in ("lookups", "hits", "misses", "entries"))


def test_who_finds_nothing_is_executed_and_lets_others_find_it(star: SharingStar) -> None:
    star.ask(1)
    assert (star.asked, star.items()) == ([1], [])
    assert star.store.asked[0][1] == b"shoal:1:m:%d:%032x" % (MODEL, 9 << 64 | 7)
    star.find(1)
    block = star.execute(b"data")
    assert star.replies() == [(1, block, 0)]
    assert len(star.store.kept) == 1
    star.ask(2)
    (reply,) = star.client.received()
    assert star.read(reply) == b"data"
    assert star.asked == [1], "what is kept here is not looked for"
    assert counted(star) == (2, 1, 1, 1)
    assert cell(star.cached_model, "cache_miss_count") == 1
    assert cell(star.cached_model, "cache_miss_ns") >= 1000, "with the time of the look-up"
    assert star.cache["lookup_ns"] >= 1000


def test_what_another_has_answered_is_copied_once_and_answered(star: SharingStar) -> None:
    for number in (1, 2):
        star.ask(number)
    assert star.asked == [1], "the second waits for the first"
    star.find(1, star.learn(b"data"))
    replies = star.client.received()
    assert [star.read(each) for each in replies] == [b"data"] * 2
    assert len({each[P.BLOCK] for each in replies}) == 1
    star.ask(3)
    assert star.read(star.client.received()[0]) == b"data"
    assert star.items() == []
    assert counted(star) == (3, 3, 0, 1)
    names = "success_count", "inference_count", "cache_hit_count", "cache_miss_count"
    assert [cell(star.cached_model, name) for name in names] == [3, 0, 3, 0]
    assert star.store.kept == {}, "it is there"
    for number in (1, 2, 3):
        star.release(number)
    assert star.exchange.num_open == 0


@pytest.mark.parametrize("value", [b"", b"garbage", bytes(200)])
def test_garbage_is_a_miss(star: SharingStar, value: bytes) -> None:
    star.ask(1)
    star.find(1, value)
    star.execute()
    assert counted(star) == (1, 0, 1, 1)
    assert len(star.store.kept) == 1, "and written over"


def test_what_there_is_no_room_for_is_executed(star: SharingStar) -> None:
    for number in range(10, 10 * NUM_BLOCKS + 1, 10):
        star.ask(number, (number, 0))
        star.find(number)
        star.execute()
        star.ask(number + 1, (number, 0))  # is being read
    star.client.received()
    star.ask(90)
    star.find(90, star.learn())
    assert star.execute()
    assert [number for number, *_ in star.replies()] == [90]


def test_a_store_that_is_not_there_is_not_waited_for(star: SharingStar) -> None:
    star.store.is_there = False
    star.ask(1)
    star.execute()
    assert counted(star) == (1, 0, 1, 1)


def test_the_loop_wakes_when_the_store_must_be_looked_at(star: SharingStar) -> None:
    assert star.exchange.next_deadline_ns() is None
    star.store.deadline_ns = 77
    assert star.exchange.next_deadline_ns() == 77


def test_who_is_looked_up_can_be_cancelled_and_the_next_is_executed(star: SharingStar) -> None:
    for number in (1, 2, 3):
        star.ask(number)
    star.client.send(CANCEL, 1)
    star.step()
    assert star.replies() == [(1, 0, Reason.CANCELLED)]
    assert star.asked == []
    block = star.execute()
    assert star.replies() == [(2, block, 0), (3, block, 0)]
    assert counted(star) == (3, 1, 1, 1)


def test_a_client_that_dies_while_it_is_looked_up_leaves_the_others_their_turn(star: SharingStar) -> None:
    other = star.add_client(41)
    star.exchange.clients[41].is_front_end = True
    star.ask(1, client=other)
    star.ask(1)
    star.exchange.remove_client(41)
    star.step()
    assert star.asked == []
    block = star.execute()
    assert star.replies() == [(1, block, 0)]
    assert star.exchange.num_open == 0


def test_who_has_less_time_than_the_first_looks_for_itself(star: SharingStar) -> None:
    star.cached_model.heed_deadlines()
    assert isinstance(star.cached_model.scheduler, DeadlineScheduler)
    star.ask(1)
    star.ask(2, deadline=star.now_ns + 3_000_000)
    assert star.asked == [1, 2]
    assert star.store.asked[1][2] == star.now_ns - 1000 + 3_000_000
    star.find(2, star.learn(b"data"))
    (reply,) = star.client.received()
    assert (reply[P.NUMBER], star.read(reply)) == (2, b"data")
    star.find(1)
    (reply,) = star.client.received()
    assert (reply[P.NUMBER], star.read(reply)) == (1, b"data"), "it has come meanwhile"


def test_a_retiring_model_is_reported_once_no_lookup_is_open(star: SharingStar) -> None:
    star.ask(1)
    star.exchange.retire_model(MODEL)
    star.step()
    assert star.exchange.reports == []
    star.find(1, star.learn())
    assert star.exchange.reports == [ModelRetired(MODEL)]


def test_requests_to_a_removed_model_are_refused_and_not_looked_up(star: SharingStar) -> None:
    for number in (1, 2):
        star.ask(number)
    star.exchange.remove_model(MODEL, star.now_ns)
    star.step()
    assert sorted(star.replies()) == [(1, 0, Reason.NOT_READY), (2, 0, Reason.NOT_READY)]
    assert star.asked == []


def test_an_answer_of_a_removed_model_is_not_cached(star: SharingStar) -> None:
    star.ask(1)
    star.find(1)
    star.exchange.remove_model(MODEL, star.now_ns)
    star.execute()
    assert [number for number, *_ in star.replies()] == [1]
    assert star.store.kept == {}


def test_those_whom_the_queue_has_no_room_for_are_refused_after_the_look_up() -> None:
    star = SharingStar()
    star.add_cached(8, SINGLE, max_queue=1)
    star.ask(1, (1, 1), model=8)
    star.ask(2, (2, 2), model=8)
    star.find(1)
    star.find(2)
    assert [(number, reason) for number, _, reason in star.replies()] == [(2, Reason.QUEUE_FULL)]


def test_where_an_ensembles_models_change_nothing_of_before_is_true(star: SharingStar) -> None:
    assert star.exchange.cached is not None
    star.ask(1, (9, 9))
    star.find(1)
    star.execute(b"old!")
    star.ask(2)
    star.find(2)
    (running,) = star.items()
    for number, digest in ((3, DIGEST), (4, (5, 5)), (5, (5, 5))):
        star.ask(number, digest)
    star.replies()
    star.exchange.cached.name(MODEL, "other", star.now_ns)
    assert star.asked == [1, 2], "who was looked up is not any more"
    star.step()
    star.answer(running, b"old!")
    for _ in range(3):
        (item,) = star.items()
        star.answer(item, b"new!")
    assert sorted(number for number, *_ in star.replies()) == [2, 3, 4, 5]
    assert star.cache["num_entries"] == 0, "each was executed for itself"
    star.ask(6, (9, 9))
    assert star.store.asked[-1][1].startswith(b"shoal:1:other:"), "what is kept here is forgotten"


def run_schedule(seed: int, value: bytes) -> Counter[str]:
    """Requests, findings, answers, errors and cancellations as they fall; each request is answered once, and nothing
    is left. Counts what has come to pass."""
    random, star, told = Random(seed), SharingStar(), Counter[str]()
    waiting: list[tuple[int, ...]] = []
    last = 0

    def find(key: int) -> None:
        star.store.asked = [each for each in star.store.asked if each[0] != key]
        star.store.found.append((key, random.choice([None, value, b"garbage"])))
        star.step()

    def answer() -> None:
        status = int(random.random() < 0.3)
        star.answer(waiting.pop(0), status=status)
        told["failed" if status else "executed"] += 1

    for _ in range(random.randint(5, 30)):
        star.store.is_there = random.random() < 0.9
        kind = random.random()
        waiting += star.items()
        if kind < 0.5:
            last += 1
            star.ask(last, (random.randint(1, 3), 0))
        elif kind < 0.7 and star.store.asked:
            find(random.choice(star.store.asked)[0])
        elif kind < 0.9 and waiting:
            answer()
        elif last:
            star.client.send(CANCEL, random.randint(1, last))
            star.step()
    while star.exchange.num_open:
        waiting += star.items()
        if star.store.asked:
            find(star.store.asked[0][0])
        elif waiting:
            answer()
        else:
            star.step()
    replies = star.replies()
    assert sorted(number for number, *_ in replies) == list(range(1, last + 1))
    for number, _, reason in replies:
        told["cancelled"] += reason == Reason.CANCELLED
        star.release(number)
    assert star.exchange.blocks.own is not None
    assert star.exchange.blocks.own.num_taken == star.cache["num_entries"] == len(star.exchange.holders)
    told["hit"] += star.cache["num_hits"]
    return told


def test_any_schedule_answers_each_request_once(star: SharingStar) -> None:
    value, told = star.learn(), Counter[str]()
    for seed in range(20_261_122, 20_261_122 + 40):
        try:
            told += run_schedule(seed, value)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert min(told[what] for what in ("executed", "failed", "cancelled", "hit")) > 10, told

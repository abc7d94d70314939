"""A batcher dies while a client cannot say again what is open: everybody else is served, and that client loses nothing.

As in test_takeover.py the dead one is an exchange that is not called any more.
"""

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, FREE, HAVE, HOLD, NUMBER_BITS, RELEASE, REPLY, RESPONSE, B, P
from tests.batcher.star import CLIENT, HEADER, MODEL, SINGLE, WORKER, End, Star, ask, cell
from tests.batcher.takeover_play import answer, output_block
from tests.batcher.test_takeover import BATCHING, answers

LATE = CLIENT + 1


def star_of_two(config: dict[str, object] = BATCHING, *, may_run_again: bool = False) -> tuple[Star, End, End, End]:
    """A star with a client, another one that will be late, and a worker."""
    star = Star()
    model = star.add_model(MODEL, config, may_run_again=may_run_again)
    return star, star.add_client(CLIENT), star.add_client(LATE), star.add_worker(WORKER, model)


def begun(star: Star, *clients: End) -> list[tuple[int, ...]]:
    """One request of each of these, which the worker has; its batch."""
    for client in clients:
        ask(client, 1)
    star.exchange.step(now_ns=500)
    worker = next(end for end, _ in star._workers)
    return [record for record in worker.heard() if record[0] == BATCH_ITEM]


def freed(worker: End) -> list[int]:
    """The blocks that the worker has been told are of no more use."""
    blocks = [record[B.FREED] if record[0] == BATCH_ITEM else record[B.BLOCK] for record in worker.heard()]
    return [block for block in blocks if block]


def test_others_are_served_and_an_answer_is_kept() -> None:
    star, client, late, worker = star_of_two()
    items = begun(star, client, late)
    star.succeed(late=[LATE])
    ask(client, 1, 2)
    star.exchange.resume(now_ns=600)
    for item in items:
        answer(worker, item)
    star.exchange.step(now_ns=700)
    assert answers(client) == [(1, Reason.NONE)]
    (second,) = worker.heard()
    answer(worker, second)
    star.exchange.step(now_ns=800)
    assert answers(client) == [(2, Reason.NONE)]
    client.say(RELEASE, 1)
    star.exchange.step(now_ns=900)
    assert freed(worker) == []  # it holds the late one's answer, too
    assert late.heard() == []
    ask(late, 1, 2)
    star.exchange.succession.hear_late(LATE, now_ns=1_000)
    star.exchange.step(now_ns=1_000)
    assert answers(late) == [(1, Reason.NONE)]
    (third,) = worker.heard()
    answer(worker, third)
    late.say(RELEASE, 1)
    star.exchange.step(now_ns=1_100)
    assert answers(late) == [(2, Reason.NONE)]
    assert freed(worker) == [output_block(items[0])]
    assert cell(star.model(MODEL), "success_count") == 4


def test_what_its_ring_says_before_it_has_heard_is_read_when_it_has() -> None:
    star, _, late, worker = star_of_two()
    star.succeed(late=[LATE])
    ask(late, 1)
    star.exchange.resume(now_ns=600)
    ask(late, 2)
    star.exchange.step(now_ns=700)
    assert worker.heard() == []
    ask(late, 1, 2)
    star.exchange.succession.hear_late(LATE, now_ns=800)
    star.exchange.step(now_ns=800)
    assert [record[B.KEY] & 0xFF for record in worker.heard()] == [1, 2]


def test_an_answer_that_the_dead_one_had_passed_on_is_not_given_twice() -> None:
    star, _, late, worker = star_of_two()
    (item,) = begun(star, late)
    answer(worker, item)
    star.exchange._drain_worker = lambda *_: None  # type: ignore[method-assign] # it dies before the slot is given back
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    late.say(HOLD, 1, 1, output_block(item))
    star.exchange.succession.hear_late(LATE, now_ns=700)
    star.exchange.step(now_ns=700)
    assert late.heard() == []
    assert freed(worker) == []
    late.say(RELEASE, 1)
    star.exchange.step(now_ns=800)
    assert freed(worker) == [output_block(item)]


@pytest.mark.parametrize("is_held", [True, False])
def test_no_block_that_it_may_hold_is_freed(is_held: bool) -> None:
    star, _, late, worker = star_of_two()
    (item,) = begun(star, late)
    answer(worker, item)
    star.exchange.step(now_ns=600)
    assert len(late.heard()) == 1
    star.succeed(late=[LATE])
    worker.say(HAVE, 0, 0, 0, output_block(item))
    star.exchange.resume(now_ns=700)
    star.exchange.step(now_ns=700)
    assert freed(worker) == []
    if is_held:
        late.say(HOLD, 1, 1, output_block(item))
    star.exchange.succession.hear_late(LATE, now_ns=800)
    star.exchange.step(now_ns=800)
    assert freed(worker) == ([] if is_held else [output_block(item)])
    late.say(RELEASE, 1)
    star.exchange.step(now_ns=900)
    assert freed(worker) == ([output_block(item)] if is_held else [])


def test_a_block_that_another_client_held_with_it_is_not_freed() -> None:
    star, client, late, worker = star_of_two()
    items = begun(star, client, late)
    for item in items:
        answer(worker, item)
    star.exchange.step(now_ns=600)
    star.succeed(late=[LATE])
    client.say(HOLD, 1, 1, output_block(items[0]))
    worker.say(HAVE, 0, 0, 0, output_block(items[0]))
    star.exchange.resume(now_ns=700)
    client.say(RELEASE, 1)
    star.exchange.step(now_ns=800)
    assert freed(worker) == []
    star.exchange.remove_client(LATE)
    star.exchange.step(now_ns=900)
    assert freed(worker) == [output_block(items[0])]


def test_blocks_of_answers_since_then_are_freed_as_always() -> None:
    star, client, _, worker = star_of_two()
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    (item,) = begun(star, client)
    answer(worker, item)
    star.exchange.step(now_ns=700)
    client.say(RELEASE, 1)
    star.exchange.step(now_ns=800)
    assert freed(worker) == [output_block(item)]


@pytest.mark.parametrize("may_run_again", [True, False])
def test_an_instance_that_dies_meanwhile(may_run_again: bool) -> None:
    """What it was executing fails, or runs once more, when the client says that it waits for it."""
    star, _, late, worker = star_of_two(may_run_again=may_run_again)
    (item,) = begun(star, late)
    worker.begin(item[B.BATCH])
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    star.remove_worker(WORKER, now_ns=700)
    other = star.add_worker(WORKER + 1, star.model(MODEL))
    ask(late, 1)
    star.exchange.succession.hear_late(LATE, now_ns=800)
    star.exchange.step(now_ns=800)
    assert [record[B.KEY] for record in other.heard()] == [item[B.KEY]] * may_run_again
    assert answers(late) == [(1, Reason.INSTANCE_DIED)] * (not may_run_again)


def test_one_that_dies_leaves_nothing() -> None:
    star, _, late, worker = star_of_two()
    (item,) = begun(star, late)
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    answer(worker, item)
    star.exchange.step(now_ns=700)
    assert freed(worker) == []
    star.exchange.remove_client(LATE)
    star.exchange.step(now_ns=800)
    assert freed(worker) == [output_block(item)]
    assert (len(star.exchange.holders), star.exchange.num_open) == (0, 0)
    star.exchange.succession.hear_late(LATE, now_ns=900)
    assert LATE not in star.exchange.clients


def test_what_it_holds_counts_once_though_it_says_so_twice() -> None:
    """Two batchers die while it cannot read; the third reads what it has said to both."""
    star, _, late, worker = star_of_two()
    (item,) = begun(star, late)
    worker.say(RESPONSE, item[B.KEY], item[B.BATCH], 0, output_block(item), HEADER)
    star.exchange.step(now_ns=600)
    assert len(late.heard()) == 1
    star.succeed(late=[LATE])
    for _ in range(2):
        late.say(HOLD, 1, 1, output_block(item), 0, 0, 0, 0, 0, 0, 0, 0, 1)
    late.say(RELEASE, 1, 0, output_block(item))
    worker.say(HAVE, 0, 0, 0, output_block(item))
    star.exchange.resume(now_ns=700)
    assert freed(worker) == []
    star.exchange.succession.hear_late(LATE, now_ns=800)
    star.exchange.step(now_ns=800)
    assert freed(worker) == [output_block(item)]
    assert len(star.exchange.holders) == 0


def test_a_model_stays_until_every_front_end_has_said_what_is_open() -> None:
    star, _, late, _ = star_of_two()
    star.succeed(late=[LATE])
    next(iter(star.exchange._late._clients.values())).is_front_end = True
    star.exchange.retire_model(MODEL)
    star.exchange.resume(now_ns=600)
    assert star.reports() == []
    ask(late, 1)
    star.exchange.succession.hear_late(LATE, now_ns=700)
    star.exchange.step(now_ns=700)
    assert star.reports() == []


STEPS = st.lists(
    st.sampled_from(["ask", "ask_late", "answer", "release", "step", "hear", "succeed", "succeed", "succeed_untold"]),
    max_size=60,
)


@settings(max_examples=100)
@given(STEPS, st.sampled_from([SINGLE, BATCHING]))
def test_every_request_gets_exactly_one_answer_and_every_block_is_freed(
    steps: list[str], config: dict[str, object]
) -> None:
    play = Play(config)
    for step in steps:
        getattr(play, step)()
    play.hear()
    for _ in range(2 * sum(play.number.values()) + 3):
        play.step()
        play.answer()
    play.tell()
    play.step()
    play.release()
    play.step()
    play.answer()  # takes back what was freed
    for owner, number in play.number.items():
        assert sorted(play.answered[owner]) == list(range(1, number + 1))
    assert sorted(play.executed) == sorted(set(play.executed))
    assert not play.blocks
    assert len(play.star.exchange.holders) == 0
    assert cell(play.star.model(MODEL), "pending_count") == 0


class Play:
    """Two clients, one of which may take its time to hear of a batcher, a worker, and batchers that die."""

    def __init__(self, config: dict[str, object]) -> None:
        self.star, client, late, self.worker = star_of_two(config)
        self.clients = {CLIENT: client, LATE: late}
        self.now_ns = 1_000
        self.number = dict.fromkeys(self.clients, 0)
        self.open: dict[int, set[int]] = {owner: set() for owner in self.clients}
        self.unreleased: dict[int, dict[int, int]] = {owner: {} for owner in self.clients}
        self.answered: dict[int, list[int]] = {owner: [] for owner in self.clients}
        self.is_late = False
        self.todo: list[tuple[int, ...]] = []
        self.executed: list[int] = []
        self.blocks: set[int] = set()  # of the worker's, taken

    def ask(self, owner: int = CLIENT) -> None:
        if self.number[owner] < 6:
            self.number[owner] += 1
            self.open[owner].add(self.number[owner])
            ask(self.clients[owner], self.number[owner])

    def ask_late(self) -> None:
        self.ask(LATE)

    def step(self) -> None:
        self.now_ns += 10
        self.star.exchange.step(self.now_ns)
        self.collect(self.clients)

    def collect(self, owners: Collection[int]) -> None:
        for owner in owners:
            for reply in self.clients[owner].heard():
                assert reply[0] == REPLY
                assert reply[P.REASON] == Reason.NONE
                if reply[P.NUMBER] in self.open[owner]:  # a reply that was told before is dropped
                    self.open[owner].remove(reply[P.NUMBER])
                    self.answered[owner].append(reply[P.NUMBER])
                    self.unreleased[owner][reply[P.NUMBER]] = reply[P.BLOCK]

    def answer(self) -> None:
        """The worker takes what came and executes its first batch."""
        for record in self.worker.heard():
            if record[0] == FREE:
                self.free(record[B.BLOCK])
            else:
                self.free(record[B.FREED])
                self.todo.append(record)
        if not self.todo:
            return
        batch = self.todo[0][B.BATCH]
        self.worker.begin(batch)
        for item in [item for item in self.todo if item[B.BATCH] == batch]:
            self.todo.remove(item)
            self.executed.append(item[B.KEY])
            self.blocks.add(output_block(item))
            answer(self.worker, item)

    def free(self, block: int) -> None:
        assert all(block not in unreleased.values() for unreleased in self.unreleased.values())
        self.blocks.discard(block)

    def release(self) -> None:
        for owner, unreleased in self.unreleased.items():
            for number in unreleased:
                self.clients[owner].say(RELEASE, number)
            unreleased.clear()

    def succeed(self) -> None:
        self.star.succeed(late=[LATE])
        self.is_late = True
        self.tell()
        self.resume()

    def succeed_untold(self) -> None:
        """The worker is executing, and tells later."""
        self.star.succeed(late=[LATE])
        self.is_late = True
        self.resume()

    def tell(self) -> None:
        for block in self.blocks:
            self.worker.say(HAVE, 0, 0, 0, block)
        self.star.exchange.succession.expect_worker(WORKER)

    def resume(self) -> None:
        self.say_again(CLIENT)
        self.now_ns += 10
        self.star.exchange.resume(self.now_ns)

    def hear(self) -> None:
        """The late client reads at last."""
        if self.is_late:
            self.is_late = False
            self.say_again(LATE)
            self.now_ns += 10
            self.star.exchange.succession.hear_late(LATE, self.now_ns)

    def say_again(self, owner: int) -> None:
        self.collect([owner])
        is_first = 1
        for number, block in self.unreleased[owner].items():
            self.clients[owner].say(HOLD, number, is_first, block)
            is_first = 0
        for number in sorted(self.open[owner]):
            ask(self.clients[owner], number)


def test_keys_of_a_late_client_are_its_own() -> None:
    """What is kept is found by the owner in the key, and holds its block under another name."""
    star, _, late, worker = star_of_two()
    (item,) = begun(star, late)
    assert item[B.KEY] >> NUMBER_BITS == LATE
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    answer(worker, item)
    star.exchange.step(now_ns=700)
    assert star.exchange.holders.release_owner(LATE) == []
    assert star.exchange.holders.is_held(output_block(item))

"""A batcher dies while a client cannot send its open requests again: others are served, and that client loses nothing.

As in test_takeover.py the dead one is an exchange that is not called any more.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.reasons import Reason
from shoal.shm.layout import (
    BATCH_ITEM,
    DONE,
    HAVE,
    HOLD,
    RELEASE,
    RESCHEDULE,
    RESPONSE,
    B,
    pack_ref,
)
from tests.batcher.last_store import dying
from tests.batcher.late_play import LATE, LatePlay, star_of_two
from tests.batcher.star import CLIENT, HEADER, MODEL, SINGLE, WORKER, End, Star, ask, cell, replies
from tests.batcher.takeover_play import BATCHING, answer, output_block

ORDERED = {
    "name": "m",
    "max_batch_size": 4,
    "dynamic_batching": {"max_queue_delay_microseconds": 0, "preserve_ordering": True},
}


def begun(star: Star, *clients: End) -> list[tuple[int, ...]]:
    """One request of each of these, which the worker has; its batch."""
    for client in clients:
        ask(client, 1)
    star.exchange.step(now_ns=500)
    worker = next(end for end, _ in star._workers)
    return [record for record in worker.received() if record[0] == BATCH_ITEM]


def freed(worker: End) -> list[int]:
    """The blocks that the worker has been told are of no more use."""
    blocks = [record[B.FREED] if record[0] == BATCH_ITEM else record[B.BLOCK] for record in worker.received()]
    return [block for block in blocks if block]


def test_others_are_served_and_an_answer_is_said_at_once() -> None:
    star, client, late, worker = star_of_two(BATCHING)
    items = begun(star, client, late)
    star.succeed(late=[LATE])
    ask(client, 1, 2)
    star.exchange.resume(now_ns=600)
    for item in items:
        answer(worker, item)
    star.exchange.step(now_ns=700)
    assert replies(client) == [(1, Reason.NONE)]
    (second,) = worker.received()
    answer(worker, second)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(2, Reason.NONE)]
    client.send(RELEASE, 1)
    star.exchange.step(now_ns=900)
    assert freed(worker) == []  # it holds the late one's answer, too
    ask(late, 1, 2)  # it had collected its replies before this one came
    star.exchange.succession.receive_late(LATE, now_ns=1_000)
    star.exchange.step(now_ns=1_000)
    assert replies(late) == [(1, Reason.NONE)]
    (third,) = worker.received()
    answer(worker, third)
    late.send(RELEASE, 1)
    star.exchange.step(now_ns=1_100)
    assert replies(late) == [(2, Reason.NONE)]
    assert freed(worker) == [output_block(items[0])]
    assert cell(star.model(MODEL), "success_count") == 4


def test_what_its_ring_says_before_it_has_heard_is_read_when_it_has() -> None:
    star, _, late, worker = star_of_two(BATCHING)
    star.succeed(late=[LATE])
    ask(late, 1)
    star.exchange.resume(now_ns=600)
    ask(late, 2)
    star.exchange.step(now_ns=700)
    assert worker.received() == []
    ask(late, 1, 2)
    star.exchange.succession.receive_late(LATE, now_ns=800)
    star.exchange.step(now_ns=800)
    assert [record[B.KEY] & 0xFF for record in worker.received()] == [1, 2]


#: As in test_takeover.py.
SCHEDULES: dict[str, tuple[dict[str, object], str]] = {
    "an answer that the dead batcher had sent": (
        BATCHING,
        "ask_late step answer die_1 receive step answered:late1,late1 freed: release step freed:1",
    ),
    "an answer that the dead batcher had sent and noted": (
        BATCHING,
        "ask_late step answer die_2 receive step answered:late1 freed: release step freed:1",
    ),
    "an answer outlives a successor that dies before the client has spoken": (
        SINGLE,
        "ask_late step answer succeed succeed receive step answered:late1 release step freed:1",
    ),
    "an answer outlives a successor, with batching": (
        BATCHING,
        "ask_late step answer succeed succeed receive step answered:late1 release step freed:1",
    ),
    "an answer comes between what its client sends again and the release": (
        BATCHING,
        "ask_late step given:late1 succeed_uninformed send answer step answered:late1"
        " release receive step answered: freed:1 given: open:0",
    ),
    "a request that is given back meanwhile is queued when its client sends it again": (
        BATCHING,
        "ask_late step given:late1 succeed_uninformed give_back step given: open:0 receive step given:late1",
    ),
    "a block that it holds": (
        BATCHING,
        "ask_late step answer step answered:late1 succeed step freed: receive step freed: release step freed:1",
    ),
    "a block that it may hold and has released": (
        BATCHING,
        "ask_late step answer step answered:late1 release succeed step freed: receive step freed:1",
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule(name: str) -> None:
    config, steps = SCHEDULES[name]
    play = LatePlay(config)
    play.perform(*steps.split())
    play.end()
    play.check()


@pytest.mark.parametrize("is_released", [True, False])
def test_parts_of_an_answer_are_held_once(is_released: bool) -> None:
    star, _, late, worker = star_of_two(BATCHING)
    (item,) = begun(star, late)
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    blocks = [pack_ref(WORKER, unit, 1) for unit in (11, 12)]
    part = (item[B.KEY], item[B.BATCH], 0)
    worker.send(RESPONSE, *part, blocks[0], HEADER)
    star.exchange.step(now_ns=700)
    assert len(late.received()) == 1
    if is_released:
        late.send(RELEASE, 1, 0, blocks[0])
    else:
        late.send(HOLD, 1, 1, blocks[0], 0, 0, 0, 0, 0, 0, 0, 0, 1)
    ask(late, 1)
    worker.send(RESPONSE, *part, blocks[1], HEADER)
    star.exchange.step(now_ns=800)
    assert len(late.received()) == 1
    late.send(RELEASE, 1, 0, blocks[1])
    star.exchange.succession.receive_late(LATE, now_ns=900)
    star.exchange.step(now_ns=900)
    assert set(freed(worker)) == set(blocks[1 - is_released :])
    if not is_released:
        late.send(RELEASE, 1, 0, blocks[0])
    worker.send(DONE, item[B.KEY], item[B.BATCH])
    star.exchange.step(now_ns=1_000)
    assert freed(worker) == ([] if is_released else blocks[:1])
    assert (len(star.exchange.holders), star.exchange.num_open) == (0, 0)


@pytest.mark.parametrize("is_given_back", [True, False])
def test_others_are_answered_in_order_whatever_comes_of_a_late_request(is_given_back: bool) -> None:
    star, client, late, worker = star_of_two(ORDERED)
    items = begun(star, client, late)
    star.succeed(late=[LATE])
    ask(client, 1)
    star.exchange.resume(now_ns=600)
    answer(worker, items[0])
    star.exchange.step(now_ns=700)
    if is_given_back:
        worker.send(RESCHEDULE, items[1][B.KEY], items[1][B.BATCH])
    else:
        answer(worker, items[1])
    star.exchange.step(now_ns=800)
    assert replies(client) == [(1, Reason.NONE)]
    assert replies(late) == [(1, Reason.NONE)] * (not is_given_back)


def test_an_answer_that_the_dead_one_had_passed_on_and_that_was_released_leaves_nothing() -> None:
    star, _, late, worker = star_of_two(BATCHING)
    (item,) = begun(star, late)
    answer(worker, item)
    with dying(1):  # the late client has been shown its reply; nothing is acknowledged
        star.exchange.step(now_ns=550)
    assert replies(late) == [(1, Reason.NONE)]
    late.send(RELEASE, 1)
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    star.exchange.succession.receive_late(LATE, now_ns=700)
    star.exchange.step(now_ns=700)
    assert freed(worker) == [output_block(item)]
    assert (len(star.exchange.holders), star.exchange.num_open) == (0, 0)
    # The client has the request's block back, so another request's id may be in it by now.
    assert star.model(MODEL).finished.recent(700) == ([], [], 0)


def test_an_answer_that_the_dead_one_had_not_read_is_among_the_slowest() -> None:
    star, _, late, worker = star_of_two(BATCHING)
    (item,) = begun(star, late)
    answer(worker, item)
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    assert replies(late) == [(1, Reason.NONE)]
    (slowest,), failed, _ = star.model(MODEL).finished.recent(700)
    assert (slowest.points.end_ns, failed) == (600, [])


def test_a_request_that_is_answered_after_the_take_over_is_among_the_slowest() -> None:
    star, _, late, worker = star_of_two(BATCHING)
    (item,) = begun(star, late)
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    answer(worker, item)
    star.exchange.step(now_ns=700)
    (slowest,), failed, _ = star.model(MODEL).finished.recent(700)
    assert (slowest.points.end_ns, failed) == (700, [])


def test_a_block_that_another_client_held_with_it_is_not_freed() -> None:
    star, client, late, worker = star_of_two(BATCHING)
    items = begun(star, client, late)
    for item in items:
        answer(worker, item)
    star.exchange.step(now_ns=600)
    star.succeed(late=[LATE])
    client.send(HOLD, 1, 1, output_block(items[0]))
    worker.send(HAVE, 0, 0, 0, output_block(items[0]))
    star.exchange.resume(now_ns=700)
    client.send(RELEASE, 1)
    star.exchange.step(now_ns=800)
    assert freed(worker) == []
    star.exchange.remove_client(LATE)
    star.exchange.step(now_ns=900)
    assert freed(worker) == [output_block(items[0])]


def test_blocks_of_answers_since_then_are_freed_as_always() -> None:
    star, client, _, worker = star_of_two(BATCHING)
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    (item,) = begun(star, client)
    answer(worker, item)
    star.exchange.step(now_ns=700)
    client.send(RELEASE, 1)
    star.exchange.step(now_ns=800)
    assert freed(worker) == [output_block(item)]


@pytest.mark.parametrize("may_run_again", [True, False])
def test_an_instance_that_dies_meanwhile(may_run_again: bool) -> None:
    """What it was executing fails, or runs once more, when the client says that it waits for it."""
    star, _, late, worker = star_of_two(BATCHING, may_run_again=may_run_again)
    (item,) = begun(star, late)
    worker.begin(item[B.BATCH])
    star.succeed(late=[LATE])
    star.exchange.resume(now_ns=600)
    star.remove_worker(WORKER, now_ns=700)
    other = star.add_worker(WORKER + 1, star.model(MODEL))
    ask(late, 1)
    star.exchange.succession.receive_late(LATE, now_ns=800)
    star.exchange.step(now_ns=800)
    assert [record[B.KEY] for record in other.received()] == [item[B.KEY]] * may_run_again
    assert replies(late) == [(1, Reason.INSTANCE_DIED)] * (not may_run_again)


@pytest.mark.parametrize("is_repeated", [True, False])
def test_a_request_that_the_dead_one_may_have_refused_is_not_read(is_repeated: bool) -> None:
    """Its client may have had the refusal, and have another request in the block by now."""
    star, client, late, worker = star_of_two(BATCHING)
    items = begun(star, client, late)
    worker.begin(items[0][B.BATCH])
    if is_repeated:
        star.exchange.remove_worker(WORKER, now_ns=550)
        with dying(3):  # both have their replies; the death is not acknowledged
            star.exchange.step(now_ns=560)
        assert (replies(client), replies(late)) == ([(1, Reason.INSTANCE_DIED)],) * 2
    star.succeed(late=[CLIENT, LATE])
    star.exchange.resume(now_ns=600)
    star.remove_worker(WORKER, now_ns=700, is_repeated=is_repeated)
    _, failed, num_others = star.model(MODEL).finished.recent(700)
    assert (len(failed), num_others) == (0 if is_repeated else 2, 0)


def test_a_request_that_the_dead_one_gave_to_another_instance_is_executed_once() -> None:
    star, _, late, _ = star_of_two(SINGLE)
    begun(star, late)  # given to the worker, which does not begin it
    other = star.add_worker(WORKER + 1, star.model(MODEL))
    star.exchange.remove_worker(WORKER, now_ns=550)
    with dying(1):  # the other one has it; the death is not acknowledged
        star.exchange.step(now_ns=560)
    (item,) = other.received()
    star.succeed(late=[CLIENT, LATE])
    star.exchange.resume(now_ns=600)
    star.remove_worker(WORKER, now_ns=700, is_repeated=True)
    answer(other, item, pack_ref(WORKER + 1, 1, 1))
    star.exchange.step(now_ns=800)
    assert replies(late) == [(1, Reason.NONE)]
    ask(late, 1)  # sent before it had the reply
    star.exchange.succession.receive_late(LATE, now_ns=900)
    star.exchange.step(now_ns=900)
    assert other.received() == []


def test_one_that_dies_leaves_nothing() -> None:
    star, _, late, worker = star_of_two(BATCHING)
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
    star.exchange.succession.receive_late(LATE, now_ns=900)
    assert LATE not in star.exchange.clients


def test_what_it_holds_counts_once_though_it_says_so_twice() -> None:
    """Two batchers die while it cannot read; the third reads what it has said to both."""
    star, _, late, worker = star_of_two(BATCHING)
    (item,) = begun(star, late)
    worker.send(RESPONSE, item[B.KEY], item[B.BATCH], 0, output_block(item), HEADER)
    star.exchange.step(now_ns=600)
    assert len(late.received()) == 1
    star.succeed(late=[LATE])
    for _ in range(2):
        late.send(HOLD, 1, 1, output_block(item), 0, 0, 0, 0, 0, 0, 0, 0, 1)
    late.send(RELEASE, 1, 0, output_block(item))
    worker.send(HAVE, 0, 0, 0, output_block(item))
    star.exchange.resume(now_ns=700)
    assert freed(worker) == []
    star.exchange.succession.receive_late(LATE, now_ns=800)
    star.exchange.step(now_ns=800)
    assert freed(worker) == [output_block(item)]
    assert len(star.exchange.holders) == 0


def test_a_model_stays_until_every_front_end_has_said_what_is_open() -> None:
    star, _, late, _ = star_of_two(BATCHING)
    star.succeed(late=[LATE])
    next(iter(star.exchange._late._clients.values())).is_front_end = True
    star.exchange.retire_model(MODEL)
    star.exchange.resume(now_ns=600)
    assert star.reports() == []
    ask(late, 1)
    star.exchange.succession.receive_late(LATE, now_ns=700)
    star.exchange.step(now_ns=700)
    assert star.reports() == []


STEPS = st.lists(
    st.sampled_from(
        [
            *("ask", "ask_late", "answer", "answer_one", "give_back", "release", "step", "step_unread", "receive"),
            *("send", "send_stale", "succeed", "succeed", "succeed_uninformed"),
            *(f"die_{number}" for number in range(1, 7)),
        ]
    ),
    max_size=60,
)


@settings(max_examples=100)
@given(STEPS, st.sampled_from([SINGLE, BATCHING]))
def test_every_request_gets_exactly_one_answer_and_every_block_is_freed(
    steps: list[str], config: dict[str, object]
) -> None:
    play = LatePlay(config)
    play.perform(*steps)
    play.end()
    play.check()

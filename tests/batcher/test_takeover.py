"""A batcher dies at every moment of a request's life; its successor answers what it owed, once each.

The dead one is an exchange that is simply not called any more: all it leaves is what lies in shared memory. Clients say
again what is open and what they hold, as `Port.resubmit` does.
"""

import select

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, DONE, FREE, HAVE, RESPONSE, B, P, pack_ref
from shoal.shm.port import Port
from shoal.shm.slab import Slab
from tests.batcher.star import HEADER, MODEL, SINGLE, WORKER, End, Star, ask, cell, one_of_each, replies
from tests.batcher.takeover_play import BATCHING, Play, answer
from tests.submitted import submit

#: What happens and what has come of it by then, in the words of `Play`. Afterwards what is left is done, and every
#: request has been executed and answered once, and every block has been freed, but not before it was released.
SCHEDULES: dict[str, tuple[dict[str, object], str]] = {
    "what a worker has stays with it": (
        SINGLE,
        "ask ask step given:1 succeed_uninformed given: answer step answered:1 given:2"
        " answer step answered:2 success_count:2",
    ),
    "what was published while no batcher read": (
        BATCHING,
        "ask ask ask step answer succeed_uninformed collect answered:1,2,3 given:1,2,3 execution_count:1"
        " pending_count:0",
    ),
    "what a client sends before it knows of the successor does not hide what it sends again": (
        BATCHING,
        "ask ask ask step given:1,2,3 ask replace ask ask answer resume given:5,6,4 answer step answered:1,2,3,5,6,4"
        " repeat ask step given:7",
    ),
    "an answer that came before is held": (
        SINGLE,
        "ask step answer step answered:1 succeed freed: release step freed:1",
    ),
    "a release that the dead batcher did not read": (SINGLE, "ask step answer step answered:1 release succeed freed:1"),
    "a worker that was executing names its blocks once all is answered": (
        SINGLE,
        "ask ask step answer step given:1,2 release succeed_uninformed answer step freed: send_message step freed:1",
    ),
    "a batcher that dies before it serves": (SINGLE, "ask step replace answer resume collect answered:1"),
    "three that die before they serve": (
        SINGLE,
        "ask step replace send_again replace send_again replace answer resume collect answered:1",
    ),
    "a request that was given back": (
        BATCHING,
        "ask ask step given:1,2 give_back step succeed_uninformed answer step answered:2 given:1"
        " answer step answered:1",
    ),
    "an instance that gave its only request back is idle": (
        SINGLE,
        "ask step given:1 give_back die_1 step given:1 answer step answered:1",
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule(name: str) -> None:
    config, steps = SCHEDULES[name]
    play = Play(config)
    play.perform(*steps.split())
    play.end()
    play.check()


def test_a_worker_is_woken_for_what_the_dead_one_did_not_ring_for() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    worker.bell.clear()
    star.succeed()
    ask(client, 1)
    star.exchange.resume(now_ns=600)
    assert select.select([worker.bell], [], [], 0)[0]


def test_figures_go_on_where_they_were() -> None:
    star, client, worker = one_of_each(BATCHING)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    answer(worker, worker.received()[0])
    star.exchange.step(now_ns=600)
    ask(client, 2)
    star.exchange.step(now_ns=700)
    star.succeed()
    ask(client, 2)
    ask(client, 3)
    star.exchange.resume(now_ns=800)
    successor = star.model(MODEL)
    assert (cell(successor, "success_count"), cell(successor, "pending_count")) == (1, 1)
    assert [sum(histogram) for histogram in successor.row.histograms] == [1] * 5
    for item in worker.received():
        answer(worker, item)
    star.exchange.step(now_ns=900)
    assert cell(successor, "execution_count") == 2
    assert [sum(histogram) for histogram in successor.row.histograms] == [2] * 5


def test_a_queue_whose_requests_are_not_sent_again_is_seen_to_be_empty() -> None:
    star, client, _ = one_of_each(SINGLE)
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    assert (star.figures(MODEL)["pending_count"], star.figures(MODEL)["oldest_queued_ns"]) == (1, 500)
    star.succeed()  # and the client is dead, too
    star.exchange.resume(now_ns=600)
    assert (star.figures(MODEL)["pending_count"], star.figures(MODEL)["oldest_queued_ns"]) == (0, 0)


def test_a_batch_size_seen_before_keeps_its_entry() -> None:
    star = Star()
    row = star.add_model(MODEL, BATCHING).row
    row.count_execution(2, 1, 2, 3)
    row.count_execution(4, 1, 2, 3)
    row.publish()
    star.succeed()
    successor = star.model(MODEL).row
    successor.count_execution(4, 1, 2, 3)
    successor.publish()
    assert star.batch_statistics(MODEL) == [(2, 1, 1, 2, 3), (4, 2, 2, 4, 6)]


STEPS = st.lists(
    st.sampled_from(
        [
            *("ask", "answer", "answer_one", "give_back", "release", "step", "serve", "send_message"),
            *("succeed", "succeed_unread", "succeed_uninformed"),
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
    play = Play(config)
    play.perform(*steps)
    play.end()
    play.check()


@pytest.mark.parametrize("is_part", [False, True])
def test_what_a_client_said_to_a_successor_that_died_counts_once(is_part: bool) -> None:
    """A client that is slow says all of it when the next successor has passed over what stood in its ring."""
    star, client, worker = one_of_each(SINGLE)
    port = Port(client.own, client.link_view, client.bell, max_in_flight=4)
    port.add_segment(WORKER, worker.own_view)
    result = Slab(worker.own).allocate(100)
    assert result is not None
    number = submit(port, MODEL, port.allocate(100), HEADER, 100)
    port.flush()
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    worker.send(RESPONSE if is_part else DONE, item[B.KEY], item[B.BATCH], 0, result.ref, HEADER)
    star.exchange.step(now_ns=600)
    (reply,) = port.poll()
    star.succeed()
    for _ in range(2):
        port.resubmit()
    worker.send(HAVE, 0, 0, 0, result.ref)
    star.exchange.resume(now_ns=700)
    assert FREE not in [record[0] for record in worker.received()]
    port.release(number, reply.part)
    port.flush()
    star.exchange.step(now_ns=800)
    assert [record[:4] for record in worker.received() if record[0] == FREE] == [(FREE, 0, 0, result.ref)]


# --- batches whose answers come one by one: decoupled models, executions split for lack of the GPU's memory ---


def given_a_batch(num: int) -> tuple[Star, End, End, list[tuple[int, ...]]]:
    """A star whose worker has begun a batch of so many requests."""
    star, client, worker = one_of_each(BATCHING)
    ask(client, *range(1, num + 1))
    star.exchange.step(now_ns=500)
    return star, client, worker, worker.received()


def test_an_instance_whose_batch_was_partly_answered_is_given_the_next_one() -> None:
    star, client, worker, (first, second, third, fourth) = given_a_batch(4)
    answer(worker, first)
    answer(worker, second)
    star.exchange.step(now_ns=600)
    assert replies(client) == [(1, Reason.NONE), (2, Reason.NONE)]
    answer(worker, third)
    star.succeed()
    ask(client, 3, 4)
    star.exchange.resume(now_ns=700)
    assert replies(client) == [(3, Reason.NONE)]
    star.succeed()  # what its predecessor had from the ring, this one has, too
    ask(client, 4)
    star.exchange.resume(now_ns=750)
    answer(worker, fourth)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(4, Reason.NONE)]
    ask(client, 5)
    star.exchange.step(now_ns=900)
    (fifth,) = worker.received()
    assert (fifth[B.BATCH], cell(star.model(MODEL), "execution_count")) == (2, 1)
    answer(worker, fifth)
    star.exchange.step(now_ns=1_000)
    assert replies(client) == [(5, Reason.NONE)]


def test_an_answer_that_its_order_kept_back_is_not_executed_again() -> None:
    star, client, worker = one_of_each(
        {"name": "m", "max_batch_size": 4, "dynamic_batching": {"preserve_ordering": True}}
    )
    ask(client, 1, 2)
    star.exchange.step(1_000)
    first, second = worker.received()
    worker.begin(first[B.BATCH])
    answer(worker, second)
    star.exchange.step(2_000)
    assert client.received() == []

    star.succeed()
    ask(client, 1, 2)
    star.exchange.resume(3_000)
    answer(worker, first)
    star.exchange.step(4_000)

    assert not [record for record in worker.received() if record[0] == BATCH_ITEM]
    assert sorted([reply[P.NUMBER] for reply in client.received()]) == [1, 2]


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_successor_looks_unasked_only_into_rings_of_workers_that_it_awaits_something_of(overlaps: bool) -> None:
    star, _, worker = one_of_each(SINGLE)
    if overlaps:
        star.exchange.workers[WORKER].note_overlap()
    star.succeed()
    star.exchange.resume(now_ns=600)
    assert star.exchange.busy == {}
    star.exchange.succession.expect_worker(WORKER)  # it has no blocks
    star.exchange.step(now_ns=700)
    worker.send(HAVE, 0, 0, 0, pack_ref(WORKER, 2, 1))
    star.exchange.succession.expect_worker(WORKER)
    star.exchange.step(800, [])
    assert [record[:4] for record in worker.received()] == [(FREE, 0, 0, pack_ref(WORKER, 2, 1))]
    assert star.exchange.busy == {}
    star.exchange.succession.expect_worker(WORKER + 1)  # dead meanwhile
    star.exchange.step(now_ns=900)

"""A batcher dies at every moment of a request's life; its successor answers what it owed, once each.

The dead one is an exchange that is simply not called any more: all it leaves is what lies in shared memory. Clients say
again what is open and what they hold, as `Port.resubmit` does.
"""

import select

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, DONE, FREE, HAVE, HOLD, RELEASE, RESCHEDULE, RESPONSE, B, P, pack_ref
from shoal.shm.port import Port
from shoal.shm.slab import Slab
from tests.batcher.star import CLIENT, HEADER, MODEL, SINGLE, WORKER, End, Star, ask, cell, one_of_each, replies
from tests.batcher.takeover_play import BATCHING, Play, answer, output_block
from tests.submitted import submit


def test_what_a_worker_has_stays_with_it_and_is_executed_once() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    star.succeed()
    ask(client, 1, 2)
    star.exchange.resume(now_ns=600)
    assert worker.received() == []
    answer(worker, item)
    star.exchange.step(now_ns=700)
    assert replies(client) == [(1, Reason.NONE)]
    (second,) = worker.received()
    assert second[B.BATCH] == 2
    answer(worker, second)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(2, Reason.NONE)]
    assert cell(star.model(MODEL), "success_count") == 2


def test_what_was_published_while_nobody_looked_is_delivered() -> None:
    star, client, worker = one_of_each(BATCHING)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    for item in worker.received():
        answer(worker, item)
    star.succeed()
    ask(client, 1, 2, 3)
    star.exchange.resume(now_ns=600)
    assert replies(client) == [(1, Reason.NONE), (2, Reason.NONE), (3, Reason.NONE)]
    assert worker.received() == []
    assert (cell(star.model(MODEL), "execution_count"), cell(star.model(MODEL), "pending_count")) == (1, 0)


def test_what_a_client_says_before_it_knows_does_not_hide_what_it_says_again() -> None:
    star, client, worker = one_of_each(BATCHING)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    items = worker.received()
    ask(client, 4)
    star.succeed()
    ask(client, 5, 6)  # it has not heard of the new one yet; then it has
    ask(client, 1, 2, 3, 4, 5, 6)
    for item in items:
        answer(worker, item)
    star.exchange.resume(now_ns=600)
    for item in worker.received():
        answer(worker, item)
    star.exchange.step(now_ns=700)
    assert sorted(replies(client)) == [(number, Reason.NONE) for number in range(1, 7)]
    ask(client, 6, 7)
    star.exchange.step(now_ns=800)
    assert [item[B.KEY] & 0xFFFF for item in worker.received() if item[0] == BATCH_ITEM] == [7]


def test_an_answer_that_came_before_is_held_until_it_is_released() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    answer(worker, item)
    star.exchange.step(now_ns=600)
    assert replies(client) == [(1, Reason.NONE)]
    star.succeed()
    client.send(HOLD, 1, 0, output_block(item))
    worker.send(HAVE, 0, 0, 0, output_block(item))
    star.exchange.resume(now_ns=700)
    assert worker.received() == []
    client.send(RELEASE, 1)
    star.exchange.step(now_ns=800)
    (free,) = worker.received()
    assert free[:4] == (FREE, 0, 0, output_block(item))


def test_a_block_whose_release_nobody_passed_on_is_freed() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    answer(worker, item)
    star.exchange.step(now_ns=600)
    client.send(RELEASE, 1)
    star.succeed()
    worker.send(HAVE, 0, 0, 0, output_block(item))
    star.exchange.resume(now_ns=700)
    (free,) = worker.received()
    assert free[:4] == (FREE, 0, 0, output_block(item))


def test_a_block_that_its_worker_tells_of_once_all_is_answered_is_freed() -> None:
    """It was executing when it was to tell, and is given nothing more."""
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    (first,) = worker.received()
    answer(worker, first)
    star.exchange.step(now_ns=600)
    (second,) = worker.received()
    client.send(RELEASE, 1)
    star.succeed()
    ask(client, 2)
    star.exchange.resume(now_ns=700)
    answer(worker, second)
    star.exchange.step(now_ns=800)
    worker.send(HAVE, 0, 0, 0, output_block(first))
    worker.send(HAVE, 0, 0, 0, output_block(second))
    star.exchange.succession.expect_worker(WORKER)
    star.exchange.step(now_ns=900)
    (free,) = worker.received()
    assert free[:4] == (FREE, 0, 0, output_block(first))
    star.exchange.succession.expect_worker(WORKER + 1)  # dead meanwhile
    star.exchange.step(now_ns=1000)


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


def test_a_queue_that_nobody_says_again_is_seen_to_be_empty() -> None:
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


@pytest.mark.parametrize("num_deaths", [1, 3])
def test_batchers_that_die_before_they_serve_lose_nothing(num_deaths: int) -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    for _ in range(num_deaths):
        star.succeed()
        ask(client, 1)
    answer(worker, item)
    star.exchange.resume(now_ns=600)
    assert replies(client) == [(1, Reason.NONE)]


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


def test_a_request_that_was_given_back_is_queued_again_though_the_batcher_dies() -> None:
    star, client, worker, (first, second) = given_a_batch(2)
    worker.send(RESCHEDULE, first[B.KEY], first[B.BATCH])
    star.exchange.step(now_ns=600)
    star.succeed()
    ask(client, 1, 2)
    star.exchange.resume(now_ns=700)
    answer(worker, second)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(2, Reason.NONE)]
    (again,) = worker.received()
    assert (again[B.KEY], again[B.BATCH]) == (first[B.KEY], 2)
    answer(worker, again)
    star.exchange.step(now_ns=900)
    assert replies(client) == [(1, Reason.NONE)]


def test_an_instance_that_gave_its_only_request_back_is_idle_for_a_successor() -> None:
    play = Play(SINGLE)
    play.perform("ask", "step", "give_back", "die_1", "step", "answer", "step")
    assert (play.answered, len(play.executed)) == ({CLIENT: [1]}, 1)


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

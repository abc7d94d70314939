"""The exchange with a sequence batcher: what workers are told, who is refused and why, and what deaths end."""

from typing import Any

from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, CANCEL, DONE, READY, REQUEST, SEQUENCE_END, B
from tests.batcher.star import CLIENT, HEADER, INPUT_BLOCK, MODEL, WORKER, End, Star, cell, one_of_each, replies

BATCHING = {"control_input": [], "state": [], "max_sequence_idle_microseconds": 1000, "iterative_sequence": False}
ONE_SLOT: dict[str, Any] = {"name": "m", "max_batch_size": 1, "sequence_batching": BATCHING}
START, END = 1, 2
NAME, DEAD_NS = 7, 700


def ask(client: End, number: int, correlation: int, flags: int = 0) -> None:
    client.send(REQUEST, number, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, correlation, flags, 100)


def given(worker: End) -> list[tuple[int, int, int]]:
    """Of each request: its number, the word with flags and slot, its correlation."""
    items = [record for record in worker.received() if record[0] == BATCH_ITEM]
    return [(item[B.KEY] - (CLIENT << 40), item[13], item[14]) for item in items]


def answer(worker: End, number: int, batch: int, kind: int = DONE) -> None:
    worker.send(kind, (CLIENT << 40) + number, batch, 0, 0, 0, 600, 610, 620, 630)


def begun() -> tuple[Star, End, End]:
    """Request 1 of a sequence runs, request 2 waits behind it, request 3 of another for the slot."""
    star, client, worker = one_of_each(ONE_SLOT)
    ask(client, 1, NAME, START)
    ask(client, 2, NAME)
    ask(client, 3, 8, START | END)
    star.exchange.step(now_ns=500)
    assert given(worker) == [(1, START | 1 << 8, NAME)]
    return star, client, worker


def test_requests_reach_the_worker_in_order_with_their_slot() -> None:
    star, client, worker = begun()
    answer(worker, 1, 1)
    star.exchange.step(now_ns=600)
    assert given(worker) == [(2, 1 << 8, NAME)]
    answer(worker, 2, 2)
    star.exchange.step(now_ns=700)
    assert given(worker) == []
    assert star.exchange.next_deadline_ns() == 700 + 1_000_000
    star.exchange.step(now_ns=700 + 1_000_000)  # the first sequence has been idle for too long
    assert given(worker) == [(3, START | END | 1 << 8, 8)]
    assert replies(client) == [(1, 0), (2, 0)]


def test_a_model_may_end_a_sequence_with_all_that_waits_behind() -> None:
    star, client, worker = begun()
    answer(worker, 1, 1, SEQUENCE_END)
    answer(worker, 1, 1)
    star.exchange.step(now_ns=600)
    assert replies(client) == [(1, 0), (2, Reason.QUEUE_FULL)]
    assert given(worker) == [(3, START | END | 1 << 8, 8)]


def test_requests_of_no_sequence_are_refused() -> None:
    star, client, worker = one_of_each(ONE_SLOT)
    ask(client, 1, NAME)
    ask(client, 2, 0, START)
    star.exchange.step(now_ns=500)
    assert replies(client) == [(1, Reason.NOT_STARTED), (2, Reason.NO_CORRELATION)]
    assert given(worker) == []
    assert cell(star.model(MODEL), "failed_rejected") == 2


def test_a_cancelled_request_takes_those_behind_it_along() -> None:
    star, client, worker = begun()
    ask(client, 4, NAME)
    client.send(CANCEL, 2)
    star.exchange.step(now_ns=550)
    assert replies(client) == [(2, Reason.CANCELLED), (4, Reason.CANCELLED)]
    answer(worker, 1, 1)
    star.exchange.step(now_ns=600)
    assert given(worker) == [(3, START | END | 1 << 8, 8)]


def test_the_slot_of_a_dead_clients_sequence_is_free_at_once() -> None:
    star, client, worker = one_of_each(ONE_SLOT)
    other = star.add_client(CLIENT + 1)
    ask(client, 1, NAME, START)
    star.exchange.step(now_ns=500)
    ask(client, 2, NAME)
    ask(other, 1, 8, START)
    answer(worker, 1, 1)
    star.exchange.step(now_ns=600)
    worker.received()
    ask(client, 3, NAME)
    star.exchange.step(now_ns=610)
    star.exchange.remove_client(CLIENT)
    answer(worker, 2, 2)
    star.exchange.step(now_ns=650)
    assert [record[B.KEY] for record in worker.received() if record[0] == BATCH_ITEM] == [((CLIENT + 1) << 40) + 1]


def test_a_workers_death_ends_the_sequences_it_has_begun() -> None:
    star, client, worker = begun()
    worker.begin(1)
    star.remove_worker(WORKER, DEAD_NS)
    star.exchange.step(now_ns=DEAD_NS)
    assert sorted(replies(client)) == [(1, Reason.INSTANCE_DIED), (2, Reason.SEQUENCE_LOST)]
    ask(client, 4, NAME)
    successor = star.add_worker(WORKER + 1, star.model(MODEL))
    star.exchange.step(now_ns=DEAD_NS + 1)
    assert replies(client) == [(4, Reason.SEQUENCE_LOST)]
    assert given(successor) == [(3, START | END | 1 << 8, 8)]


def test_a_sequence_that_a_dead_worker_had_not_begun_moves_to_another() -> None:
    star, client, _ = begun()
    star.remove_worker(WORKER, DEAD_NS)
    star.exchange.step(now_ns=DEAD_NS)
    assert replies(client) == []
    other = star.add_worker(WORKER + 1, star.model(MODEL))
    star.exchange.step(now_ns=DEAD_NS + 1)
    assert given(other) == [(1, START | 1 << 8, NAME)]
    answer(other, 1, 1)
    star.exchange.step(now_ns=DEAD_NS + 2)
    assert given(other) == [(2, 1 << 8, NAME)]
    assert replies(client) == [(1, 0)]


def test_a_later_request_that_a_dead_worker_had_not_begun_is_lost_with_its_sequence() -> None:
    star, client, worker = begun()
    worker.begin(1)
    answer(worker, 1, 1)
    star.exchange.step(now_ns=600)
    star.remove_worker(WORKER, DEAD_NS)
    star.exchange.step(now_ns=DEAD_NS)
    assert replies(client) == [(1, 0), (2, Reason.SEQUENCE_LOST)]


def test_an_instance_is_free_when_it_has_answered() -> None:
    """A coroutine that waits has executed; but the next request needs what it makes of this one."""
    star, _, worker = begun()
    answer(worker, 1, 1, READY)
    star.exchange.step(now_ns=600)
    assert given(worker) == []
    answer(worker, 1, 1)
    star.exchange.step(now_ns=700)
    assert given(worker) == [(2, 1 << 8, NAME)]


def test_a_decoupled_model_says_when_it_is_free() -> None:
    star, client, worker = one_of_each({**ONE_SLOT, "model_transaction_policy": {"decoupled": True}})
    ask(client, 1, NAME, START)
    ask(client, 2, NAME)
    star.exchange.step(now_ns=500)
    assert [number for number, _, _ in given(worker)] == [1]
    answer(worker, 1, 1, READY)
    star.exchange.step(now_ns=600)
    assert [number for number, _, _ in given(worker)] == [2]

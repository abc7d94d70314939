"""The exchange under `dynamic_batching` policies: who expires is told at once, an order keeps responses back."""

import pytest

from shoal.batcher import open_requests
from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, DONE, RESPONSE, B, pack_ref
from tests.batcher.star import CLIENT, HEADER, MODEL, WORKER, End, Star, ask, cell, one_of_each, replies

TIMEOUT_NS = 1000
EXPIRING = {
    "name": "m",
    "max_batch_size": 1,
    "dynamic_batching": {"default_queue_policy": {"default_timeout_microseconds": TIMEOUT_NS // 1000}},
}
ORDERED = {"name": "m", "max_batch_size": 1, "dynamic_batching": {"preserve_ordering": True}}


def ordered_pair() -> tuple[Star, End, tuple[End, End]]:
    """A star whose two workers have requests 1 and 2 of a model that preserves order."""
    star, client, first = one_of_each(ORDERED)
    second = star.add_worker(WORKER + 1, star.model(MODEL))
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    return star, client, (first, second)


def answer(worker: End, kind: int = DONE) -> None:
    """The answer to whatever the worker was given last, in a block of its own."""
    (item,) = [record for record in worker.received() if record[0] == BATCH_ITEM]
    worker.send(kind, item[B.KEY], item[B.BATCH], 0, pack_ref(worker.owner, 2, 1), HEADER, 600, 610, 620, 630)


def test_who_expires_is_answered_then_whatever_the_workers_do() -> None:
    star, client, _ = one_of_each(EXPIRING)
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    assert star.exchange.next_deadline_ns() == 500 + TIMEOUT_NS
    star.exchange.step(now_ns=499 + TIMEOUT_NS)
    assert replies(client) == []
    star.exchange.step(now_ns=500 + TIMEOUT_NS)
    assert replies(client) == [(2, Reason.TIMED_OUT)]
    model = star.model(MODEL)
    assert (cell(model, "failed_rejected"), cell(model, "fail_count"), cell(model, "pending_count")) == (1, 1, 0)
    assert star.exchange.next_deadline_ns() is None


def test_who_expires_without_any_worker_is_answered_too() -> None:
    star = Star()
    star.add_model(MODEL, EXPIRING)
    client = star.add_client(CLIENT)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    star.exchange.step(now_ns=500 + TIMEOUT_NS)
    assert replies(client) == [(1, Reason.TIMED_OUT)]


def test_an_answer_waits_for_those_before_it_but_is_counted_at_once() -> None:
    star, client, (first, second) = ordered_pair()
    answer(second)
    star.exchange.step(now_ns=700)
    assert replies(client) == []
    assert cell(star.model(MODEL), "success_count") == 1
    assert len(star.exchange.holders) == 1  # the block stays until the client has read it
    answer(first)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(1, Reason.NONE), (2, Reason.NONE)]


def test_a_stream_of_whose_turn_it_is_goes_on() -> None:
    star, client, (first, second) = ordered_pair()
    answer(second, RESPONSE)
    answer(first, RESPONSE)
    star.exchange.step(now_ns=700)
    assert replies(client) == [(1, Reason.NONE)]


def test_a_stream_that_waits_for_its_turn_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "MAX_BACKLOG", 2)
    star, client, (first, second) = ordered_pair()
    (item,) = second.received()
    for _ in range(3):
        second.send(RESPONSE, item[B.KEY], item[B.BATCH], 0, 0, 0, 600, 610, 620, 630)
    star.exchange.step(now_ns=700)
    answer(first)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(1, Reason.NONE), (2, Reason.NONE), (2, Reason.NONE), (2, Reason.NO_MEMORY)]


def test_a_failure_lets_the_next_one_go() -> None:
    star, client, (first, second) = ordered_pair()
    first.begin(1)
    answer(second)
    star.remove_worker(WORKER, now_ns=700)
    star.exchange.step(now_ns=800)
    assert replies(client) == [(1, Reason.INSTANCE_DIED), (2, Reason.NONE)]


def test_no_response_waits_for_a_dead_client() -> None:
    star, client, (first, second) = ordered_pair()
    other = star.add_client(CLIENT + 1)
    answer(second)
    ask(other, 7)
    star.exchange.step(now_ns=700)
    answer(second)
    star.exchange.step(now_ns=800)
    assert replies(other) == []
    star.exchange.remove_client(CLIENT)
    star.exchange.step(now_ns=900)
    assert (replies(client), replies(other)) == ([], [(7, Reason.NONE)])
    answer(first)
    star.exchange.step(now_ns=1000)
    assert replies(client) == []


def test_a_successor_does_not_run_again_what_may_have_been_kept_back() -> None:
    star, client, (first, second) = ordered_pair()
    answer(second)
    star.exchange.step(now_ns=700)
    star.succeed()
    ask(client, 1, 2)
    star.exchange.resume(now_ns=800)
    assert replies(client) == [(2, Reason.TAKEN_OVER)]
    answer(first)
    star.exchange.step(now_ns=900)
    assert replies(client) == [(1, Reason.NONE)]

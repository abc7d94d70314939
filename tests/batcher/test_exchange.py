"""The exchange, step by step, through real rings: exactly one answer for each request, whichever process dies."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.messages.from_batcher import ProcessDistrusted
from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM, CANCEL, DONE, FREE, RELEASE, REPLY, TRACE, B, P, pack_ref
from tests.batcher.star import (
    BATCHING,
    CLIENT,
    HEADER,
    INPUT_BLOCK,
    MODEL,
    OUTPUT_BLOCK,
    SINGLE,
    WORKER,
    End,
    Star,
    answer,
    ask,
    cell,
    one_of_each,
)

EXPIRING = BATCHING | {
    "dynamic_batching": {
        "priority_levels": 2,
        "default_priority_level": 1,
        "default_queue_policy": {"default_timeout_microseconds": 1, "timeout_action": "REJECT"},
        "priority_queue_policy": {"1": {"default_timeout_microseconds": 1, "timeout_action": "DELAY"}},
    }
}
ORDERED = BATCHING | {"dynamic_batching": {"preserve_ordering": True}}


def test_request_becomes_batch_becomes_reply_becomes_free() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    assert (item[0], item[B.BLOCK], item[B.HEADER], item[B.INDEX], item[B.COUNT]) == (
        BATCH_ITEM,
        INPUT_BLOCK,
        HEADER,
        0,
        1,
    )
    answer(worker, item)
    star.exchange.step(now_ns=2_000)
    (reply,) = client.received()
    assert reply[:6] == (REPLY, 1, 0, OUTPUT_BLOCK, HEADER, Reason.NONE)
    assert worker.received() == []
    client.send(RELEASE, 1)
    star.exchange.step(now_ns=3_000)
    (free,) = worker.received()
    assert free[:4] == (FREE, 0, 0, OUTPUT_BLOCK)
    assert len(star.exchange.holders) == 0


def test_one_record_releases_several_replies_and_a_false_number_ends_its_client() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1, 2, 3)
    for _ in range(3):
        star.exchange.step(now_ns=500)
        (item,) = worker.received()
        answer(worker, item)
    star.exchange.step(now_ns=2_000)
    client.send(RELEASE, 1, 0, 0, 3, 9)
    star.exchange.step(now_ns=3_000)
    assert (worker.received(), star.exchange.holders.num_held) == ([], 1)
    client.send(RELEASE, 2, 0, 0, 1 << 40 | 5)
    star.exchange.step(now_ns=3_000)
    assert star.exchange.reports == [ProcessDistrusted(CLIENT)]


def test_the_times_are_in_the_reply_to_who_asked_for_them() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1, 2, 3)
    client.send(TRACE, 2)
    client.send(TRACE, 9)  # refused, or never asked: nothing is kept
    star.exchange.step(now_ns=500)
    for number in (1, 2, 3):
        (item,) = worker.received()
        answer(worker, item)
        star.exchange.step(now_ns=2_000)
        (reply,) = client.received()
        assert reply[:7] == (REPLY, number, 0, OUTPUT_BLOCK, HEADER, 0, 0)
        assert reply[7:] == ((500, 1_000, 1_010, 1_110, 1_115) if number == 2 else (0,) * 5) + (0,) * 4
    assert star.exchange.clients[CLIENT].traced == {}


def test_a_traced_request_that_fails_is_forgotten() -> None:
    star, client, _ = one_of_each(SINGLE)
    ask(client, 1, 2)
    client.send(TRACE, 2)
    star.exchange.step(now_ns=500)
    assert star.exchange.clients[CLIENT].traced.keys() == {2}
    client.send(CANCEL, 2)
    star.exchange.step(now_ns=600)
    assert client.received()[0][:3] == (REPLY, 2, 2)
    assert star.exchange.clients[CLIENT].traced == {}


def test_statistics_of_a_success() -> None:
    star, client, worker = one_of_each(SINGLE)
    model = star.model(MODEL)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    answer(worker, worker.received()[0])
    star.exchange.step(now_ns=2_000)
    figures = {
        "success_count": 1,
        "success_ns": 1_900,
        "queue_ns": 500,
        "compute_input_ns": 10,
        "compute_infer_ns": 100,
        "compute_output_ns": 5,
        "inference_count": 1,
        "execution_count": 1,
        "pending_count": 0,
        "fail_count": 0,
        "last_inference_ms": 1_000_000,
    }
    assert {name: cell(model, name) for name in figures} == figures


def test_readers_see_since_when_the_oldest_request_waits() -> None:
    star, client, worker = one_of_each(SINGLE)
    seen = []
    for now_ns, number in ((500, 1), (600, 2), (700, 3)):
        ask(client, number)
        star.exchange.step(now_ns)
        seen.append((star.figures(MODEL)["oldest_queued_ns"], star.figures(MODEL)["pending_count"]))
    for now_ns in (800, 900):
        answer(worker, worker.received()[0])
        star.exchange.step(now_ns)
        seen.append((star.figures(MODEL)["oldest_queued_ns"], star.figures(MODEL)["pending_count"]))
    assert seen == [(0, 0), (600, 1), (600, 2), (700, 1), (0, 0)]


def test_requests_of_one_batch_share_a_block_until_the_last_release() -> None:
    star = Star()
    model = star.add_model(MODEL, BATCHING)
    client = star.add_client(CLIENT)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    worker = star.add_worker(WORKER, model)
    star.exchange.step(now_ns=600)
    items = worker.received()
    assert [item[B.INDEX] for item in items] == [0, 1, 2]
    assert {item[B.COUNT] for item in items} == {3}
    for item in items:
        answer(worker, item)
    star.exchange.step(now_ns=2_000)
    assert [reply[P.NUMBER] for reply in client.received()] == [1, 2, 3]
    assert cell(model, "execution_count") == 1
    for number in (1, 2):
        client.send(RELEASE, number)
    star.exchange.step(now_ns=3_000)
    assert worker.received() == []
    client.send(RELEASE, 3)
    star.exchange.step(now_ns=3_100)
    assert [record[:4] for record in worker.received()] == [(FREE, 0, 0, OUTPUT_BLOCK)]


def test_unknown_model_is_refused() -> None:
    star = Star()
    client = star.add_client(CLIENT)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    assert client.received()[0][P.REASON] == Reason.NOT_READY


def test_full_queue_is_refused_and_counted() -> None:
    star = Star()
    model = star.add_model(MODEL, SINGLE, max_queue=2)
    client = star.add_client(CLIENT)
    ask(client, 1, 2, 3)
    star.exchange.step(now_ns=500)
    assert [(reply[P.NUMBER], reply[P.REASON]) for reply in client.received()] == [(3, Reason.QUEUE_FULL)]
    assert (cell(model, "pending_count"), cell(model, "failed_rejected"), cell(model, "fail_count")) == (2, 1, 1)


def test_cancel_of_a_queued_request_answers_it_and_frees_its_place() -> None:
    star = Star()
    model = star.add_model(MODEL, SINGLE)
    client = star.add_client(CLIENT)
    ask(client, 1)
    client.send(CANCEL, 1)
    star.exchange.step(now_ns=500)
    assert client.received()[0][P.REASON] == Reason.CANCELLED
    assert (cell(model, "pending_count"), cell(model, "failed_canceled")) == (0, 1)
    star.add_worker(WORKER, model)
    star.exchange.step(now_ns=600)
    assert not star.exchange.workers[WORKER].missing


def test_a_freed_block_travels_with_the_next_batch() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    answer(worker, worker.received()[0])
    star.exchange.step(now_ns=600)
    client.send(RELEASE, 1)
    ask(client, 2)
    star.exchange.step(now_ns=700)
    (item,) = worker.received()
    assert (item[0], item[B.FREED]) == (BATCH_ITEM, OUTPUT_BLOCK)


def test_removed_model_refuses_what_is_queued() -> None:
    star = Star()
    star.add_model(MODEL, SINGLE)
    client = star.add_client(CLIENT)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    star.exchange.remove_model(MODEL, now_ns=600)
    star.exchange.step(now_ns=700)
    assert [(reply[P.NUMBER], reply[P.REASON]) for reply in client.received()] == [(1, Reason.NOT_READY)]


@pytest.mark.parametrize(
    "lie",
    [
        lambda worker, item: worker.send(DONE, item[B.KEY] + 1, item[B.BATCH], 0, 0, 0),
        lambda worker, item: worker.send(BATCH_ITEM, item[B.KEY], item[B.BATCH], 0, 0, 0),
        lambda worker, item: worker.send(99, item[B.KEY]),
    ],
    ids=["another request's key", "another kind", "no kind at all"],
)
def test_lies_of_a_worker_change_nothing(lie: Callable[[End, tuple[int, ...]], None]) -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    lie(worker, item)
    star.exchange.step(now_ns=600)
    assert client.received() == []
    answer(worker, item)
    star.exchange.step(now_ns=700)
    assert [reply[P.NUMBER] for reply in client.received()] == [1]


def test_a_result_in_a_segment_of_its_own_is_handed_out_and_freed() -> None:
    star, client, worker = one_of_each(SINGLE)
    star.exchange.blocks.add_result(99, WORKER)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    answer(worker, worker.received()[0], block=pack_ref(99, 0, 1))
    star.exchange.step(now_ns=700)
    assert [(reply[P.BLOCK], reply[P.REASON]) for reply in client.received()] == [(pack_ref(99, 0, 1), Reason.NONE)]
    client.send(RELEASE, 1)
    star.exchange.step(now_ns=800)
    assert [record[:4] for record in worker.received()] == [(FREE, 0, 0, pack_ref(99, 0, 1))]


def test_ring_that_lies_ends_its_owner() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask(client, 1)
    star.exchange.step(now_ns=500)
    worker.own.words[8] = 10**9
    star.exchange.step(now_ns=600)
    assert star.reports() == [ProcessDistrusted(WORKER)]
    star.exchange.step(now_ns=700)
    assert [(reply[P.NUMBER], reply[P.REASON]) for reply in client.received()] == [(1, Reason.DAMAGED)]


STEPS = st.lists(st.sampled_from(["ask", "cancel", "answer", "release", "step", "kill", "spawn"]), max_size=60)


@settings(max_examples=60)
@given(STEPS, st.sampled_from([SINGLE, BATCHING, EXPIRING, ORDERED]), st.booleans())
def test_every_request_gets_exactly_one_reply(steps: list[str], config: dict[str, object], looks_at_all: bool) -> None:
    star = Star()
    model = star.add_model(MODEL, config)
    client = star.add_client(CLIENT)
    workers = {WORKER: star.add_worker(WORKER, model)}
    owner, now, number = WORKER, 1_000, 0
    items: list[tuple[int, tuple[int, ...]]] = []
    replies: list[int] = []
    unreleased: list[int] = []
    rung: set[int] = set()  # who has said something that others wait for, since the last step

    def collect() -> None:
        received = client.received()
        replies.extend(reply[P.NUMBER] for reply in received)
        unreleased.extend(reply[P.NUMBER] for reply in received if reply[P.BLOCK])
        for each, worker in workers.items():
            items.extend((each, record) for record in worker.received() if record[0] == BATCH_ITEM)

    for step in [*steps, "spawn", *["step", "answer"] * (len(steps) + 1), "step"]:
        now += 10
        if step == "ask":
            number += 1
            ask(client, number, start_ns=now)
            rung.add(CLIENT)
        elif step == "cancel" and number:
            client.send(CANCEL, number)
            rung.add(CLIENT)
        elif step == "answer" and items:
            each, item = items.pop(0)
            if each in workers:
                answer(workers[each], item, block=pack_ref(each, 2, item[B.BATCH]))
                rung.add(each)
        elif step == "release" and unreleased:
            client.send(RELEASE, unreleased.pop())
        elif step == "kill" and workers:
            workers.pop(owner, None)
            star.exchange.remove_worker(owner, now)
        elif step == "spawn":
            owner += 1
            workers[owner] = star.add_worker(owner, model)
        elif step == "step":
            star.exchange.step(now, None if looks_at_all else sorted(rung))
            rung.clear()
            collect()
    assert sorted(replies) == list(range(1, number + 1))
    assert cell(model, "pending_count") == 0
    assert cell(model, "success_count") + cell(model, "fail_count") == number
    for each in unreleased:
        client.send(RELEASE, each)
    star.exchange.step(now)
    assert len(star.exchange.holders) == 0

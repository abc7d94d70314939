"""Requests that are made for a traced one: what its front end is sent of them, and when nothing is."""

import gc

import pytest

from shoal.batcher.peers import ClientPeer
from shoal.messages.from_batcher import ProcessDistrusted
from shoal.reasons import Reason
from shoal.shm.layout import (
    CANCEL,
    CHILD_REQUEST,
    CHILD_TRACE,
    REPLY,
    REQUEST,
    TRACE,
    B,
    P,
    T,
)
from shoal.shm.slab import Slab
from tests.batcher.calls import CALLER, FRONT_END, OTHER, THIRD, Calls
from tests.batcher.ensemble_star import CHAIN, DOUBLE, FAN, EnsembleStar
from tests.batcher.star import HEADER, INPUT_BLOCK, MODEL
from tests.garbage import ids_of

NUMBER_BITS = 40
ORDERED = {"name": "m", "max_batch_size": 1, "dynamic_batching": {"preserve_ordering": True}}


def test_a_front_end_is_told_of_a_call_before_its_request_is_answered() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    (called,) = star.second.received()
    star.answer(star.second, called)
    (told,) = star.front_end.received()
    assert told[:6] == (CHILD_TRACE, 1, CALLER << NUMBER_BITS | 1, 0, OTHER, 1)
    assert told[T.START_NS :] == (300, 400, 1_000, 1_010, 1_110, 1_115, 3_000, 1, 0, 0)
    star.answer(star.worker, item)
    assert [record[0] for record in star.front_end.received()] == [REPLY]
    assert not star.is_traced


def test_a_call_of_a_call_is_below_it() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    (called,) = star.second.received()
    star.call(called[B.KEY], 2)
    star.answer(star.second, called)
    (again,) = star.second.received()
    star.answer(star.second, again, 4_000)
    first, second = star.front_end.received()
    assert (first[T.KEY], first[T.PARENT]) == (called[B.KEY], 0)
    assert (second[T.KEY], second[T.PARENT]) == (again[B.KEY], called[B.KEY])


def test_a_call_that_is_given_up_has_no_computation() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    star.call(item[B.KEY], 2)
    star.caller.send(CANCEL, 2)
    star.exchange.step(500)
    (told,) = star.front_end.received()
    assert told[T.KEY :] == (CALLER << NUMBER_BITS | 2, 0, OTHER, 1, 300, 400, 0, 0, 0, 0, 500, 1, 0, 0)


def test_nothing_is_told_of_an_untraced_request() -> None:
    star = Calls()
    item = star.ask(traced=False)
    star.call(item[B.KEY])
    (called,) = star.second.received()
    star.answer(star.second, called)
    assert star.front_end.received() == []
    assert star.caller.received()[0][P.QUEUE_START_NS : P.COMPUTE_END_NS + 1] == (0,) * 5


def test_nothing_is_told_once_the_request_is_answered() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    star.answer(star.worker, item)
    (called,) = star.second.received()
    star.answer(star.second, called)
    star.call(item[B.KEY], 2)
    (called,) = star.second.received()
    star.answer(star.second, called)
    assert [record[0] for record in star.front_end.received()] == [REPLY]
    assert [record[:2] for record in star.caller.received()] == [(REPLY, 1), (REPLY, 2)]
    assert not star.is_traced


def test_a_call_of_a_caller_that_dies_leaves_nothing() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    star.exchange.remove_client(CALLER)
    (called,) = star.second.received()
    star.answer(star.second, called)
    assert star.front_end.received() == []
    star.answer(star.worker, item)
    assert [record[0] for record in star.front_end.received()] == [REPLY]
    assert star.exchange.num_open == 0


def test_a_call_for_a_front_end_that_dies_is_answered() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    star.exchange.remove_client(FRONT_END)
    (called,) = star.second.received()
    star.answer(star.second, called)
    assert [record[0] for record in star.caller.received()] == [REPLY]
    assert star.front_end.received() == []


def test_of_a_front_end_that_dies_nothing_is_kept_while_calls_for_it_run() -> None:
    """Else its memory would stay mapped here until the garbage is collected."""
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    client = id(star.exchange.clients[FRONT_END])
    assert client in ids_of(ClientPeer)
    gc.disable()
    try:
        star.exchange.remove_client(FRONT_END)
        star.exchange.step(500)
        assert client not in ids_of(ClientPeer)
    finally:
        gc.enable()
    assert star.is_traced  # the call
    star.answer(star.second, star.second.received()[0])
    assert not star.is_traced


def test_children_of_a_request_whose_reply_is_kept_back() -> None:
    star = Calls(ORDERED)
    third = star.add_worker(THIRD, star.model(MODEL))
    star.send(1)
    star.send(2)
    items = {item[B.KEY] & 0xFF: (worker, item) for worker in (star.worker, third) for item in worker.received()}
    parent = items[2][1][B.KEY]
    star.call_and_answer(parent)
    star.answer(*items[2])
    star.call_and_answer(parent, 2)
    assert [record[:2] for record in star.front_end.received()] == [(CHILD_TRACE, 2)]
    star.call_and_answer(items[1][1][B.KEY], 3)
    star.answer(*items[1])
    assert [record[:2] for record in star.front_end.received()] == [(CHILD_TRACE, 1), (REPLY, 1), (REPLY, 2)]
    assert not star.is_traced


def test_a_call_cannot_have_begun_later_than_now() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY], start_ns=2**64 - 1)
    star.answer(star.second, star.second.received()[0])
    (told,) = star.front_end.received()
    assert told[T.START_NS :] == (3_000, 400, 1_000, 1_010, 1_110, 1_115, 3_000, 1, 0, 0)


@pytest.mark.parametrize("traced", [True, False])
def test_a_call_stays_in_the_trace_that_it_began_in(traced: bool) -> None:
    star = Calls()
    first = star.ask(1, traced=traced)
    star.send(2)
    star.call(first[B.KEY])
    star.call(FRONT_END << NUMBER_BITS | 2)  # the same number
    (called,) = star.second.received()
    star.answer(star.second, called)
    assert [record[:2] for record in star.front_end.received()] == [(CHILD_TRACE, 1)] * traced


def test_a_call_that_is_sent_again_to_a_model_that_was_replaced_is_one_child() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY], 1, model=OTHER + 1)
    ((*_, reason, _, _, _, _, _, _, _, _, _, _),) = star.caller.received()
    assert (reason, star.front_end.received()) == (Reason.NOT_READY, [])
    star.call(item[B.KEY], 2)
    star.answer(star.second, star.second.received()[0])
    assert [record[T.KEY] for record in star.front_end.received()] == [CALLER << NUMBER_BITS | 2]


def test_a_call_that_is_refused_at_a_full_queue_is_no_child() -> None:
    star = Calls(max_queue=1)
    item = star.ask()
    number = 0
    while not (refused := star.caller.received()):
        number += 1
        star.call(item[B.KEY], number)
    assert [(reply[P.NUMBER], reply[P.REASON]) for reply in refused] == [(number, Reason.QUEUE_FULL)]
    assert star.front_end.received() == []
    assert set(star.exchange.clients[CALLER].traced) == set(range(1, number))


def test_a_successor_answers_a_call_and_knows_of_no_trace() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    (called,) = star.second.received()
    star.succeed()
    star.front_end.send(REQUEST, 1, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, 0, 0, 100)
    star.caller.send(REQUEST, *star.called())
    star.exchange.resume(now_ns=600)
    star.answer(star.second, called)
    star.call_and_answer(item[B.KEY], 2)
    assert star.front_end.received() == []
    star.answer(star.worker, item)
    assert [record[:2] for record in star.front_end.received()] == [(REPLY, 1)]
    assert not star.is_traced
    assert star.exchange.num_open == 0


@pytest.mark.parametrize("kind", [CHILD_REQUEST, TRACE])
def test_guests_have_no_children_and_are_none(kind: int) -> None:
    star = Calls(asked_by_front_end=False)
    star.front_end.send(REQUEST, 1, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, 0, 0, 100)
    if kind == TRACE:
        star.front_end.send(TRACE, 1)
        star.exchange.step(200)
        (item,) = star.worker.received()
        star.call(item[B.KEY])
        star.answer(star.second, star.second.received()[0])
        assert star.front_end.received() == []
    else:
        star.front_end.send(
            CHILD_REQUEST, 2, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, 0, 0, 100, FRONT_END << NUMBER_BITS | 1
        )
        star.exchange.step(200)
        assert star.reports() == [ProcessDistrusted(FRONT_END)]


def test_a_front_end_is_told_of_an_ensemble_s_steps() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.exchange.clients[star.client.owner].is_front_end = True
    star.ask()
    star.client.send(TRACE, 1)
    star.answer(star.double, star.item(star.double))
    star.answer(star.double, star.item(star.double))
    first, second, reply = star.client.received()
    for told, asked_ns in (first, 1000), (second, 2000):
        assert told[:4] == (CHILD_TRACE, 1, told[T.KEY], 0)
        assert told[T.MODEL : T.QUEUE_START_NS + 1] == (DOUBLE, 1, asked_ns, asked_ns)
        assert told[T.END_NS : T.IS_CALL + 1] == (2000, 0)
    assert reply[0] == REPLY
    assert reply[P.QUEUE_START_NS : P.COMPUTE_END_NS + 1] == (1000, 0, 0, 0, 0)  # only its steps compute


def test_steps_of_an_ensemble_that_a_model_calls_are_below_it() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.exchange.clients[star.client.owner].is_front_end = True
    star.ask()
    star.client.send(TRACE, 1)
    outer = star.item(star.double)
    inner = star.add_worker(THIRD, star.model(DOUBLE))
    star.slabs[THIRD] = Slab(inner.own)
    caller = star.add_client(CALLER)
    caller.send(CHILD_REQUEST, 1, *star.request()[1:11], outer[B.KEY])
    star.step()
    for _ in range(2):
        ((worker, item),) = [(worker, item) for worker in (star.double, inner) for item in star.items(worker)]
        star.answer(worker, item)
    first, second, called = star.client.received()
    assert [told[T.MODEL] for told in (first, second, called)] == [DOUBLE, DOUBLE, FAN]
    assert {told[T.PARENT] for told in (first, second)} == {called[T.KEY]} == {CALLER << NUMBER_BITS | 1}
    assert (called[T.PARENT], called[T.IS_CALL]) == (outer[B.KEY], 1)

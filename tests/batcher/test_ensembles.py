"""Ensembles in the exchange, record by record: what is passed on, held and given back, whatever becomes of steps."""

import pytest

from shoal.messages.from_batcher import ModelRetired
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.layout import CANCEL, REQUEST, B, P
from shoal.shm.slab import Slab
from tests.batcher.ensemble_star import (
    ADD,
    CHAIN,
    DOUBLE,
    FAN,
    FANNED,
    FIRST,
    FP32,
    NO_SEQUENCE,
    Sky,
    config,
    ensemble,
    step,
)
from tests.batcher.star import BATCHER, CLIENT, cell
from tests.request_headers import request_header


def test_a_step_reads_what_lies_in_the_clients_block_and_then_in_a_workers() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    asked = sky.ask()
    item = sky.item(sky.double)
    assert layout.ref_owner(item[B.BLOCK]) == BATCHER
    assert sky.header(item) == ("id", (("X", FP32, (1, 3), 0, 12, asked),), (), {"p": 1})
    result = sky.answer(sky.double, item)
    item = sky.item(sky.double)
    assert sky.header(item)[1] == (("X", FP32, (1, 3), 128, 12, result),)  # where it lies: nothing was copied
    last = sky.answer(sky.double, item)
    _, (pieces, outputs, parameters) = sky.reply()
    assert (pieces, outputs, parameters) == ([last], (("y", FP32, (1, 3), 128, 12),), {**NO_SEQUENCE, "q": FIRST})
    assert sky.double.heard()[0][3] == result  # FREE: nobody reads it any more
    sky.release(1, last)
    assert sky.double.heard()[0][3] == last
    assert sky.is_at_rest


def test_steps_fan_out_and_in() -> None:
    sky = Sky(FANNED, (DOUBLE, DOUBLE, ADD))
    sky.ask()
    results = []
    for _ in range(2):  # one instance, no batching: one after the other
        item = sky.item(sky.double)
        results.append(sky.answer(sky.double, item))
    item = sky.item(sky.add)
    assert [(name, ref) for name, _, _, _, _, ref in sky.header(item)[1]] == [("A", results[0]), ("B", results[1])]
    total = sky.answer(sky.add, item)
    _, (pieces, outputs, _) = sky.reply()
    assert pieces == [results[0], total]
    assert [(name, offset) for name, _, _, offset, _ in outputs] == [("a", 128), ("y", 4096 + 128)]
    sky.release(1, *pieces)
    assert sky.is_at_rest


def test_only_what_the_requested_outputs_need_runs() -> None:
    sky = Sky(FANNED, (DOUBLE, DOUBLE, ADD))
    sky.ask(outputs=("a",))
    item = sky.item(sky.double)
    result = sky.answer(sky.double, item)
    assert sky.reply()[1][1] == (("a", FP32, (1, 3), 128, 12),)
    assert sky.items(sky.add) == sky.items(sky.double) == []
    sky.release(1, result)
    assert sky.is_at_rest


def test_the_first_error_is_the_answer_and_ends_the_others() -> None:
    sky = Sky(FANNED, (DOUBLE, DOUBLE, ADD))
    sky.ask()
    item = sky.item(sky.double)
    sky.say_done(sky.double, item, 4, b"no")
    reply, sentence = sky.reply()
    assert (reply[P.STATUS], sentence) == (4, "in ensemble 'fan', no")
    assert sky.items(sky.double) == []  # the other one was still queued
    sky.release()
    assert sky.is_at_rest
    assert (cell(sky.ensemble, "fail_count"), cell(sky.ensemble, "success_count")) == (1, 0)


def test_statistics_are_sums_over_the_steps() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask()
    sky.answer(sky.double, sky.item(sky.double))
    result = sky.answer(sky.double, sky.item(sky.double))
    names = "success_count", "inference_count", "compute_input_ns", "compute_infer_ns", "compute_output_ns"
    assert [cell(sky.ensemble, name) for name in names] == [1, 1, 20, 40, 60]
    assert [cell(sky.model(DOUBLE), name) for name in names] == [2, 2, 20, 40, 60]
    assert cell(sky.ensemble, "pending_count") == 0
    sky.release(1, result)


def test_a_shape_that_a_step_does_not_take_is_the_clients_fault() -> None:
    fixed = config("add", "AB", "Y")
    for each in fixed["input"]:
        each["dims"] = [2]
    sky = Sky(FANNED, (DOUBLE, DOUBLE, 8))
    sky.add_model(8, fixed)
    sky.ask()
    for _ in range(2):
        sky.answer(sky.double, sky.item(sky.double))
    reply, sentence = sky.reply()
    assert reply[P.STATUS] == 4
    assert sentence.startswith("in ensemble 'fan', [request id: id] unexpected shape for input 'A' for model 'add'")
    sky.release()
    assert sky.is_at_rest


def test_an_output_that_is_left_out_is_missing_for_the_next_step() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask()
    sky.answer(sky.double, sky.item(sky.double), outputs="")
    assert sky.reply()[1] == (
        "in ensemble 'fan', [request id: id] expected 1 inputs but got 0 inputs for model 'double'. Got input(s) [], "
        "but missing required input(s) ['X']. Please provide all required input(s)."
    )
    sky.release()
    assert sky.is_at_rest


def test_an_answer_may_have_no_outputs() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask()
    sky.answer(sky.double, sky.item(sky.double))
    sky.answer(sky.double, sky.item(sky.double), outputs="")
    (reply,) = sky.client.heard()
    assert (reply[P.STATUS], reply[P.PIECES]) == (0, 0)
    sky.release()
    assert sky.is_at_rest


def test_a_cancelled_request_takes_its_steps_along() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask(1)
    sky.ask(2)
    item = sky.item(sky.double)
    for number in (1, 2):
        sky.client.say(CANCEL, number)
    sky.step()
    replies = sky.client.heard()
    assert [reply[P.REASON] for reply in replies] == [Reason.CANCELLED] * 2
    assert [record[:2] for record in sky.double.heard()] == [(CANCEL, item[B.KEY])]
    sky.answer(sky.double, item)  # for nobody
    assert sky.items(sky.double) == []
    assert sky.is_at_rest


def test_a_hint_is_passed_on_to_what_runs() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask()
    item = sky.item(sky.double)
    sky.client.say(CANCEL, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    sky.step()
    assert [record[:2] for record in sky.double.heard()] == [(CANCEL, item[B.KEY])]
    assert sky.client.heard() == []


def test_priority_and_what_is_left_of_the_timeout_go_along() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask(priority=3, timeout=10)
    item = sky.item(sky.double)
    assert (item[B.PRIORITY], item[B.TIMEOUT_US]) == (3, 10)
    sky.exchange.step(6000)
    sky.answer(sky.double, item)  # at 2000
    item = sky.item(sky.double)
    assert (item[B.PRIORITY], item[B.TIMEOUT_US]) == (3, 9)


def test_steps_have_the_deadline_and_none_begins_after_it() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask(deadline=1500)
    item = sky.item(sky.double)
    assert item[B.DEADLINE_NS] == 1500
    sky.exchange.step(1500)  # its first step is being executed, but nothing is left for the second
    reply = sky.client.heard()[0]
    assert reply[P.REASON] == Reason.TIMED_OUT
    assert [record[:2] for record in sky.double.heard()] == [(CANCEL, item[B.KEY])]
    sky.answer(sky.double, item)  # for nobody
    assert sky.items(sky.double) == []
    assert sky.is_at_rest


def test_a_client_that_dies_leaves_nothing() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask()
    sky.ask(2)
    item = sky.item(sky.double)
    sky.exchange.remove_client(CLIENT)
    sky.step()
    sky.answer(sky.double, item)
    assert sky.items(sky.double) == []
    assert sky.is_at_rest


def test_a_result_dies_with_its_worker() -> None:
    sky = Sky(FANNED, (DOUBLE, DOUBLE, ADD))
    sky.ask()
    for _ in range(2):
        sky.answer(sky.double, sky.item(sky.double))
    item = sky.item(sky.add)
    sky.remove_worker(FIRST, 2000)
    sky.step()
    reply, sentence = sky.reply()
    assert reply[P.STATUS] == 2
    assert "in ensemble 'fan', " in sentence
    assert "is not healthy" in sentence
    sky.release()
    sky.answer(sky.add, item)
    assert sky.is_at_rest


def test_an_ensemble_as_a_step() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.add_ensemble(9, ensemble(step("xx", "ya"), step("Xa", "Yy"), outputs="ay"), (FAN, DOUBLE))
    header = request_header("", (("x", FP32, (1, 3), 0, 12),), (), {})
    block = sky.slabs[CLIENT].allocate(4096)
    assert block is not None
    block.memory[64 : 64 + len(header)] = header
    sky.client.say(REQUEST, 1, 9, block.ref, 64 << 32 | len(header), 1)
    sky.step()
    results = [sky.answer(sky.double, sky.item(sky.double)) for _ in range(3)]
    _, (pieces, outputs, _) = sky.reply()
    assert pieces == results[1:]
    assert [name for name, *_ in outputs] == ["a", "y"]
    sky.release(1, *pieces)
    assert sky.is_at_rest


def test_models_stay_until_the_requests_that_began_with_them_end() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    sky.ask()
    sky.add_model(8, config("double", "X", "Y"))
    sky.exchange.ensembles.relink(FAN, [8, 8], may_run_again=False)
    sky.exchange.retire_model(DOUBLE)
    item = sky.item(sky.double)
    sky.answer(sky.double, item)
    assert sky.reports() == []
    result = sky.answer(sky.double, sky.item(sky.double))
    assert sky.reports() == [ModelRetired(DOUBLE)]
    sky.release(1, result)
    sky.ask(2)
    assert sky.items(sky.double) == []  # the next one begins with the others


def test_a_model_that_is_gone() -> None:
    sky = Sky(CHAIN, (DOUBLE, 77))
    sky.ask()
    sky.answer(sky.double, sky.item(sky.double))
    reply, sentence = sky.reply()
    assert (reply[P.STATUS], sentence[:20]) == (5, "in ensemble 'fan', R")
    sky.release()
    sky.ask(2)
    sky.exchange.remove_model(FAN, 2000)
    sky.step()
    assert [record[P.REASON] for record in sky.client.heard()] == [Reason.NOT_READY]
    sky.answer(sky.double, sky.item(sky.double))
    assert sky.is_at_rest


@pytest.mark.parametrize(
    "header",
    [
        b"nonsense",
        request_header("", (("x", FP32, (1, 3), 0, 5000),), (), {}),
        request_header("", (("x", FP32, (1, 3), 0, 12, 999 << 40),), (), {}),
        request_header("", (("x", FP32, (1, -3), 0, 12),), (), {}),
    ],
)
def test_a_header_that_cannot_be_read_is_refused(header: bytes) -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    block = sky.slabs[CLIENT].allocate(4096)
    assert block is not None
    block.memory[64 : 64 + len(header)] = header
    sky.client.say(REQUEST, 1, FAN, block.ref, 64 << 32 | len(header), 1)
    sky.step()
    reply, sentence = sky.reply()
    assert (reply[P.STATUS], "is damaged" in sentence) == (2, True)
    sky.release()
    assert sky.is_at_rest


def test_a_guest_passes_on_its_own_only() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    others = sky.ask()
    guest = sky.add_client(41, is_guest=True)
    slab = Slab(guest.own)
    block = slab.allocate(4096)
    assert block is not None
    header = request_header("", (("x", FP32, (1, 3), 0, 12, others),), (), {})
    block.memory[: len(header)] = header
    guest.say(REQUEST, 1, FAN, block.ref, len(header), 1)
    sky.step()
    (reply,) = guest.heard()
    assert reply[P.STATUS] == 2
    assert len(sky.items(sky.double)) == 1


def test_without_memory_requests_are_refused() -> None:
    sky = Sky(CHAIN, (DOUBLE, DOUBLE))
    for number in range(1, 20):
        sky.client.say(REQUEST, number, FAN, 0, 0, 1)  # each fails, and holds the block of its sentence
    sky.step()
    replies = sky.client.heard()
    assert len(replies) == 19
    assert [reply[P.REASON] for reply in replies[-3:]] == [Reason.QUEUE_FULL] * 3


def test_a_successor_begins_again_what_may_run_again() -> None:
    for may_run_again in (True, False):
        sky = Sky(CHAIN, (DOUBLE, DOUBLE))
        sky.ask()
        item = sky.item(sky.double)
        asked = [sky.exchange._requests[key] for key in sky.exchange._requests]
        sky.succeed()
        sky.add_ensemble(FAN, CHAIN, (DOUBLE, DOUBLE), may_run_again=may_run_again)
        _, _, _, ref, span, _, _, _ = asked[0]
        sky.client.say(REQUEST, 1, FAN, ref, span, 1)
        sky.exchange.resume(3000)
        replies = sky.client.heard()
        assert [reply[P.REASON] for reply in replies] == ([] if may_run_again else [Reason.TAKEN_OVER])
        sky.answer(sky.double, item)  # the dead one's: for nobody
        assert len(sky.items(sky.double)) == int(may_run_again)


def test_headers_stay_while_a_worker_may_read_them() -> None:
    """Of a request that has failed, too: another of its steps still runs."""
    sky = Sky(ensemble(step("Xx", "Ya"), step("Xx", "Yb"), step("Aa Bb", "Yy")), (DOUBLE, 8, ADD))
    other = sky.add_worker(33, sky.add_model(8, config("other", "X", "Y")))
    sky.ask()
    sky.say_done(sky.double, sky.item(sky.double), 4, b"no")
    item = sky.item(other)
    sky.reply()
    sky.release()
    assert sky.header(item)[0] == "id"
    assert not sky.is_at_rest
    other.say(layout.DONE, item[B.KEY], item[B.BATCH], 4, 0, 0, 10, 20, 40, 70)
    sky.step()
    assert sky.is_at_rest

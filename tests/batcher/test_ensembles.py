"""Ensembles in the exchange, record by record: what is passed on, held and given back, whatever becomes of steps."""

import pytest

from shoal.datatypes import BY_CONFIG_NAME
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
    EnsembleStar,
    config,
    ensemble,
    step,
)
from tests.batcher.star import BATCHER, CLIENT, cell
from tests.request_headers import packed, request_header


def test_a_step_reads_what_lies_in_the_clients_block_and_then_in_a_workers() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    asked = star.ask()
    item = star.item(star.double)
    assert layout.ref_owner(item[B.BLOCK]) == BATCHER
    assert star.header(item) == ("id", (("X", FP32, (1, 3), 0, 12, asked),), (), {"p": 1})
    result = star.answer(star.double, item)
    item = star.item(star.double)
    assert star.header(item)[1] == (("X", FP32, (1, 3), 128, 12, result),)  # where it lies: nothing was copied
    last = star.answer(star.double, item)
    _, (pieces, outputs, parameters) = star.reply()
    assert (pieces, outputs, parameters) == ([last], (("y", FP32, (1, 3), 128, 12),), {**NO_SEQUENCE, "q": FIRST})
    assert star.double.received()[0][3] == result  # FREE: nobody reads it any more
    star.release(1, last)
    assert star.double.received()[0][3] == last
    assert star.is_at_rest


def test_steps_fan_out_and_in() -> None:
    star = EnsembleStar(FANNED, (DOUBLE, DOUBLE, ADD))
    star.ask()
    results = []
    for _ in range(2):  # one instance, no batching: one after the other
        item = star.item(star.double)
        results.append(star.answer(star.double, item))
    item = star.item(star.add)
    assert [(name, ref) for name, _, _, _, _, ref in star.header(item)[1]] == [("A", results[0]), ("B", results[1])]
    total = star.answer(star.add, item)
    _, (pieces, outputs, _) = star.reply()
    assert pieces == [results[0], total]
    assert [(name, offset) for name, _, _, offset, _ in outputs] == [("a", 128), ("y", 4096 + 128)]
    star.release(1, *pieces)
    assert star.is_at_rest


def test_only_what_the_requested_outputs_need_runs() -> None:
    star = EnsembleStar(FANNED, (DOUBLE, DOUBLE, ADD))
    star.ask(outputs=("a",))
    item = star.item(star.double)
    result = star.answer(star.double, item)
    assert star.reply()[1][1] == (("a", FP32, (1, 3), 128, 12),)
    assert star.items(star.add) == star.items(star.double) == []
    star.release(1, result)
    assert star.is_at_rest


def test_the_first_error_is_the_answer_and_ends_the_others() -> None:
    star = EnsembleStar(FANNED, (DOUBLE, DOUBLE, ADD))
    star.ask()
    item = star.item(star.double)
    star.send_done(star.double, item, 4, b"no")
    reply, sentence = star.reply()
    assert (reply[P.STATUS], sentence) == (4, "in ensemble 'fan', no")
    assert star.items(star.double) == []  # the other one was still queued
    star.release()
    assert star.is_at_rest
    assert (cell(star.ensemble, "fail_count"), cell(star.ensemble, "success_count")) == (1, 0)


def test_statistics_are_sums_over_the_steps() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask()
    star.answer(star.double, star.item(star.double))
    result = star.answer(star.double, star.item(star.double))
    names = "success_count", "inference_count", "compute_input_ns", "compute_infer_ns", "compute_output_ns"
    assert [cell(star.ensemble, name) for name in names] == [1, 1, 20, 40, 60]
    assert [cell(star.model(DOUBLE), name) for name in names] == [2, 2, 20, 40, 60]
    assert cell(star.ensemble, "pending_count") == 0
    star.release(1, result)


def test_a_shape_that_a_step_does_not_take_is_the_clients_fault() -> None:
    fixed = config("add", "AB", "Y")
    for each in fixed["input"]:
        each["dims"] = [2]
    star = EnsembleStar(FANNED, (DOUBLE, DOUBLE, 8))
    star.add_model(8, fixed)
    star.ask()
    for _ in range(2):
        star.answer(star.double, star.item(star.double))
    reply, sentence = star.reply()
    assert reply[P.STATUS] == 4
    assert sentence.startswith("in ensemble 'fan', [request id: id] unexpected shape for input 'A' for model 'add'")
    star.release()
    assert star.is_at_rest


@pytest.mark.parametrize(
    ("data_type", "sentence"),
    [
        ("TYPE_STRING", "expected 2 string elements for inference input 'X' for model 'next', got 0"),
        ("TYPE_FP32", "input byte size mismatch for input 'X' for model 'next'. Expected 8, got 0"),
    ],
)
def test_a_result_without_rows_is_refused_for_the_next_step_alone(data_type: str, sentence: str) -> None:
    """As in Triton. The batcher knows the size of such a result, and none of its strings."""
    following = config("next", "X", "Y")
    following["input"][0].update(data_type=data_type, dims=[2])
    star = EnsembleStar(CHAIN, (DOUBLE, 8))
    star.add_model(8, following)
    star.ask()
    header = packed(((("Y", BY_CONFIG_NAME[data_type].wire, (0, 2), 128, 0),), {}))
    star.send_done(star.double, star.item(star.double), 0, header)
    reply, said = star.reply()
    assert (reply[P.STATUS], said) == (4, f"in ensemble 'fan', [request id: id] {sentence}")
    star.release()
    assert star.is_at_rest


def test_an_output_that_is_left_out_is_missing_for_the_next_step() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask()
    star.answer(star.double, star.item(star.double), outputs="")
    assert star.reply()[1] == (
        "in ensemble 'fan', [request id: id] expected 1 inputs but got 0 inputs for model 'double'. Got input(s) [], "
        "but missing required input(s) ['X']. Please provide all required input(s)."
    )
    star.release()
    assert star.is_at_rest


def test_an_answer_may_have_no_outputs() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask()
    star.answer(star.double, star.item(star.double))
    star.answer(star.double, star.item(star.double), outputs="")
    (reply,) = star.client.received()
    assert (reply[P.STATUS], reply[P.PIECES]) == (0, 0)
    star.release()
    assert star.is_at_rest


def test_a_cancelled_request_takes_its_steps_along() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask(1)
    star.ask(2)
    item = star.item(star.double)
    for number in (1, 2):
        star.client.send(CANCEL, number)
    star.step()
    replies = star.client.received()
    assert [reply[P.REASON] for reply in replies] == [Reason.CANCELLED] * 2
    assert [record[:2] for record in star.double.received()] == [(CANCEL, item[B.KEY])]
    star.answer(star.double, item)  # for nobody
    assert star.items(star.double) == []
    assert star.is_at_rest


def test_a_hint_is_passed_on_to_what_runs() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask()
    item = star.item(star.double)
    star.client.send(CANCEL, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    star.step()
    assert [record[:2] for record in star.double.received()] == [(CANCEL, item[B.KEY])]
    assert star.client.received() == []


def test_priority_and_what_is_left_of_the_timeout_go_along() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask(priority=3, timeout=10)
    item = star.item(star.double)
    assert (item[B.PRIORITY], item[B.TIMEOUT_US]) == (3, 10)
    star.exchange.step(6000)
    star.answer(star.double, item)  # at 2000
    item = star.item(star.double)
    assert (item[B.PRIORITY], item[B.TIMEOUT_US]) == (3, 9)


def test_steps_have_the_deadline_and_none_begins_after_it() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask(deadline=1500)
    item = star.item(star.double)
    assert item[B.DEADLINE_NS] == 1500
    star.exchange.step(1500)  # its first step is being executed, but nothing is left for the second
    reply = star.client.received()[0]
    assert reply[P.REASON] == Reason.TIMED_OUT
    assert [record[:2] for record in star.double.received()] == [(CANCEL, item[B.KEY])]
    star.answer(star.double, item)  # for nobody
    assert star.items(star.double) == []
    assert star.is_at_rest


def test_a_client_that_dies_leaves_nothing() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask()
    star.ask(2)
    item = star.item(star.double)
    star.exchange.remove_client(CLIENT)
    star.step()
    star.answer(star.double, item)
    assert star.items(star.double) == []
    assert star.is_at_rest


def test_a_result_dies_with_its_worker() -> None:
    star = EnsembleStar(FANNED, (DOUBLE, DOUBLE, ADD))
    star.ask()
    for _ in range(2):
        star.answer(star.double, star.item(star.double))
    item = star.item(star.add)
    star.remove_worker(FIRST, 2000)
    star.step()
    reply, sentence = star.reply()
    assert reply[P.STATUS] == 2
    assert "in ensemble 'fan', " in sentence
    assert "is not healthy" in sentence
    star.release()
    star.answer(star.add, item)
    assert star.is_at_rest


def test_an_ensemble_as_a_step() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.add_ensemble(9, ensemble(step("xx", "ya"), step("Xa", "Yy"), outputs="ay"), (FAN, DOUBLE))
    header = request_header("", (("x", FP32, (1, 3), 0, 12),), (), {})
    block = star.slabs[CLIENT].allocate(4096)
    assert block is not None
    block.memory[64 : 64 + len(header)] = header
    star.client.send(REQUEST, 1, 9, block.ref, 64 << 32 | len(header), 1)
    star.step()
    results = [star.answer(star.double, star.item(star.double)) for _ in range(3)]
    _, (pieces, outputs, _) = star.reply()
    assert pieces == results[1:]
    assert [name for name, *_ in outputs] == ["a", "y"]
    star.release(1, *pieces)
    assert star.is_at_rest


def test_models_stay_until_the_requests_that_began_with_them_end() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    star.ask()
    star.add_model(8, config("double", "X", "Y"))
    star.exchange.ensembles.relink(FAN, [8, 8], may_run_again=False)
    star.exchange.retire_model(DOUBLE)
    item = star.item(star.double)
    star.answer(star.double, item)
    assert star.reports() == []
    result = star.answer(star.double, star.item(star.double))
    assert star.reports() == [ModelRetired(DOUBLE)]
    star.release(1, result)
    star.ask(2)
    assert star.items(star.double) == []  # the next one begins with the others


def test_a_model_that_is_gone() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, 77))
    star.ask()
    star.answer(star.double, star.item(star.double))
    reply, sentence = star.reply()
    assert (reply[P.STATUS], sentence[:20]) == (5, "in ensemble 'fan', R")
    star.release()
    star.ask(2)
    star.exchange.remove_model(FAN, 2000)
    star.step()
    assert [record[P.REASON] for record in star.client.received()] == [Reason.NOT_READY]
    star.answer(star.double, star.item(star.double))
    assert star.is_at_rest


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
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    block = star.slabs[CLIENT].allocate(4096)
    assert block is not None
    block.memory[64 : 64 + len(header)] = header
    star.client.send(REQUEST, 1, FAN, block.ref, 64 << 32 | len(header), 1)
    star.step()
    reply, sentence = star.reply()
    assert (reply[P.STATUS], "is damaged" in sentence) == (2, True)
    star.release()
    assert star.is_at_rest


def test_a_guest_passes_on_its_own_only() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    others = star.ask()
    guest = star.add_client(41, is_guest=True)
    slab = Slab(guest.own)
    block = slab.allocate(4096)
    assert block is not None
    header = request_header("", (("x", FP32, (1, 3), 0, 12, others),), (), {})
    block.memory[: len(header)] = header
    guest.send(REQUEST, 1, FAN, block.ref, len(header), 1)
    star.step()
    (reply,) = guest.received()
    assert reply[P.STATUS] == 2
    assert len(star.items(star.double)) == 1


def test_without_memory_requests_are_refused() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    for number in range(1, 20):
        star.client.send(REQUEST, number, FAN, 0, 0, 1)  # each fails, and holds the block of its sentence
    star.step()
    replies = star.client.received()
    assert len(replies) == 19
    assert [reply[P.REASON] for reply in replies[-3:]] == [Reason.NO_STEP_MEMORY] * 3


def test_a_successor_begins_again_what_may_run_again() -> None:
    for may_run_again in (True, False):
        star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
        star.ask()
        item = star.item(star.double)
        asked = [*star.exchange._requests.by_key.values()]
        star.succeed()
        star.add_ensemble(FAN, CHAIN, (DOUBLE, DOUBLE), may_run_again=may_run_again)
        _, _, _, ref, span, _, _, _ = asked[0]
        star.client.send(REQUEST, 1, FAN, ref, span, 1)
        star.exchange.resume(3000)
        replies = star.client.received()
        assert [reply[P.REASON] for reply in replies] == ([] if may_run_again else [Reason.TAKEN_OVER])
        star.answer(star.double, item)  # the dead one's: for nobody
        assert len(star.items(star.double)) == int(may_run_again)


def test_headers_stay_while_a_worker_may_read_them() -> None:
    """Of a request that has failed, too: another of its steps still runs."""
    star = EnsembleStar(ensemble(step("Xx", "Ya"), step("Xx", "Yb"), step("Aa Bb", "Yy")), (DOUBLE, 8, ADD))
    other = star.add_worker(33, star.add_model(8, config("other", "X", "Y")))
    star.ask()
    star.send_done(star.double, star.item(star.double), 4, b"no")
    item = star.item(other)
    star.reply()
    star.release()
    assert star.header(item)[0] == "id"
    assert not star.is_at_rest
    other.send(layout.DONE, item[B.KEY], item[B.BATCH], 4, 0, 0, 10, 20, 40, 70)
    star.step()
    assert star.is_at_rest

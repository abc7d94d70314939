"""Ensembles with a step that answers any number of times: what follows of each answer, and that all is given back."""

import pytest

from shoal.model_config.signature import Signature
from shoal.reasons import Reason
from shoal.shm.layout import DONE, RELEASE, B, P, ref_owner
from shoal.shm.slab import SlabView
from tests.batcher.ensemble_star import (
    ADD,
    DOUBLE,
    FAN,
    FIRST,
    FP32,
    SECOND,
    EnsembleStar,
    ensemble,
    step,
    tensor,
)
from tests.batcher.star import BATCHER
from tests.batcher.streaming_ensemble import STREAM, Streams, streaming
from tests.request_headers import packed


def parts(star: EnsembleStar) -> list[tuple[int, list[int], int]]:
    """What the client hears: whether more follows, the pieces, and the block to be released."""
    told = []
    for reply in star.client.received():
        block = SlabView(star.batcher_view).open(reply[P.BLOCK]) if reply[P.PIECES] else None
        pieces = [] if block is None else block[: 8 * reply[P.PIECES]].cast("Q").tolist()
        told.append((reply[P.MORE], pieces, reply[P.BLOCK]))
    return told


def release_all(star: EnsembleStar, told: list[tuple[int, list[int], int]]) -> None:
    for more, pieces, ref in told:
        for each in (*pieces, ref if more else 0):
            star.client.send(RELEASE, 1, 0, each)
    star.step(3000)


def test_what_follows_runs_once_for_each_answer() -> None:
    star = streaming()
    asked = star.ask()
    item = star.item(star.double)
    results = []
    for _ in range(3):
        answer = star.respond(star.double, item)
        next_item = star.item(star.add)
        assert [(name, ref) for name, *_, ref in star.header(next_item)[1]] == [("A", answer), ("B", asked)]
        results.append(star.answer(star.add, next_item))
    star.end(star.double, item)
    told = parts(star)
    assert [(more, pieces) for more, pieces, _ in told] == [(1, [ref]) for ref in results] + [(0, [])]
    assert all(ref_owner(ref) == BATCHER for _, _, ref in told[:-1])
    release_all(star, told)
    assert star.is_at_rest


@pytest.mark.parametrize("says_end_apart", [True, False])
def test_the_end_waits_for_what_follows(says_end_apart: bool) -> None:
    star = streaming()
    star.ask()
    item = star.item(star.double)
    if says_end_apart:
        star.respond(star.double, item)
        star.end(star.double, item)
    else:
        star.answer(star.double, item)
    assert star.client.received() == []
    result = star.answer(star.add, star.item(star.add))
    told = parts(star)
    assert [(more, pieces) for more, pieces, _ in told] == [(0, [result])]
    release_all(star, told)
    assert star.is_at_rest


def test_no_answer_at_all_is_an_empty_end() -> None:
    star = streaming()
    star.ask()
    star.end(star.double, star.item(star.double))
    assert parts(star) == [(0, [], 0)]
    assert star.is_at_rest


def test_answers_that_lie_in_one_block_are_held_as_often() -> None:
    """As where two of one request's are executed in one batch."""
    star = streaming()
    star.ask()
    item = star.item(star.double)
    star.respond(star.double, item)
    star.respond(star.double, item)
    star.end(star.double, item)
    first = star.item(star.add)
    block = star.answer(star.add, first)
    second = star.item(star.add)
    header = packed(((("Y", FP32, (1, 3), 128, 12),), {"q": SECOND}))
    star.add.send(DONE, second[B.KEY], second[B.BATCH], 0, block, 512 << 32 | len(header), 10, 20, 40, 70)
    star.step()
    told = parts(star)
    assert [(more, pieces) for more, pieces, _ in told] == [(1, [block]), (0, [block])]
    release_all(star, told[:1])
    assert star.exchange.holders.is_held(block)
    release_all(star, told[1:])
    assert star.is_at_rest


def test_a_step_that_fails_ends_the_request_and_further_responses_are_dropped() -> None:
    star = streaming()
    star.ask()
    item = star.item(star.double)
    star.respond(star.double, item)
    star.send_done(star.add, star.item(star.add), 3, b"no")
    reply, said = star.reply()
    assert (reply[P.MORE], said) == (0, "in ensemble 'fan', no")
    star.release()
    star.respond(star.double, item)  # nobody reads it
    star.end(star.double, item)
    assert star.is_at_rest


def test_a_streams_death_ends_the_whole() -> None:
    star = streaming()
    star.ask()
    item = star.item(star.double)
    star.respond(star.double, item)
    star.exchange.remove_worker(FIRST, 3000, Reason.INSTANCE_DIED)
    star.step(3000)
    (reply,) = star.client.received()
    assert reply[P.STATUS]
    star.release()
    star.answer(star.add, star.item(star.add))
    assert star.is_at_rest


def test_no_more_requests_at_once_than_may_be() -> None:
    bounded = {**STREAM, "ensemble_scheduling": {**STREAM["ensemble_scheduling"], "max_inflight_requests": 1}}
    star = streaming(bounded)
    star.ask()
    item = star.item(star.double)
    for _ in range(3):
        star.respond(star.double, item)
    star.end(star.double, item)
    for _ in range(3):
        (waiting,) = star.items(star.add)
        assert star.exchange.models[ADD].scheduler.pending == 0
        star.answer(star.add, waiting)
    told = parts(star)
    assert [more for more, _, _ in told] == [1, 1, 0]
    release_all(star, told)
    assert star.is_at_rest
    assert star.ensemble.num_inflight == [0, 0]


def test_requests_that_wait_go_with_theirs() -> None:
    bounded = {**STREAM, "ensemble_scheduling": {**STREAM["ensemble_scheduling"], "max_inflight_requests": 1}}
    star = streaming(bounded)
    star.ask()
    item = star.item(star.double)
    star.respond(star.double, item)
    star.respond(star.double, item)
    star.exchange.remove_client(star.client.owner)
    star.step(2500)
    star.answer(star.add, star.item(star.add))
    star.end(star.double, item)
    assert star.items(star.add) == []
    assert star.is_at_rest
    assert star.ensemble.num_inflight == [0, 0]


def test_streams_may_be_nested() -> None:
    chain = ensemble(step("Xx", "Ya"), step("Xa", "Yb"), step("Ab Bx", "Yy"))
    star = Streams(chain, (DOUBLE, DOUBLE, ADD), (0, 1))
    star.ask()
    outer = star.item(star.double)
    star.respond(star.double, outer)
    star.end(star.double, outer)
    inner = star.item(star.double)
    for _ in range(2):
        star.respond(star.double, inner)
        star.answer(star.add, star.item(star.add))
    star.end(star.double, inner)
    told = parts(star)
    assert [more for more, _, _ in told] == [1, 1, 0]
    release_all(star, told)
    assert star.is_at_rest


def test_a_cancel_ends_the_stream() -> None:
    star = streaming()
    star.ask()
    item = star.item(star.double)
    star.respond(star.double, item)
    star.exchange.remove_model(FAN, 2500)
    star.step(2500)
    (reply,) = star.client.received()
    assert reply[P.REASON] == Reason.NOT_READY
    star.answer(star.add, star.item(star.add))
    star.end(star.double, item)
    assert SECOND in star.exchange.workers
    assert star.is_at_rest


def test_a_stream_begins_when_all_is_there_that_follows_it() -> None:
    besides = ensemble(step("Xx", "Ya"), step("Xx", "Yb"), step("Aa Bb", "Yy"))
    star = Streams(besides, (DOUBLE, DOUBLE, ADD), (0,))
    star.ask()
    star.answer(star.double, star.item(star.double))  # b; only then the stream
    item = star.item(star.double)
    star.respond(star.double, item)
    star.end(star.double, item)
    star.answer(star.add, star.item(star.add))
    told = parts(star)
    assert [more for more, _, _ in told] == [0]
    release_all(star, told)
    assert star.is_at_rest


def test_what_follows_need_not_have_an_optional_input() -> None:
    of = ensemble(step("Xx", "Ya"), step("Aa Bz", "Yy"))
    of["input"] = [tensor("x"), tensor("z") | {"optional": True}]
    star = streaming(of)
    star.model(ADD).signature = Signature.from_config(
        {"name": "add", "max_batch_size": 4, "input": [tensor("A"), tensor("B") | {"optional": True}],
         "output": [tensor("Y")]}
    )  # fmt: skip
    star.ask()
    item = star.item(star.double)
    answer = star.respond(star.double, item)
    next_item = star.item(star.add)
    assert [(name, ref) for name, *_, ref in star.header(next_item)[1]] == [("A", answer)]
    star.answer(star.add, next_item)
    star.end(star.double, item)
    told = parts(star)
    assert [more for more, _, _ in told] == [1, 0]
    release_all(star, told)
    assert star.is_at_rest

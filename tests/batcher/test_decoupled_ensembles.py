"""Ensembles with a step that answers any number of times: what follows of each answer, and that all is given back."""

import pytest

from shoal.model_config.signature import Signature
from shoal.reasons import Reason
from shoal.shm.layout import DONE, RELEASE, B, P, ref_owner
from shoal.shm.slab import SlabView
from tests.batcher.ensemble_star import ADD, DOUBLE, FAN, FIRST, FP32, SECOND, Sky, ensemble, packed, step, tensor
from tests.batcher.star import BATCHER
from tests.batcher.streaming_ensemble import STREAM, Streams, streaming


def parts(sky: Sky) -> list[tuple[int, list[int], int]]:
    """What the client hears: whether more follows, the pieces, and the block to be released."""
    told = []
    for reply in sky.client.heard():
        block = SlabView(sky.batcher_view).open(reply[P.BLOCK]) if reply[P.PIECES] else None
        pieces = [] if block is None else block[: 8 * reply[P.PIECES]].cast("Q").tolist()
        told.append((reply[P.MORE], pieces, reply[P.BLOCK]))
    return told


def release_all(sky: Sky, told: list[tuple[int, list[int], int]]) -> None:
    for more, pieces, ref in told:
        for each in (*pieces, ref if more else 0):
            sky.client.say(RELEASE, 1, 0, each)
    sky.step(3000)


def test_what_follows_runs_once_for_each_answer() -> None:
    sky = streaming()
    asked = sky.ask()
    item = sky.item(sky.double)
    results = []
    for _ in range(3):
        answer = sky.respond(sky.double, item)
        next_item = sky.item(sky.add)
        assert [(name, ref) for name, *_, ref in sky.header(next_item)[1]] == [("A", answer), ("B", asked)]
        results.append(sky.answer(sky.add, next_item))
    sky.end(sky.double, item)
    told = parts(sky)
    assert [(more, pieces) for more, pieces, _ in told] == [(1, [ref]) for ref in results] + [(0, [])]
    assert all(ref_owner(ref) == BATCHER for _, _, ref in told[:-1])
    release_all(sky, told)
    assert sky.is_at_rest


@pytest.mark.parametrize("says_end_apart", [True, False])
def test_the_end_waits_for_what_follows(says_end_apart: bool) -> None:
    sky = streaming()
    sky.ask()
    item = sky.item(sky.double)
    if says_end_apart:
        sky.respond(sky.double, item)
        sky.end(sky.double, item)
    else:
        sky.answer(sky.double, item)
    assert sky.client.heard() == []
    result = sky.answer(sky.add, sky.item(sky.add))
    told = parts(sky)
    assert [(more, pieces) for more, pieces, _ in told] == [(0, [result])]
    release_all(sky, told)
    assert sky.is_at_rest


def test_no_answer_at_all_is_an_empty_end() -> None:
    sky = streaming()
    sky.ask()
    sky.end(sky.double, sky.item(sky.double))
    assert parts(sky) == [(0, [], 0)]
    assert sky.is_at_rest


def test_answers_that_lie_in_one_block_are_held_as_often() -> None:
    """As where two of one request's are executed in one batch."""
    sky = streaming()
    sky.ask()
    item = sky.item(sky.double)
    sky.respond(sky.double, item)
    sky.respond(sky.double, item)
    sky.end(sky.double, item)
    first = sky.item(sky.add)
    block = sky.answer(sky.add, first)
    second = sky.item(sky.add)
    header = packed(((("Y", FP32, (1, 3), 128, 12),), {"q": SECOND}))
    sky.add.say(DONE, second[B.KEY], second[B.BATCH], 0, block, 512 << 32 | len(header), 10, 20, 40, 70)
    sky.step()
    told = parts(sky)
    assert [(more, pieces) for more, pieces, _ in told] == [(1, [block]), (0, [block])]
    release_all(sky, told[:1])
    assert sky.exchange.holders.is_held(block)
    release_all(sky, told[1:])
    assert sky.is_at_rest


def test_a_step_that_fails_ends_the_whole_and_the_stream_goes_on_for_nobody() -> None:
    sky = streaming()
    sky.ask()
    item = sky.item(sky.double)
    sky.respond(sky.double, item)
    sky.say_done(sky.add, sky.item(sky.add), 3, b"no")
    reply, said = sky.reply()
    assert (reply[P.MORE], said) == (0, "in ensemble 'fan', no")
    sky.release()
    sky.respond(sky.double, item)  # nobody reads it
    sky.end(sky.double, item)
    assert sky.is_at_rest


def test_a_streams_death_ends_the_whole() -> None:
    sky = streaming()
    sky.ask()
    item = sky.item(sky.double)
    sky.respond(sky.double, item)
    sky.exchange.remove_worker(FIRST, 3000, Reason.INSTANCE_DIED)
    sky.step(3000)
    (reply,) = sky.client.heard()
    assert reply[P.STATUS]
    sky.release()
    sky.answer(sky.add, sky.item(sky.add))
    assert sky.is_at_rest


def test_no_more_requests_at_once_than_may_be() -> None:
    bounded = {**STREAM, "ensemble_scheduling": {**STREAM["ensemble_scheduling"], "max_inflight_requests": 1}}
    sky = streaming(bounded)
    sky.ask()
    item = sky.item(sky.double)
    for _ in range(3):
        sky.respond(sky.double, item)
    sky.end(sky.double, item)
    for _ in range(3):
        (waiting,) = sky.items(sky.add)
        assert sky.exchange.models[ADD].scheduler.pending == 0
        sky.answer(sky.add, waiting)
    told = parts(sky)
    assert [more for more, _, _ in told] == [1, 1, 0]
    release_all(sky, told)
    assert sky.is_at_rest
    assert sky.ensemble.num_inflight == [0, 0]


def test_requests_that_wait_go_with_theirs() -> None:
    bounded = {**STREAM, "ensemble_scheduling": {**STREAM["ensemble_scheduling"], "max_inflight_requests": 1}}
    sky = streaming(bounded)
    sky.ask()
    item = sky.item(sky.double)
    sky.respond(sky.double, item)
    sky.respond(sky.double, item)
    sky.exchange.remove_client(sky.client.owner)
    sky.step(2500)
    sky.answer(sky.add, sky.item(sky.add))
    sky.end(sky.double, item)
    assert sky.items(sky.add) == []
    assert sky.is_at_rest
    assert sky.ensemble.num_inflight == [0, 0]


def test_streams_may_be_nested() -> None:
    chain = ensemble(step("Xx", "Ya"), step("Xa", "Yb"), step("Ab Bx", "Yy"))
    sky = Streams(chain, (DOUBLE, DOUBLE, ADD), (0, 1))
    sky.ask()
    outer = sky.item(sky.double)
    sky.respond(sky.double, outer)
    sky.end(sky.double, outer)
    inner = sky.item(sky.double)
    for _ in range(2):
        sky.respond(sky.double, inner)
        sky.answer(sky.add, sky.item(sky.add))
    sky.end(sky.double, inner)
    told = parts(sky)
    assert [more for more, _, _ in told] == [1, 1, 0]
    release_all(sky, told)
    assert sky.is_at_rest


def test_a_cancel_ends_the_stream() -> None:
    sky = streaming()
    sky.ask()
    item = sky.item(sky.double)
    sky.respond(sky.double, item)
    sky.exchange.remove_model(FAN, 2500)
    sky.step(2500)
    (reply,) = sky.client.heard()
    assert reply[P.REASON] == Reason.NOT_READY
    sky.answer(sky.add, sky.item(sky.add))
    sky.end(sky.double, item)
    assert SECOND in sky.exchange.workers
    assert sky.is_at_rest


def test_a_stream_begins_when_all_is_there_that_follows_it() -> None:
    besides = ensemble(step("Xx", "Ya"), step("Xx", "Yb"), step("Aa Bb", "Yy"))
    sky = Streams(besides, (DOUBLE, DOUBLE, ADD), (0,))
    sky.ask()
    sky.answer(sky.double, sky.item(sky.double))  # b; only then the stream
    item = sky.item(sky.double)
    sky.respond(sky.double, item)
    sky.end(sky.double, item)
    sky.answer(sky.add, sky.item(sky.add))
    told = parts(sky)
    assert [more for more, _, _ in told] == [0]
    release_all(sky, told)
    assert sky.is_at_rest


def test_what_follows_need_not_have_an_optional_input() -> None:
    of = ensemble(step("Xx", "Ya"), step("Aa Bz", "Yy"))
    of["input"] = [tensor("x"), tensor("z") | {"optional": True}]
    sky = streaming(of)
    sky.model(ADD).signature = Signature.from_config(
        {"name": "add", "max_batch_size": 4, "input": [tensor("A"), tensor("B") | {"optional": True}],
         "output": [tensor("Y")]}
    )  # fmt: skip
    sky.ask()
    item = sky.item(sky.double)
    answer = sky.respond(sky.double, item)
    next_item = sky.item(sky.add)
    assert [(name, ref) for name, *_, ref in sky.header(next_item)[1]] == [("A", answer)]
    sky.answer(sky.add, next_item)
    sky.end(sky.double, item)
    told = parts(sky)
    assert [more for more, _, _ in told] == [1, 0]
    release_all(sky, told)
    assert sky.is_at_rest

"""Equal requests in the exchange, record by record: who is executed, what is copied, held and given back."""

import pytest

from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.layout import CANCEL, DONE, RESPONSE, P
from shoal.shm.slab import Slab
from tests.batcher.caching_star import DIGEST, SINGLE, Larder
from tests.batcher.star import CLIENT, MODEL, WORKER, cell


@pytest.fixture
def larder() -> Larder:
    return Larder()


def test_a_hit_is_a_reference_to_the_copy(larder: Larder) -> None:
    larder.ask(1)
    block = larder.execute(b"data")
    assert larder.replies() == [(1, block, 0)]
    larder.ask(2)
    larder.ask(3)
    first, second = larder.client.heard()
    assert larder.read(first) == larder.read(second) == b"data"
    assert first[P.BLOCK] == second[P.BLOCK] != block
    assert larder.items() == []
    for number in (1, 2, 3):
        larder.release(number)
    assert larder.exchange.blocks.own is not None
    assert larder.exchange.blocks.own.num_taken == 1, "the copy stays"
    assert [record[3] for record in larder.worker.heard()] == [block], "the worker's own is free"


def test_hits_count_as_tritons_do(larder: Larder) -> None:
    larder.ask(1)
    larder.execute()
    larder.ask(2)
    names = "success_count", "inference_count", "execution_count", "cache_hit_count", "cache_miss_count", "queue_ns"
    assert [cell(larder.cached_model, name) for name in names] == [2, 1, 1, 1, 1, 0]
    assert larder.figures(MODEL)["cache_hit_count"] == 1, "and readers see it"
    figures = larder.cache
    assert [figures[f"num_{name}"] for name in ("lookups", "hits", "misses", "entries", "evictions")] == [2, 1, 1, 1, 0]
    assert figures["used_bytes"] == layout.UNIT


def test_equal_requests_on_their_way_share_the_block_of_the_first(larder: Larder) -> None:
    for number in (1, 2, 3):
        larder.ask(number)
    block = larder.execute()
    assert larder.replies() == [(1, block, 0), (2, block, 0), (3, block, 0)]
    larder.release(1)
    larder.release(2)
    assert larder.exchange.holders.is_held(block)
    larder.release(3)
    assert not larder.exchange.holders.is_held(block)


def test_whom_the_first_fails_the_next_is_executed(larder: Larder) -> None:
    for number in (1, 2, 3):
        larder.ask(number)
    (item,) = larder.items()
    refused = larder.answer(item, status=1)
    assert larder.replies() == [(1, refused, 0)]
    block = larder.execute()
    assert larder.replies() == [(2, block, 0), (3, block, 0)]
    assert cell(larder.cached_model, "cache_miss_count") == 1, "as Triton, which counts what it inserts"


def test_a_dead_worker_takes_the_first_along_and_no_other(larder: Larder) -> None:
    larder.ask(1)
    larder.ask(2)
    larder.worker.begin(larder.items()[0][2])
    larder.remove_worker(WORKER, larder.now_ns)
    larder.worker = larder.add_worker(32, larder.cached_model)
    larder.slab = Slab(larder.worker.own)
    larder.step()
    assert larder.replies() == [(1, 0, Reason.INSTANCE_DIED)]
    block = larder.execute()
    assert larder.replies() == [(2, block, 0)]


def test_who_waits_can_be_cancelled_and_who_leads_too(larder: Larder) -> None:
    larder.ask(9, (1, 1))  # keeps the worker busy
    (busy,) = larder.items()
    for number in (10, 11, 12):
        larder.ask(number)
    larder.client.say(CANCEL, 11)
    larder.client.say(CANCEL, 10)
    larder.step()
    assert larder.replies() == [(11, 0, Reason.CANCELLED), (10, 0, Reason.CANCELLED)]
    larder.answer(busy)
    larder.replies()
    block = larder.execute()
    assert larder.replies() == [(12, block, 0)]


def test_a_client_that_dies_leaves_the_others_their_turn(larder: Larder) -> None:
    other = larder.add_client(41)
    larder.exchange.clients[41].is_front_end = True
    for number in (1, 2):
        larder.ask(number, client=other)
    larder.ask(1)
    (item,) = larder.items()
    larder.exchange.remove_client(41)
    larder.answer(item)  # nobody hears it
    block = larder.execute()
    assert larder.replies() == [(1, block, 0)]
    assert larder.exchange.num_open == 0


def test_those_whom_the_queue_has_no_room_for_are_refused() -> None:
    larder = Larder(max_queue=1)
    larder.ask(1)
    for number in (2, 3):
        larder.ask(number)
    larder.ask(4, (1, 1))  # fills the queue
    (item,) = larder.items()
    refused = larder.answer(item, status=1)
    numbers = [(number, reason) for number, _, reason in larder.replies()]
    assert numbers == [(1, 0), (2, Reason.QUEUE_FULL), (3, Reason.QUEUE_FULL)]
    assert refused


def test_what_was_used_last_stays_and_what_is_read_is_not_overwritten(larder: Larder) -> None:
    for number, digest in enumerate(((1, 0), (2, 0)), 1):
        larder.ask(number, digest)
        larder.execute(bytes([number] * 4))
    larder.client.heard()
    larder.ask(3, (1, 0))
    larder.ask(4, (2, 0))
    first, second = larder.client.heard()  # both are being read
    larder.ask(5, (3, 0))
    larder.execute(b"5555")
    assert (larder.cache["num_evictions"], larder.cache["num_entries"]) == (2, 0), "no room while they are read"
    assert (larder.read(first), larder.read(second)) == (b"\1\1\1\1", b"\2\2\2\2")
    for number in range(1, 6):
        larder.release(number)
    larder.ask(6, (4, 0))
    larder.execute()
    assert (larder.cache["num_entries"], larder.cache["used_bytes"]) == (1, layout.UNIT)


def test_a_model_that_goes_takes_its_answers_along(larder: Larder) -> None:
    larder.ask(1)
    larder.execute()
    larder.ask(2, (5, 5))
    larder.ask(3, (5, 5))
    larder.ask(4)
    hit = larder.client.heard()[-1]
    larder.exchange.remove_model(MODEL, larder.now_ns)
    larder.step()
    assert larder.replies() == [(3, 0, Reason.NOT_READY)], "who waited; what is executed ends by itself"
    assert larder.read(hit) == b"abcd", "whoever reads it may go on"
    assert (larder.cache["num_entries"], larder.cache["used_bytes"]) == (0, layout.UNIT)
    larder.add_cached(6, SINGLE)
    larder.ask(5, model=6)
    assert larder.replies() == [], "the next version has other answers"


def test_replies_keep_their_order_where_the_model_says_so() -> None:
    larder = Larder({"name": "m", "max_batch_size": 1, "dynamic_batching": {"preserve_ordering": True}})
    larder.ask(1)
    larder.execute()
    larder.client.heard()
    larder.ask(2, (1, 1))
    larder.ask(3)
    assert larder.replies() == []
    block = larder.execute()
    assert [number for number, _, _ in larder.replies()] == [2, 3]
    assert block


@pytest.mark.parametrize("digest", [(0, 0), DIGEST])
def test_only_front_ends_are_believed(larder: Larder, digest: tuple[int, int]) -> None:
    larder.exchange.clients[CLIENT].is_front_end = digest == (0, 0)
    for number in (1, 2):
        larder.ask(number, digest)
        larder.execute()
    assert larder.cache["num_lookups"] == 0


def test_an_answer_in_parts_is_nobody_elses(larder: Larder) -> None:
    larder.ask(1)
    (item,) = larder.items()
    larder.answer(item, kind=RESPONSE)
    larder.answer(item)
    larder.ask(2)
    assert len(larder.items()) == 1
    assert larder.cache["num_entries"] == 0


def test_what_is_damaged_is_passed_on_and_not_kept(larder: Larder) -> None:
    larder.ask(1)
    (item,) = larder.items()
    block = larder.slab.allocate(4096)
    assert block is not None
    block.memory[:4] = b"\xc1\xc1\xc1\xc1"
    larder.worker.say(DONE, item[1], item[2], 0, block.ref, 4, 10, 20, 40, 70)
    larder.step()
    assert larder.replies() == [(1, block.ref, 0)]
    assert larder.cache["num_entries"] == 0

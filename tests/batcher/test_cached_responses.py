"""Equal requests in the exchange, record by record: who is executed, what is copied, held and given back."""

import pytest

from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.layout import CANCEL, DONE, RESPONSE, P
from shoal.shm.slab import Slab
from tests.batcher.caching_star import DIGEST, SINGLE, CachingStar
from tests.batcher.star import CLIENT, MODEL, WORKER, cell


@pytest.fixture
def star() -> CachingStar:
    return CachingStar()


def test_a_hit_is_a_reference_to_the_copy(star: CachingStar) -> None:
    star.ask(1)
    block = star.execute(b"data")
    assert star.replies() == [(1, block, 0)]
    star.ask(2)
    star.ask(3)
    first, second = star.client.received()
    assert star.read(first) == star.read(second) == b"data"
    assert first[P.BLOCK] == second[P.BLOCK] != block
    assert star.items() == []
    for number in (1, 2, 3):
        star.release(number)
    assert star.exchange.blocks.own is not None
    assert star.exchange.blocks.own.num_taken == 1, "the copy stays"
    assert [record[3] for record in star.worker.received()] == [block], "the worker's own is free"


def test_hits_count_as_tritons_do(star: CachingStar) -> None:
    star.ask(1)
    star.execute()
    star.ask(2)
    names = "success_count", "inference_count", "execution_count", "cache_hit_count", "cache_miss_count", "queue_ns"
    assert [cell(star.cached_model, name) for name in names] == [2, 1, 1, 1, 1, 0]
    assert star.figures(MODEL)["cache_hit_count"] == 1, "and readers see it"
    figures = star.cache
    assert [figures[f"num_{name}"] for name in ("lookups", "hits", "misses", "entries", "evictions")] == [2, 1, 1, 1, 0]
    assert figures["used_bytes"] == layout.UNIT


def test_equal_requests_on_their_way_share_the_block_of_the_first(star: CachingStar) -> None:
    for number in (1, 2, 3):
        star.ask(number)
    block = star.execute()
    assert star.replies() == [(1, block, 0), (2, block, 0), (3, block, 0)]
    star.release(1)
    star.release(2)
    assert star.exchange.holders.is_held(block)
    star.release(3)
    assert not star.exchange.holders.is_held(block)


def test_whom_the_first_fails_the_next_is_executed(star: CachingStar) -> None:
    for number in (1, 2, 3):
        star.ask(number)
    (item,) = star.items()
    refused = star.answer(item, status=1)
    assert star.replies() == [(1, refused, 0)]
    block = star.execute()
    assert star.replies() == [(2, block, 0), (3, block, 0)]
    assert cell(star.cached_model, "cache_miss_count") == 2, "as Triton, which counts failed executions, too"


def test_who_has_less_time_than_the_first_is_executed_and_counts_as_a_miss(star: CachingStar) -> None:
    star.ask(1)
    star.ask(2, deadline=star.now_ns + 10**9)
    blocks = star.execute(), star.execute()
    assert star.replies() == [(1, blocks[0], 0), (2, blocks[1], 0)]
    assert cell(star.cached_model, "execution_count") == cell(star.cached_model, "cache_miss_count") == 2
    assert star.cache["num_entries"] == 1


def test_a_dead_worker_takes_the_first_along_and_no_other(star: CachingStar) -> None:
    star.ask(1)
    star.ask(2)
    star.worker.begin(star.items()[0][2])
    star.remove_worker(WORKER, star.now_ns)
    star.worker = star.add_worker(32, star.cached_model)
    star.slab = Slab(star.worker.own)
    star.step()
    assert star.replies() == [(1, 0, Reason.INSTANCE_DIED)]
    block = star.execute()
    assert star.replies() == [(2, block, 0)]


def test_who_waits_can_be_cancelled_and_who_leads_too(star: CachingStar) -> None:
    star.ask(9, (1, 1))  # keeps the worker busy
    (busy,) = star.items()
    for number in (10, 11, 12):
        star.ask(number)
    star.client.send(CANCEL, 11)
    star.client.send(CANCEL, 10)
    star.step()
    assert star.replies() == [(11, 0, Reason.CANCELLED), (10, 0, Reason.CANCELLED)]
    star.answer(busy)
    star.replies()
    block = star.execute()
    assert star.replies() == [(12, block, 0)]


def test_a_client_that_dies_leaves_the_others_their_turn(star: CachingStar) -> None:
    other = star.add_client(41)
    star.exchange.clients[41].is_front_end = True
    for number in (1, 2):
        star.ask(number, client=other)
    star.ask(1)
    (item,) = star.items()
    star.exchange.remove_client(41)
    star.answer(item)  # nobody hears it
    block = star.execute()
    assert star.replies() == [(1, block, 0)]
    assert star.exchange.num_open == 0


def test_those_whom_the_queue_has_no_room_for_are_refused() -> None:
    star = CachingStar(max_queue=1)
    star.ask(1)
    for number in (2, 3):
        star.ask(number)
    star.ask(4, (1, 1))  # fills the queue
    (item,) = star.items()
    refused = star.answer(item, status=1)
    numbers = [(number, reason) for number, _, reason in star.replies()]
    assert numbers == [(1, 0), (2, Reason.QUEUE_FULL), (3, Reason.QUEUE_FULL)]
    assert refused


def test_what_was_used_last_stays_and_what_is_read_is_not_overwritten(star: CachingStar) -> None:
    for number, digest in enumerate(((1, 0), (2, 0)), 1):
        star.ask(number, digest)
        star.execute(bytes([number] * 4))
    star.client.received()
    star.ask(3, (1, 0))
    star.ask(4, (2, 0))
    first, second = star.client.received()  # both are being read
    star.ask(5, (3, 0))
    star.execute(b"5555")
    assert (star.cache["num_evictions"], star.cache["num_entries"]) == (2, 0), "no room while they are read"
    assert (star.read(first), star.read(second)) == (b"\1\1\1\1", b"\2\2\2\2")
    for number in range(1, 6):
        star.release(number)
    star.ask(6, (4, 0))
    star.execute()
    assert (star.cache["num_entries"], star.cache["used_bytes"]) == (1, layout.UNIT)


def test_a_model_that_goes_takes_its_answers_along(star: CachingStar) -> None:
    star.ask(1)
    star.execute()
    star.ask(2, (5, 5))
    star.ask(3, (5, 5))
    star.ask(4)
    hit = star.client.received()[-1]
    star.exchange.remove_model(MODEL, star.now_ns)
    star.step()
    assert star.replies() == [(3, 0, Reason.NOT_READY)], "who waited; what is executed ends by itself"
    assert star.read(hit) == b"abcd", "whoever reads it may go on"
    assert (star.cache["num_entries"], star.cache["used_bytes"]) == (0, layout.UNIT)
    star.add_cached(6, SINGLE)
    star.ask(5, model=6)
    assert star.replies() == [], "the next version has other answers"


def test_replies_keep_their_order_where_the_model_says_so() -> None:
    star = CachingStar({"name": "m", "max_batch_size": 1, "dynamic_batching": {"preserve_ordering": True}})
    star.ask(1)
    star.execute()
    star.client.received()
    star.ask(2, (1, 1))
    star.ask(3)
    assert star.replies() == []
    block = star.execute()
    assert [number for number, _, _ in star.replies()] == [2, 3]
    assert block


@pytest.mark.parametrize("digest", [(0, 0), DIGEST])
def test_only_front_ends_are_believed(star: CachingStar, digest: tuple[int, int]) -> None:
    star.exchange.clients[CLIENT].is_front_end = digest == (0, 0)
    for number in (1, 2):
        star.ask(number, digest)
        star.execute()
    assert star.cache["num_lookups"] == 0


def test_an_answer_in_parts_is_not_cached(star: CachingStar) -> None:
    star.ask(1)
    (item,) = star.items()
    star.answer(item, kind=RESPONSE)
    star.answer(item)
    star.ask(2)
    assert len(star.items()) == 1
    assert star.cache["num_entries"] == 0


def test_what_is_damaged_is_passed_on_and_not_kept(star: CachingStar) -> None:
    star.ask(1)
    (item,) = star.items()
    block = star.slab.allocate(4096)
    assert block is not None
    block.memory[:4] = b"\xc1\xc1\xc1\xc1"
    star.worker.send(DONE, item[1], item[2], 0, block.ref, 4, 10, 20, 40, 70)
    star.step()
    assert star.replies() == [(1, block.ref, 0)]
    assert star.cache["num_entries"] == 0

"""shm/port.py: a client's end; the test plays the batcher at the other end of real rings, and a worker's slab."""

import pytest

from shoal.errors import UnavailableError
from shoal.shm.layout import LayoutError
from shoal.shm.port import Reply
from shoal.shm.slab import Block
from tests.shm.port_star import ZEROS, Star
from tests.submitted import Submitted, submit


def test_a_request_is_one_record_visible_after_flush(star: Star) -> None:
    block = star.port.allocate(5000)
    request = Submitted(3, rows=2, shape_key=99, priority=4, timeout_us=5)
    number = star.port.submit(request, request, block, header=4096 << 32 | 70, start_ns=123)
    assert star.seen() == []
    assert not star.is_rung()
    star.port.flush()
    assert star.is_rung()
    assert star.seen() == [(1, 1, 3, block.ref, 0x00001000_00000046, 2, 99, 4, 5, 0, 0, 123, 0, 0, 0, 0)]
    assert (number, star.port.counts["requests_open"]) == (1, 1)


def test_one_flush_shows_all_and_rings_once_and_an_empty_one_not(star: Star) -> None:
    (first, _), (second, _) = star.submit(), star.submit()
    star.port.cancel(first)
    star.port.release(second)
    star.port.flush()
    assert [(found[0], found[1]) for found in star.seen()] == [(1, first), (1, second), (2, first), (3, second)]
    star.bell.clear()
    star.port.flush()
    assert not star.is_rung()


def test_cancel_and_release_are_records_of_two_words(star: Star) -> None:
    number, _ = star.submit()
    star.port.flush()
    star.seen()
    star.port.cancel(number)
    star.port.release(number)
    star.port.flush()
    assert star.seen() == [(2, number, *ZEROS[2:]), (3, number, *ZEROS[2:])]


def test_many_replies_are_released_by_one_record(star: Star) -> None:
    for number in range(1, 20):
        star.port.release(number, prompt=False)
    star.port.flush()
    first, second = star.seen()
    assert first == (3, 1, 0, 0, *range(2, 14))
    assert second == (3, 14, 0, 0, *range(15, 20), *ZEROS[9:])
    assert not star.is_rung()


def test_what_is_released_while_the_ring_is_full_is_said_when_there_is_room(narrow: Star) -> None:
    for _ in range(13):
        narrow.port.trace(7)
    narrow.port.release(7)
    narrow.port.flush()
    assert [record[0] for record in narrow.seen()] == [11] * 13
    narrow.port.flush()
    assert narrow.seen() == [(3, 7, *ZEROS[2:])]


def test_a_trace_is_asked_for_behind_its_request_and_the_times_come_with_the_reply(star: Star) -> None:
    number, block = star.submit()
    block.memory[40:47] = b"header."
    memory, span, start_ns = star.port.submitted(number)
    assert (bytes(memory[40:47]), len(memory), span, start_ns) == (b"header.", 4096, 40 << 32 | 7, 1_000)
    star.port.trace(number)
    star.port.flush()
    assert [record[:2] for record in star.seen()] == [(1, number), (11, number)]
    star.reply(4, number, 5, 0, 0, 1, 0, 101, 102, 103, 104, 105)
    (reply,) = star.port.poll()
    assert reply.times == (101, 102, 103, 104, 105)
    assert Reply(1, 0, 0, None, None).times == (0, 0, 0, 0, 0)


def test_children_of_a_traced_request_come_before_its_reply(star: Star) -> None:
    number, _ = star.submit()
    children = star.port.trace(number).children
    star.reply(17, number, 5 << 40 | 1, 0, 7, 1, 101, 102, 103, 104, 105, 106, 107, 1)
    star.reply(17, number + 1, 5 << 40 | 2, 0, 7, 1)  # of another, which is not traced
    assert star.port.poll() == []
    star.reply(17, number, 5 << 40 | 3, 5 << 40 | 1, 8, 2, 111, 112, 113, 114, 115, 116, 117)
    star.reply(4, number, 5)
    assert [reply.number for reply in star.port.poll()] == [number]
    assert children == [
        (5 << 40 | 1, 0, 7, 1, 101, 102, 103, 104, 105, 106, 107, 1),
        (5 << 40 | 3, 5 << 40 | 1, 8, 2, 111, 112, 113, 114, 115, 116, 117, 0),
    ]


def test_nothing_is_left_of_a_trace_when_its_request_has_ended(star: Star) -> None:
    number, _ = star.submit()
    traced = star.port.trace(number)
    star.reply(4, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)  # others follow
    star.port.poll()
    assert star.port._traced == {number: traced}
    star.reply(4, number, 5)
    star.reply(17, number, 5 << 40 | 1, 0, 7, 1, 101)
    star.port.poll()
    star.reply(18, number, 1, 2, 3)
    star.port.poll()
    assert (star.port._traced, traced.children, traced.execution) == ({}, [], ())


def test_the_execution_of_a_shown_request_comes_before_its_reply(star: Star) -> None:
    number, _ = star.submit()
    traced = star.port.trace(number, is_shown=True, trace_id=(7, 8))
    star.port.flush()
    assert star.seen()[-1][:5] == (11, number, 1, 7, 8)
    star.reply(18, number, *range(101, 112))
    star.reply(18, number + 1, *range(201, 212))  # of another, which is not traced
    star.reply(4, number, 5)
    star.port.poll()
    assert traced.execution == tuple(range(101, 112))


@pytest.mark.parametrize(("digest", "words"), [((0, 0), (0, 0, 0)), ((8, 9), (8, 9, 12))])
def test_a_request_that_is_made_for_another_names_it(
    star: Star, digest: tuple[int, int], words: tuple[int, int, int]
) -> None:
    block = star.port.allocate(100)
    request = Submitted(3, shape_key=99)
    number = star.port.submit(
        request, request, block, 40 << 32 | 7, 1_000, digest, deadline_ns=words[2], parent=5 << 40 | 1
    )
    star.port.flush()
    asked = number, 3, block.ref, 40 << 32 | 7, 1, 99, 0, 0, 0, 0, 1_000
    assert star.seen() == [(16, *asked, 5 << 40 | 1, *words)]
    star.port.resubmit()  # a new batcher knows nothing of the other's trace
    assert star.seen() == [(1, *asked, 0, *words)]


def test_a_new_batcher_is_told_what_is_open_and_what_is_held(star: Star) -> None:
    (first, first_block), (second, second_block) = star.submit(), star.submit()
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    star.reply(4, first, 0, answer.ref, 0)
    star.port.poll()
    star.port.flush()
    star.seen()
    star.bell.clear()
    star.port.resubmit()
    assert star.is_rung()
    span = 40 << 32 | 7
    asked = (1, second, 3, second_block.ref, span, 1, 99, 0, 0, 0, 0, 1_000, 0, 0, 0, 0)
    assert star.seen() == [(9, first, 1, answer.ref, *ZEROS[4:]), asked]  # 1: the first HOLD
    star.port.release(first)
    star.port.flush()
    star.seen()
    star.port.resubmit()
    assert star.seen() == [asked]
    assert star.port.slab.free(first_block.ref) is False


def test_a_reply_shows_the_workers_block_and_gives_the_requests_back(star: Star) -> None:
    number, block = star.submit()
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    answer.memory[:10] = b"tensorhead"
    star.reply(4, number, 0, answer.ref, 6 << 32 | 4)
    (reply,) = star.port.poll()
    assert (reply.number, reply.status, reply.reason) == (number, 0, 0)
    assert reply.block is not None
    assert reply.header is not None
    assert (len(reply.block), bytes(reply.block[:6]), bytes(reply.header)) == (4096, b"tensor", b"head")
    assert reply.block.readonly
    assert star.port.counts["requests_open"] == 0
    assert star.port.slab.num_taken == 0
    assert star.port.slab.free(block.ref) is False  # it was freed with the reply


def test_a_block_that_is_not_the_slabs_is_reported_as_spent_with_its_reply(star: Star) -> None:
    block = Block(0x000063_00000_00001, memoryview(bytearray(5 * 4096)))
    number = submit(star.port, 3, block)
    assert star.port.spent == []
    star.reply(4, number, 5, 0, 0, 1)
    star.port.poll()
    assert star.port.spent == [0x000063_00000_00001]


def test_a_refusal_has_a_reason_and_no_block(star: Star) -> None:
    number, _ = star.submit()
    star.reply(4, number, 5, 0, 0, 1)
    (reply,) = star.port.poll()
    assert (reply.number, reply.status, reply.reason, reply.block, reply.header) == (number, 5, 1, None, None)
    assert star.port.slab.num_taken == 0


def test_replies_come_in_the_batchers_order(star: Star) -> None:
    (first, first_block), (second, second_block) = star.submit(), star.submit()
    star.reply(4, second, 5, 0, 0, 1)
    assert [reply.number for reply in star.port.poll()] == [second]
    assert star.port.slab.free(second_block.ref) is False
    assert star.port.counts["requests_open"] == 1
    star.reply(4, first, 5, 0, 0, 1)
    assert [reply.number for reply in star.port.poll()] == [first]
    assert star.port.slab.free(first_block.ref) is False
    assert star.port.poll() == []


def test_a_second_reply_to_a_request_and_one_to_no_request_are_dropped(star: Star) -> None:
    number, _ = star.submit()
    star.reply(4, number, 5, 0, 0, 1)
    star.reply(4, number, 0, 0, 0, 0)
    star.reply(4, 77, 0, 0, 0, 0)
    assert [(reply.number, reply.status) for reply in star.port.poll()] == [(number, 5)]
    later, _ = star.submit()
    assert later == number + 1
    assert star.port.counts["requests_open"] == 1


@pytest.mark.parametrize("change", [1, 1 << 20, 1 << 40], ids=["generation", "unit", "owner"])
def test_a_reply_with_a_wrong_reference_has_no_block(star: Star, change: int) -> None:
    number, _ = star.submit()
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    star.reply(4, number, 0, answer.ref ^ change, 6 << 32 | 4)
    (reply,) = star.port.poll()
    assert (reply.number, reply.status, reply.reason, reply.block, reply.header) == (number, 0, 0, None, None)
    star.port.flush()
    assert star.seen()[1:] == [(3, number, *ZEROS[2:])]  # the batcher need not keep it for anybody
    assert star.port.counts["replies_held"] == 0


def test_a_header_said_to_lie_outside_its_block_is_cut_off(star: Star) -> None:
    (first, _), (second, _) = star.submit(), star.submit()
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    star.reply(4, first, 0, answer.ref, 4000 << 32 | 0xFFFFFFFF)
    star.reply(4, second, 0, answer.ref, 0xFFFFFFFF_FFFFFFFF)
    headers = [reply.header for reply in star.port.poll()]
    assert [None if header is None else len(header) for header in headers] == [96, 0]


def test_after_a_worker_is_gone_its_blocks_open_as_none(star: Star) -> None:
    number, _ = star.submit()
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    star.port.remove_segment(9)
    star.port.remove_segment(9)
    star.reply(4, number, 0, answer.ref, 6 << 32 | 4)
    (reply,) = star.port.poll()
    assert (reply.number, reply.status, reply.reason, reply.block, reply.header) == (number, 0, 0, None, None)


def test_what_is_taken_and_given_back_is_counted(star: Star) -> None:
    names = (
        "blocks_acquired", "blocks_released", "slots_acquired", "slots_released", "requests_open", "replies_held",
    )  # fmt: skip

    def counts() -> list[int]:
        assert tuple(star.port.counts) == names
        return list(star.port.counts.values())

    assert counts() == [0, 0, 0, 0, 0, 0]
    (first, _), _ = star.submit(), star.submit()
    assert counts() == [2, 0, 0, 0, 2, 0]
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    star.reply(4, first, 0, answer.ref, 0)
    assert counts() == [2, 0, 1, 0, 2, 0]
    star.port.poll()
    assert counts() == [2, 1, 1, 1, 1, 1]
    star.port.release(first)
    assert counts() == [2, 1, 1, 1, 1, 0]


def test_no_more_than_max_in_flight_and_a_reply_makes_room(star: Star) -> None:
    (first, _), _ = star.submit(), star.submit()
    assert not star.port.has_place(3)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        star.port.allocate(1, 3)
    assert star.port.slab.num_taken == 2
    star.reply(4, first, 5, 0, 0, 1)
    star.port.poll()
    assert star.port.has_place(3)
    assert len(star.port.allocate(1, 3).memory) == 4096


def test_no_block_left_is_unavailable_and_changes_nothing(star: Star) -> None:
    star.port.allocate(3 * 4096)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        star.port.allocate(1)
    assert (star.port.slab.num_taken, star.port.counts["requests_open"]) == (1, 0)


def test_cancelling_what_is_answered_or_unknown_says_nothing(star: Star) -> None:
    number, _ = star.submit()
    star.port.flush()
    star.seen()
    star.reply(4, number, 5, 0, 0, 1)
    star.port.poll()
    star.port.cancel(number)
    star.port.cancel(77)
    star.port.flush()
    assert star.seen() == []


@pytest.mark.parametrize("kind", [0, 1, 7, 2**64 - 1])
def test_a_record_that_is_no_reply_is_refused(star: Star, kind: int) -> None:
    number, _ = star.submit()
    star.reply(kind, number)
    with pytest.raises(LayoutError, match=rf"^the batcher sent a record of kind {kind}$"):
        star.port.poll()
    assert (star.port.counts["requests_open"], star.port.slab.num_taken) == (1, 1)


def test_a_recall_names_segments_and_says_whether_it_is_urgent(star: Star) -> None:
    recalls: list[object] = []
    star.reply(15, 0, 9)
    assert star.port.poll() == []  # most clients cannot give anything back
    star.port.on_recall = lambda segments, is_urgent: recalls.append((segments, is_urgent))
    number, _ = star.submit()
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    star.reply(15, 1, 9, 8)
    star.reply(4, number, 0, answer.ref, 0)
    assert [reply.number for reply in star.port.poll()] == [number]
    assert recalls == [({9, 8}, True)]
    owner = answer.ref >> 40
    assert star.port.lies_in(number, 0, {owner})
    assert not star.port.lies_in(number, 0, {owner + 1})
    star.port.release(number)
    assert not star.port.lies_in(number, 0, {owner})


def test_a_lent_block_is_free_once_it_is_returned(star: Star) -> None:
    number, block = star.submit()
    star.reply(4, number, *ZEROS[2:14], 1)
    (reply,) = star.port.poll()
    assert (reply.number, star.port.counts["requests_open"]) == (number, 0)
    assert star.port.slab.is_taken(block.ref)
    star.reply(19, number + 1)
    star.reply(19, 0)
    assert star.port.poll() == []
    assert star.port.slab.is_taken(block.ref), "these were for others"
    star.reply(19, number)
    assert star.port.poll() == []
    assert not star.port.slab.is_taken(block.ref)
    star.reply(19, number)
    assert star.port.poll() == []
    assert star.port.spent == []


def test_blocks_lent_to_a_dead_batcher_are_free_once_its_successor_returns_all(star: Star) -> None:
    number, block = star.submit()
    star.reply(4, number, *ZEROS[2:14], 1)
    star.port.poll()
    star.port.flush()
    star.seen()
    star.port.resubmit()
    assert star.seen() == [(19, 0, *ZEROS[2:])]
    star.reply(19, number)
    star.port.poll()
    assert star.port.slab.is_taken(block.ref), "a number is for what was lent since"
    star.reply(19, 0)
    star.port.poll()
    assert not star.port.slab.is_taken(block.ref)
    star.port.resubmit()
    assert star.seen() == []

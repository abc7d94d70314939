"""shm/port.py: a client's end; the test plays the batcher at the other end of real rings, and a worker's slab."""

import select
from collections.abc import Callable, Iterator

import pytest

from shoal.errors import UnavailableError
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, WORKER, Geometry, LayoutError
from shoal.shm.port import Port, Reply
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]
ZEROS = (0,) * 16


class Star:
    """A port (client 5), the batcher's ends of its two rings, and the slab of worker 9."""

    def __init__(
        self, make: MakePair, bell: Doorbell, *, max_in_flight: int = 2, num_records: int = 8, num_blocks: int = 4
    ) -> None:
        client, client_view = make(CLIENT, 5, Geometry(num_records, 4 * 4096))
        link, link_view = make(LINK, 1, Geometry(8, 0))
        worker, self.worker_view = make(WORKER, 9, Geometry(0, num_blocks * 4096))
        self.bell = bell
        self.port = Port(client, link_view, bell, max_in_flight)
        self.port.add_segment(9, self.worker_view)
        self.requests = RingReader(link, client_view)
        self.replies = RingWriter(link, client_view)
        self.worker_slab = Slab(worker)

    def seen(self) -> list[tuple[int, ...]]:
        """What the batcher finds in the client's ring now."""
        return list(self.requests.drain())

    def submit(self) -> tuple[int, Block]:
        block = self.port.allocate(100)
        return self.port.submit(3, block, 40 << 32 | 7, 1, 99, 1_000), block

    def reply(self, *words: int) -> None:
        self.replies.push((words + ZEROS)[:16])
        self.replies.publish()

    def is_rung(self) -> bool:
        return select.select([self.bell], [], [], 0)[0] == [self.bell]


@pytest.fixture
def star(segment_pair: MakePair) -> Iterator[Star]:
    bell = Doorbell.create()
    yield Star(segment_pair, bell)
    bell.close()


def test_a_request_is_one_record_visible_after_flush(star: Star) -> None:
    block = star.port.allocate(5000)
    number = star.port.submit(
        model=3, block=block, header=4096 << 32 | 70, rows=2, shape_key=99, start_ns=123, priority=4, timeout_us=5
    )
    assert star.seen() == []
    assert not star.is_rung()
    star.port.flush()
    assert star.is_rung()
    assert star.seen() == [(1, 1, 3, block.ref, 0x00001000_00000046, 2, 99, 4, 5, 0, 0, 123, 0, 0, 0, 0)]
    assert (number, star.port.num_in_flight) == (1, 1)


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
    assert star.seen() == [(9, first, 0, answer.ref, *ZEROS[4:]), asked]
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
    assert star.port.num_in_flight == 0
    assert star.port.slab.num_taken == 0
    assert star.port.slab.free(block.ref) is False  # it was freed with the reply


def test_a_block_that_is_not_the_slabs_is_reported_as_spent_with_its_reply(star: Star) -> None:
    block = Block(0x000063_00000_00001, memoryview(bytearray(5 * 4096)))
    number = star.port.submit(3, block, 0, 1, 0, 0)
    assert star.port.spent == []
    star.reply(4, number, 5, 0, 0, 1)
    star.port.poll()
    assert star.port.spent == [0x000063_00000_00001]


def test_a_refusal_has_a_reason_and_no_block(star: Star) -> None:
    number, _ = star.submit()
    star.reply(4, number, 5, 0, 0, 1)
    assert star.port.poll() == [Reply(number, status=5, reason=1, block=None, header=None)]
    assert star.port.slab.num_taken == 0


def test_replies_come_in_the_batchers_order(star: Star) -> None:
    (first, first_block), (second, second_block) = star.submit(), star.submit()
    star.reply(4, second, 5, 0, 0, 1)
    assert [reply.number for reply in star.port.poll()] == [second]
    assert star.port.slab.free(second_block.ref) is False
    assert star.port.num_in_flight == 1
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
    assert star.port.num_in_flight == 1


@pytest.mark.parametrize("change", [1, 1 << 20, 1 << 40], ids=["generation", "unit", "owner"])
def test_a_reply_with_a_wrong_reference_has_no_block(star: Star, change: int) -> None:
    number, _ = star.submit()
    answer = star.worker_slab.allocate(4096)
    assert answer is not None
    star.reply(4, number, 0, answer.ref ^ change, 6 << 32 | 4)
    assert star.port.poll() == [Reply(number, 0, 0, None, None)]
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
    assert star.port.poll() == [Reply(number, 0, 0, None, None)]


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
    assert star.port.is_full
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        star.port.allocate(1)
    assert star.port.slab.num_taken == 2
    star.reply(4, first, 5, 0, 0, 1)
    star.port.poll()
    assert not star.port.is_full
    assert len(star.port.allocate(1).memory) == 4096


def test_no_block_left_is_unavailable_and_changes_nothing(star: Star) -> None:
    star.port.allocate(3 * 4096)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        star.port.allocate(1)
    assert (star.port.slab.num_taken, star.port.num_in_flight) == (1, 0)


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
    assert (star.port.num_in_flight, star.port.slab.num_taken) == (1, 1)


# -- several replies to one request -----------------------------------------------------------------------------------


def say(star: Star, number: int, *, more: int, text: bytes = b"") -> int:
    """A reply, with a block of the worker's where there is a text. Returns the block."""
    if not text:
        star.reply(4, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, more)
        return 0
    block = star.worker_slab.allocate(len(text))
    assert block is not None
    block.memory[: len(text)] = text
    star.reply(4, number, 0, block.ref, len(text), 0, 0, 0, 0, 0, 0, 0, more)
    return block.ref


def test_a_request_is_open_until_its_final_reply(star: Star) -> None:
    number, block = star.submit()
    refs = [say(star, number, more=1, text=b"a"), say(star, number, more=1, text=b"b")]
    first, second = star.port.poll()
    assert [(each.header, each.is_final, each.is_empty) for each in (first, second)] == [
        (b"a", False, False),
        (b"b", False, False),
    ]
    assert [first.part, second.part] == refs
    assert (star.port.num_in_flight, star.port.slab.num_taken) == (1, 1)
    say(star, number, more=0)
    (last,) = star.port.poll()
    assert (last.is_final, last.is_empty, last.part, last.block) == (True, True, 0, None)
    assert (star.port.num_in_flight, star.port.slab.num_taken) == (0, 0)
    assert block.ref
    say(star, number, more=1, text=b"late")
    assert star.port.poll() == []


def test_each_reply_s_block_is_released_and_held_on_its_own(star: Star) -> None:
    number, _ = star.submit()
    refs = [
        say(star, number, more=1, text=b"a"),
        say(star, number, more=1, text=b"b"),
        say(star, number, more=0, text=b"c"),
    ]
    first, _, last = star.port.poll()
    assert star.port.counts["replies_held"] == 3
    star.port.release(number, first.part)
    star.port.flush()
    assert [found[:4] for found in star.seen()[1:]] == [(3, number, 0, refs[0])]
    star.port.resubmit()
    held = [(found[3], found[12]) for found in star.seen()]
    assert sorted(held) == sorted([(refs[1], 1), (refs[2], 0)])
    star.port.release(number, last.part)
    star.port.flush()
    assert [found[:4] for found in star.seen()] == [(3, number, 0, 0)]
    assert star.port.counts["replies_held"] == 1


def test_a_part_that_cannot_be_read_is_released_at_once(star: Star) -> None:
    number, _ = star.submit()
    star.port.flush()
    star.seen()
    star.port.remove_segment(9)
    ref = say(star, number, more=1, text=b"a")
    (reply,) = star.port.poll()
    assert (reply.block, reply.is_empty) == (None, False)
    star.port.flush()
    assert [found[:4] for found in star.seen()] == [(3, number, 0, ref)]


@pytest.fixture
def narrow(segment_pair: MakePair) -> Iterator[Star]:
    """One request in flight, the ring for that, and more memory in the worker than may be held."""
    bell = Doorbell.create()
    yield Star(segment_pair, bell, max_in_flight=1, num_records=13, num_blocks=16)
    bell.close()


def test_all_that_may_be_held_can_be_told_to_a_new_batcher(narrow: Star) -> None:
    port = narrow.port
    number, _ = narrow.submit()
    for _ in range(8):
        say(narrow, number, more=1, text=b"a")
        (reply,) = port.poll()
        assert reply.header == b"a"
    port.flush()
    narrow.seen()
    ref = say(narrow, number, more=1, text=b"b")
    (reply,) = port.poll()
    assert (reply.block, reply.reason, reply.is_final, reply.is_empty) == (None, 8, False, False)
    port.flush()
    assert [found[:4] for found in narrow.seen()] == [(3, number, 0, ref)]
    port.trace(number)
    port.cancel(number)
    port.cancel(number)
    port.resubmit()
    assert [found[0] for found in narrow.seen()] == [11, 2, 2, *[9] * 8, 1]


def test_a_client_that_holds_too_much_asks_for_no_more(narrow: Star) -> None:
    port = narrow.port
    number, _ = narrow.submit()
    parts = [say(narrow, number, more=1, text=b"a") for _ in range(8)]
    assert len(port.poll()) == 8
    say(narrow, number, more=0)
    assert port.poll()[0].is_final
    assert (port.num_in_flight, port.num_held, port.is_full) == (0, 8, True)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        port.allocate(1)
    port.release(number, parts[0])
    assert not port.is_full
    port.allocate(1)


def test_what_is_released_without_haste_leaves_room_for_the_rest(narrow: Star) -> None:
    for _ in range(13 - 2):
        assert not narrow.port.is_crowded
        narrow.port.release(7, prompt=False)
        narrow.port.flush()
    assert narrow.port.is_crowded
    assert not narrow.is_rung()
    narrow.port.wake()
    assert narrow.is_rung()

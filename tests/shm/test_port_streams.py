"""shm/port.py: several replies to one request, and what may be held of them."""

from collections.abc import Iterator

import pytest

from shoal.errors import UnavailableError
from shoal.shm.doorbell import Doorbell
from tests.shm.port_star import MakePair, Star


@pytest.fixture
def small(segment_pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Star]:
    """A ring that begins with room for two requests or replies, and no memory for the full one."""
    bell = Doorbell.create()
    star = Star(segment_pair, bell, max_in_flight=1, num_records=28, num_blocks=16, num_small=14)
    monkeypatch.setattr(star.segment, "make_ring_present", lambda: False)
    yield star
    bell.close()


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
    assert (star.port.counts["requests_open"], star.port.slab.num_taken) == (1, 1)
    say(star, number, more=0)
    (last,) = star.port.poll()
    assert (last.is_final, last.is_empty, last.part, last.block) == (True, True, 0, None)
    assert (star.port.counts["requests_open"], star.port.slab.num_taken) == (0, 0)
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


def test_a_small_ring_without_memory_keeps_its_room_while_the_batcher_stands_still(small: Star) -> None:
    port = small.port
    number, _ = small.submit()
    port.flush()
    parts = [say(small, number, more=1, text=b"a") for _ in range(8)]  # as many as its ring takes
    replies = port.poll()
    assert [reply.reason for reply in replies] == [0, 0, *[8] * 6]
    for part in parts[:2]:
        port.release(number, part)
    port.trace(number)
    port.cancel(number)
    port.cancel(number)
    port.flush()
    assert [found[0] for found in small.seen()] == [1, 3, 3, 11, 2, 2]
    released = []
    for _ in range(4):
        port.flush()
        released.append([found[:4] for found in small.seen()])
    assert released == [[(3, number, 0, part) for part in parts[start : start + 2]] for start in (2, 4, 6, 8)]


def test_what_a_small_ring_has_not_released_a_new_batcher_does_not_count_as_held(small: Star) -> None:
    number, _ = small.submit()
    small.port.flush()
    small.seen()
    parts = [say(small, number, more=1, text=b"a") for _ in range(8)]
    assert len(small.port.poll()) == 8
    small.port.resubmit()
    small.port.flush()
    assert [(found[0], found[3]) for found in small.seen()[:2]] == [(9, parts[0]), (9, parts[1])]
    small.port.flush()
    assert small.seen() == []


def test_a_small_ring_is_widened_for_replies_that_are_held(small: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small.segment, "make_ring_present", lambda: True)
    number, _ = small.submit()
    for _ in range(8):
        say(small, number, more=1, text=b"a")
    assert [reply.header for reply in small.port.poll()] == [b"a"] * 8


def test_a_client_that_holds_too_much_asks_for_no_more(narrow: Star) -> None:
    port = narrow.port
    number, _ = narrow.submit()
    parts = [say(narrow, number, more=1, text=b"a") for _ in range(8)]
    assert len(port.poll()) == 8
    say(narrow, number, more=0)
    assert port.poll()[0].is_final
    assert (port.counts["requests_open"], port.num_held, port.has_place(3)) == (0, 8, False)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        port.allocate(1)
    port.release(number, parts[0])
    assert port.has_place(3)
    port.allocate(1)


def test_what_is_released_without_haste_leaves_room_for_the_rest(narrow: Star) -> None:
    for _ in range(13 - 8):
        assert not narrow.port.is_crowded
        narrow.port.release(7, prompt=False)
        narrow.port.flush()
    assert narrow.port.is_crowded
    assert not narrow.is_rung()
    narrow.port.wake()
    assert narrow.is_rung()

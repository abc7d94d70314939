"""Messages out of pieces of any size: small ones in private memory, large ones in blocks, each whole and by itself."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.grpc.framing import prefix
from shoal.frontend.grpc.inbox import (
    SMALL_BYTES,
    Inbox,
    LargeMessage,
    MessageBuffers,
    ReceivedMessage,
    UnfinishedMessages,
)
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.upload_budget import UploadPace
from tests.frontend.lane_star import Star

LARGE = SMALL_BYTES + 1000
PACE = UploadPace(60.0, 100)


@pytest.fixture(scope="module")
def star() -> Star:
    return Star()


def unfinished(kept: KeptMemory | None = None, told: list[int] | None = None) -> UnfinishedMessages:
    """Of a connection."""
    return UnfinishedMessages((lambda _: None) if told is None else told.append, kept or KeptMemory())


def framed(*messages: bytes) -> bytes:
    return b"".join(prefix(len(each)) + each for each in messages)


def taken(star: Star, arrivals: list[ReceivedMessage | LargeMessage]) -> list[bytes]:
    """The messages' bytes; their blocks are given back."""
    messages = []
    for arrival in arrivals:
        assert isinstance(arrival, ReceivedMessage)
        assert not arrival.is_compressed
        messages.append(bytes(arrival.data))
        if arrival.block is not None:
            star.port.slab.free(arrival.block.ref)
    return messages


@given(
    st.lists(st.sampled_from([0, 1, 7, 300, 5000]), max_size=6),
    st.lists(st.integers(0, 6000), max_size=8),
)
def test_messages_come_whole_however_they_are_cut(star: Star, sizes: list[int], cuts: list[int]) -> None:
    messages = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    data = framed(*messages)
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    found: list[bytes] = []
    for start, end in pairwise(sorted({0, len(data), *[cut for cut in cuts if cut < len(data)]})):
        found += taken(star, inbox.feed(data[start:end]))
    assert found == messages
    assert inbox.is_empty


def test_a_large_message_is_received_into_a_block_and_what_follows_is_not(star: Star) -> None:
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    message = bytes(range(256)) * (LARGE // 256)
    data = framed(message, b"next")
    assert inbox.feed(data[:1000]) == []
    assert not inbox.is_empty
    target = inbox.target
    assert target is not None
    assert len(target) == len(message) - (1000 - 5)
    target[:500] = data[1000:1500]
    assert inbox.received_into_target(500) is None
    whole, following = inbox.feed(data[1500:])
    assert isinstance(whole, ReceivedMessage)
    assert whole.block is not None
    assert whole.block.memory[whole.offset : whole.offset + len(message)] == message
    assert taken(star, [whole, following]) == [message, b"next"]
    assert inbox.target is None


def test_a_message_that_lands_directly_is_complete_with_its_last_byte(star: Star) -> None:
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    assert inbox.feed(prefix(LARGE)) == []
    target = inbox.target
    assert target is not None
    target[:] = b"x" * LARGE
    received = inbox.received_into_target(LARGE)
    assert received is not None
    assert taken(star, [received]) == [b"x" * LARGE]


def test_unfinished_messages_take_at_most_half_of_the_slab(star: Star) -> None:
    buffers = MessageBuffers(star.port, PACE)
    free = star.port.counts["blocks_acquired"] - star.port.counts["blocks_released"]
    inboxes = [Inbox(buffers, unfinished()) for _ in range(20)]
    refused = [inbox for inbox in inboxes if inbox.feed(prefix(LARGE) + b"begun")]
    assert 0 < len(refused) < 20
    for inbox in inboxes:
        inbox.close()
    assert star.port.counts["blocks_acquired"] - star.port.counts["blocks_released"] == free
    again = Inbox(buffers, unfinished())
    assert again.feed(prefix(LARGE)) == []  # what they held is there again
    again.close()


def test_a_message_without_a_place_is_named_once_and_its_rest_passed_over(star: Star) -> None:
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    nbytes = star.port.slab.largest_nbytes
    (large,) = inbox.feed(prefix(nbytes) + b"begun")
    assert large == LargeMessage(nbytes, b"begun", is_compressed=False)
    inbox.skip(nbytes - 5)
    left = nbytes - 5
    while left > 30_000:
        assert inbox.feed(bytes(30_000)) == []
        left -= 30_000
    assert taken(star, inbox.feed(bytes(left) + framed(b"next"))) == [b"next"]


def test_a_compressed_message_says_so(star: Star) -> None:
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    (received,) = inbox.feed(prefix(3, is_compressed=True) + b"abc")
    assert isinstance(received, ReceivedMessage)
    assert received.is_compressed
    (large,) = inbox.feed(prefix(LARGE, is_compressed=True))
    assert large == LargeMessage(LARGE, b"", is_compressed=True)


def test_unfinished_small_messages_take_a_share_of_private_memory_then_blocks_then_nothing(star: Star) -> None:
    kept, told, buffers = KeptMemory(2 << 20), list[int](), MessageBuffers(star.port, PACE)
    connection = unfinished(kept, told)
    inboxes = [Inbox(buffers, connection) for _ in range(60)]
    found = [inbox.feed(prefix(20_000) + bytes([number]) * 15_000) for number, inbox in enumerate(inboxes)]
    private = [inbox for inbox, arrivals in zip(inboxes, found, strict=True) if not arrivals and inbox.target is None]
    in_blocks = [inbox for inbox in inboxes if inbox.target is not None]
    assert len(private) == 15  # of 15,005 bytes each: an eighth of what they leave free
    assert kept.nbytes == sum(told) == 15 * 15_005
    assert 0 < len(in_blocks) < 45
    refused = [arrivals for arrivals in found if arrivals]
    assert len(refused) == 45 - len(in_blocks)
    assert isinstance(refused[0][0], LargeMessage)
    another = Inbox(buffers, unfinished(kept))
    assert another.feed(prefix(20_000) + b"begun") == []  # another connection finds room
    for number in (inboxes.index(private[3]), inboxes.index(in_blocks[3])):
        assert taken(star, inboxes[number].feed(bytes([number]) * 5000)) == [bytes([number]) * 20_000]
    for inbox in (*inboxes, another):
        inbox.close()
    assert kept.nbytes == sum(told) == 0


@pytest.mark.parametrize("nbytes", [2000, LARGE])
def test_a_message_has_a_deadline_and_more_time_for_each_byte(star: Star, nbytes: int) -> None:
    """Private memory and a block alike; 1000 bytes take ten seconds at the slowest."""
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    assert inbox.late(0.0) is None
    assert inbox.feed(prefix(nbytes) + bytes(1000 - 5)) == []
    assert inbox.late(100.0) is None
    assert inbox.late(169.9) is None
    assert inbox.feed(bytes(500)) == []
    assert inbox.late(174.9) is None
    error = inbox.late(176.0)
    assert (error is not None, "the message has not come in time: 1" in str(error)) == (True, True)
    inbox.close()
    assert inbox.late(1000.0) is None


def test_messages_that_are_always_in_part_are_not_late_while_they_become_whole(star: Star) -> None:
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    data = framed(*[b"x" * 100] * 50)
    inbox.feed(data[:50])
    for number in range(49):
        assert inbox.late(50.0 * number) is None
        assert len(taken(star, inbox.feed(data[50 + 105 * number : 50 + 105 * (number + 1)]))) == 1
    inbox.close()


def test_a_client_that_is_held_up_by_its_window_is_not_late(star: Star) -> None:
    inbox = Inbox(MessageBuffers(star.port, PACE), unfinished())
    inbox.feed(prefix(2000) + bytes(10))
    assert inbox.late(0.0) is None
    assert inbox.late(500.0, is_held_up=True) is None
    assert inbox.late(559.0) is None
    assert inbox.late(561.0) is not None
    inbox.close()

"""A call's incoming messages: the bytes of small ones are collected in private memory as they come, large ones are
received directly in shared memory.

A client may stop half-way through a message and hold the message's block for as long as its call may take. So the
blocks of all unfinished messages together take at most half of the slab, as the blocks of HTTP's unfinished bodies do:
the other half is for messages that have come whole. One thread, the lane's.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from shoal.errors import UnavailableError
from shoal.frontend.grpc.framing import PREFIX_BYTES
from shoal.frontend.grpc.submission import message_offset
from shoal.frontend.grpc.wire import first_raw_offset
from shoal.frontend.http.submission import HEADER_BYTES
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.upload_budget import UploadPace, UploadTimeoutError
from shoal.shared_settings import SLAB_PARTS
from shoal.shm.port import Port
from shoal.shm.slab import Block
from shoal.star.outgoing import ALIGNMENT

#: A message up to this size is collected in private memory, if there is room, and copied into its block; a larger
#: message is received in its block.
SMALL_BYTES = 48 * 1024
#: The error message for a small message that finds no memory.
NO_ROOM_FOR_UNFINISHED = "too many unfinished messages: the server has no memory left for this connection's"


class ReceivedMessage(NamedTuple):
    """A whole message: in `block`, which the receiver of this object owns, or in private memory if `block` is None."""

    data: bytes | memoryview
    block: Block | None
    offset: int  # in the block
    is_compressed: bool


class LargeMessage(NamedTuple):
    """A message for which the lane has no block. The call itself takes the bytes that follow `begun`, or has the inbox
    `skip` these."""

    nbytes: int
    begun: bytes | memoryview
    is_compressed: bool


Arrival: TypeAlias = ReceivedMessage | LargeMessage


def whole(data: bytes | memoryview) -> ReceivedMessage | None:
    """The message that these bytes are, if they are exactly one uncompressed message; else None."""
    nbytes = len(data)
    if nbytes >= PREFIX_BYTES and data[0] == 0 and int.from_bytes(data[1:PREFIX_BYTES], "big") == nbytes - PREFIX_BYTES:
        return ReceivedMessage(data[PREFIX_BYTES:], None, 0, False)
    return None


class MessageBuffer:
    """The block that a message is received into."""

    __slots__ = ("block", "message", "offset", "received")

    def __init__(self, block: Block, offset: int, nbytes: int) -> None:
        self.block = block
        self.offset = offset
        self.message = block.memory[offset : offset + nbytes]
        self.received = 0

    @property
    def rest(self) -> memoryview:
        """The memory for the bytes that have not come yet."""
        return self.message[self.received :]

    def take(self, data: bytes | memoryview) -> int:
        """Copy received bytes, up to the message's end. Returns how many were copied."""
        taken = min(len(data), len(self.message) - self.received)
        self.message[self.received : self.received + taken] = data[:taken]
        self.received += taken
        return taken


class MessageBuffers:
    """The blocks of all unfinished messages of a lane, and how long a message may take."""

    def __init__(self, port: Port, pace: UploadPace) -> None:
        self._port = port
        self.pace = pace
        self._max_nbytes = port.slab.largest_nbytes // 2
        self._largest_nbytes = port.slab.largest_nbytes // SLAB_PARTS
        #: Private memory that small unfinished messages take.
        self.unfinished = KeptMemory()
        # The fields below are changed by every method.
        self._nbytes = 0

    def is_too_large(self, nbytes: int) -> bool:
        """Whether no block is ever large enough for a message of `nbytes` bytes."""
        return nbytes + ALIGNMENT + HEADER_BYTES > self._largest_nbytes

    def allocate(self, nbytes: int, begun: bytes | memoryview) -> MessageBuffer | None:
        """A block for a message of `nbytes` bytes that starts with `begun`, its first tensor aligned; None if no block
        is free."""
        # The message may be moved so that its first tensor is aligned, and the packed InferRequest goes behind it.
        needed = nbytes + ALIGNMENT + HEADER_BYTES
        if self.is_too_large(nbytes) or self._nbytes + needed > self._max_nbytes:
            return None
        try:
            block = self._port.allocate(needed)
        except UnavailableError:
            return None
        self._nbytes += len(block.memory)
        return MessageBuffer(block, message_offset(first_raw_offset(begun)), nbytes)

    def hand_out(self, target: MessageBuffer) -> None:
        """Stop counting a block whose message is complete: it now belongs to the receiver of the message."""
        self._nbytes -= len(target.block.memory)

    def discard(self, target: MessageBuffer) -> None:
        """Free the block of a message whose rest will not come."""
        self.hand_out(target)
        self._port.slab.free(target.block.ref)


class UnfinishedMessages:
    """The private memory that the unfinished messages of one connection take.

    The bytes kept here count against the connection's window, and a connection gets no more than a share of the memory:
    beyond that its messages are received into blocks, however small they are.
    """

    __slots__ = ("_keep", "_kept", "_nbytes")

    def __init__(self, keep: Callable[[int], None], kept: KeptMemory) -> None:
        """`keep` is called with each change of the bytes, as Http2Connection.keep_received is; `kept` is the memory of
        all connections of a lane."""
        self._keep = keep
        self._kept = kept
        # The fields below are changed by `change`.
        self._nbytes = 0

    def has_room(self, nbytes: int) -> bool:
        """Whether the connection's messages together may take `nbytes` more bytes."""
        return self._kept.has_room(self._nbytes, nbytes)

    def change(self, nbytes: int) -> None:
        """Add to the bytes that all messages together take (negative: subtract)."""
        self._nbytes += nbytes
        self._kept.nbytes += nbytes
        self._keep(nbytes)


class Inbox:
    """The incoming messages of one call; to be closed when no more messages are taken."""

    __slots__ = (
        "_buffer", "_buffers", "_is_open", "_num_begun", "_num_seen", "_num_skipped", "_seen_s", "_target",
        "_unfinished",
    )  # fmt: skip

    def __init__(self, buffers: MessageBuffers, unfinished: UnfinishedMessages) -> None:
        self._buffers = buffers
        self._unfinished = unfinished
        # The fields below are changed by every method.
        self._buffer: bytes | memoryview = b""
        self._target: MessageBuffer | None = None
        self._num_skipped = 0
        self._is_open = True
        # How many messages have begun that did not come in one piece; how many of these had begun when `late` was last
        # called; and when `late` was first called for the last of them.
        self._num_begun = self._num_seen = 0
        self._seen_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no message is incomplete."""
        return not self._buffer and self._target is None and not self._num_skipped

    @property
    def target(self) -> memoryview | None:
        """The memory into which the next bytes may be received directly, followed by `received_into_target`; None if
        there is none."""
        return None if self._target is None else self._target.rest

    def late(self, now_s: float, *, is_held_up: bool = False) -> UploadTimeoutError | None:
        """The error for a message whose rest has not come in time; None while there is time.

        To be called regularly: a message's time counts from the first call after its beginning, or from the last call
        with `is_held_up` (the stream's window keeps the client from sending).
        """
        target = self._target
        if target is None and not self._buffer:
            return None
        if self._num_seen != self._num_begun or is_held_up:
            self._num_seen, self._seen_s = self._num_begun, now_s
        nbytes = len(self._buffer) if target is None else target.received
        pace, seconds = self._buffers.pace, now_s - self._seen_s
        return pace.too_slow("the message", nbytes, seconds) if seconds >= pace.allowed_s(nbytes) else None

    def received_into_target(self, nbytes: int) -> ReceivedMessage | None:
        """Note that `nbytes` bytes were received into `target`. Returns the message if it is complete with these
        bytes."""
        assert self._target is not None
        self._target.received += nbytes
        return self._complete()

    def feed(self, data: bytes | memoryview) -> list[Arrival]:
        """The messages that these bytes complete. After a LargeMessage, no bytes are taken until its rest is
        skipped."""
        arrivals: list[Arrival] = []
        if self._num_skipped:
            skipped = min(self._num_skipped, len(data))
            self._num_skipped -= skipped
            data = data[skipped:]
        if self._target is not None:
            data = data[self._target.take(data) :]
            received = self._complete()
            if received is not None:
                arrivals.append(received)
        buffer = b"".join((self._buffer, data)) if self._buffer else data
        while self._is_open and len(buffer) >= PREFIX_BYTES:
            length = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
            end = PREFIX_BYTES + length
            if len(buffer) >= end:
                arrivals.append(ReceivedMessage(buffer[PREFIX_BYTES:end], None, 0, buffer[0] != 0))
                buffer = buffer[end:]
                continue
            if length > SMALL_BYTES or not self._unfinished.has_room(len(buffer) - len(self._buffer)):
                arrivals += self._begin(length, buffer[PREFIX_BYTES:], is_compressed=buffer[0] != 0)
                buffer = b""
            break
        if not self._is_open:
            return arrivals
        if buffer and (arrivals or not self._buffer):
            self._num_begun += 1
        if len(buffer) != len(self._buffer):
            self._unfinished.change(len(buffer) - len(self._buffer))
        self._buffer = bytes(buffer)
        return arrivals

    def _begin(self, length: int, begun: bytes | memoryview, *, is_compressed: bool) -> list[LargeMessage]:
        self._target = None if is_compressed else self._buffers.allocate(length, begun)
        if self._target is None:
            return [LargeMessage(length, bytes(begun), is_compressed)]
        self._num_begun += 1
        self._target.take(begun)
        return []

    def _complete(self) -> ReceivedMessage | None:
        target = self._target
        if target is None or target.received < len(target.message):
            return None
        self._target = None
        self._buffers.hand_out(target)
        return ReceivedMessage(target.message, target.block, target.offset, is_compressed=False)

    def skip(self, nbytes: int) -> None:
        """Ignore the `nbytes` bytes that are still to come of a LargeMessage."""
        self._num_skipped = nbytes

    def close(self) -> None:
        """Accept no more bytes, and free the memory of an unfinished message."""
        self._is_open = False
        self._unfinished.change(-len(self._buffer))
        self._buffer = b""
        if self._target is not None:
            self._buffers.discard(self._target)
            self._target = None

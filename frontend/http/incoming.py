"""Large bodies, received straight into a block of shared memory as fast as their clients send. For the lane.

A client may stop half-way and hold its block for as long as a body may take. So the blocks of all unfinished bodies
together take at most half of the slab: the other half is for bodies that have come whole. One thread, the lane's.
"""

from typing import NamedTuple

from shoal.errors import UnavailableError
from shoal.frontend.http.connection import READING, RECEIVING, HttpConnection
from shoal.frontend.http.http_head import Head
from shoal.frontend.http.lane_api import Place
from shoal.frontend.lane_loop import HEAD_S
from shoal.shm.port import Port
from shoal.shm.slab import Block

#: Seconds that a body may take per MiB, beside the time for its head.
BODY_S_PER_MIB = 1.0


class ReceivedBody(NamedTuple):
    """The received part of a body and its block, which is the receiver's now."""

    head: Head
    block: Block
    body: memoryview

    @property
    def is_complete(self) -> bool:
        """Whether the client sent as many bytes as it had announced."""
        return len(self.body) == self.head.content_length


class Incoming:
    """Unfinished bodies of all connections of a lane."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._max_nbytes = port.slab.largest_nbytes // 2
        # Changed by every method.
        self._nbytes = 0

    def begin(
        self, connection: HttpConnection, head: Head, place: Place, begun: memoryview, now_s: float, model: int
    ) -> bool:
        """Begin to receive a body for a model, of which `begun` has come. False, and no effect, if there is no room."""
        offset, length = place.offset, head.content_length
        nbytes = offset + length + place.header_nbytes  # the request's header goes behind the body
        if self._nbytes + nbytes > self._max_nbytes:
            return False
        try:
            block = self._port.allocate(nbytes, model)
        except UnavailableError:
            return False
        self._nbytes += len(block.memory)
        received = len(begun)
        block.memory[offset : offset + received] = begun
        connection.stage = RECEIVING
        connection.head, connection.block = head, block
        connection.body_start, connection.received = offset, received
        connection.target = block.memory[offset + received : offset + length]
        connection.buffer = b""
        connection.deadline_s = now_s + HEAD_S + BODY_S_PER_MIB * (length >> 20)
        return True

    def receive(self, connection: HttpConnection) -> ReceivedBody | None:
        """Receive more of a body. Returns the body once it is complete or its client has ended, None before."""
        while True:
            received = connection.receive()
            if received < 0:
                return None
            assert connection.target is not None
            connection.received += received
            connection.target = connection.target[received:]
            if received == 0 or not connection.target:
                break
        head, block = connection.head, connection.block
        assert isinstance(head, Head)
        assert isinstance(block, Block)
        self._end(connection, block)
        connection.stage = READING
        offset = connection.body_start
        return ReceivedBody(head, block, block.memory[offset : offset + connection.received])

    def take_back(self, connection: HttpConnection) -> bytes:
        """The bytes of a request whose body has not come whole, head included. Its block is freed."""
        head, block = connection.head, connection.block
        assert isinstance(head, Head)
        assert isinstance(block, Block)
        start = connection.body_start
        begun = b"".join((head.raw, block.memory[start : start + connection.received]))
        self.release(connection)
        connection.stage = READING
        return begun

    def release(self, connection: HttpConnection) -> None:
        """Free the block of a connection that ends, if it was receiving a body."""
        block = connection.block
        if isinstance(block, Block):
            self._end(connection, block)
            self._port.slab.free(block.ref)

    def _end(self, connection: HttpConnection, block: Block) -> None:
        self._nbytes -= len(block.memory)
        connection.target = connection.block = connection.head = None

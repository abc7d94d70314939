"""Requests that have not come whole: where a lane keeps their bytes, how many bytes, and for how long.

A large body is received straight into a block of shared memory as fast as its client sends. A client may stop half-way
and hold the block for as long as a body may take. So the blocks of all unfinished bodies together take at most half of
the slab: the other half is for bodies that have come whole. A body without room waits in its socket, unread. A head and
a small body are collected in private memory, which is bounded, too. One thread, the lane's, which passes the time to
each method that needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shoal.errors import UnavailableError
from shoal.frontend.http.connection import READING, RECEIVING, HttpConnection
from shoal.frontend.http.http_head import Head
from shoal.frontend.http.lane_api import Place
from shoal.frontend.lane_loop import HEAD_S
from shoal.shm.port import Port
from shoal.shm.slab import Block

#: Seconds per MiB that a body may take, beside the seconds that its head may take.
BODY_S_PER_MIB = 1.0


class ReceivedBody(NamedTuple):
    """The received part of a body and the block in which it lies; the code that gets this object has to free it."""

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
        # The fields below are changed by every method.
        self._nbytes = 0

    def begin(
        self, connection: HttpConnection, head: Head, place: Place, begun: memoryview, now_s: float, model: int
    ) -> bool:
        """Begin to receive a body for a model; `begun` are the bytes of the body that have come. False, and no effect,
        if there is no room."""
        offset, length = place.offset, head.content_length
        nbytes = offset + length + place.header_nbytes  # with room for the packed InferRequest behind the body
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
        """Receive more of a body. Returns the body once it is complete or its client has closed the sending side, and
        None until then."""
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
        """The bytes of a request whose body has not come whole, head included. The body's block is freed."""
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


#: Seconds that a body waits for room while no waiting body finds any, and the most seconds that it waits in all (ours:
#: where stalled clients or models hold all room, only one body waits PATIENCE_S in vain, and later ones take the road
#: at once).
PATIENCE_S, LONGEST_S = 0.1, 1.0
#: Most bodies that wait (ours). The kernel keeps what their clients have sent meanwhile, a few MB for each.
MAX_WAITING = 64


@dataclass(frozen=True, slots=True)
class WaitingBody:
    """A body that waits for room. `data` are the bytes of its request that have been read, from the head on."""

    connection: HttpConnection
    head: Head
    data: bytes
    begun_at: int  # where in `data` the body begins
    since_s: float


class WaitingBodies:
    """The large bodies of one lane that wait for room, in the order in which they came, as long as waiting bodies keep
    finding room.

    Half of a lane's slab takes two bodies of 10 MB. On the road a body always finds room, but there it passes through
    private memory and gets a segment that the supervisor makes for it. So a body waits here first, and takes the road
    when no body finds room. Once a body has waited in vain, others take the road at once, until a body finds room
    again.
    """

    def __init__(self, begin: Callable[[WaitingBody], bool]) -> None:
        """`begin` begins to receive a body. Returns False, and changes nothing, where there is no room for it."""
        self._begin = begin
        # The fields below are changed by begin, add, forget and look.
        self.bodies: dict[HttpConnection, WaitingBody] = {}
        self._moved_s = 0.0  # when a waiting body last found room
        self._is_vain = False  # whether a body has waited in vain since a body last found room

    def begin(self, body: WaitingBody) -> bool:
        """Begin to receive a body that has just come. False, and no effect, where others wait or there is no room."""
        if self.bodies or not self._begin(body):
            return False
        self._is_vain = False
        return True

    def add(self, body: WaitingBody) -> bool:
        """Let a body wait. False, and no effect, where too many wait, or a body has waited in vain and no body has
        found room since."""
        if self._is_vain or len(self.bodies) >= MAX_WAITING:
            return False
        self.bodies[body.connection] = body
        return True

    def forget(self, connection: HttpConnection) -> None:
        self.bodies.pop(connection, None)

    def look(self, now_s: float) -> tuple[list[WaitingBody], list[WaitingBody]]:
        """Two lists: the bodies that have found room now, and the bodies whose wait is over without room."""
        begun = [body for body in list(self.bodies.values()) if self._begin(body)]
        if begun:
            self._moved_s, self._is_vain = now_s, False
        for body in begun:
            del self.bodies[body.connection]
        given_up = [body for body in self.bodies.values() if self._is_over(body, now_s)]
        for body in given_up:
            del self.bodies[body.connection]
        self._is_vain = self._is_vain or bool(given_up)
        return begun, given_up

    def _is_over(self, body: WaitingBody, now_s: float) -> bool:
        return now_s - max(body.since_s, self._moved_s) >= PATIENCE_S or now_s - body.since_s >= LONGEST_S


#: Seconds that a small body may take on the lane, from the request's first byte on (ours: an honest client sends it
#: with its head, or within a round trip of it).
BODY_S = 2.0
#: Bytes that the beginnings of all requests may take in a lane (ours: 280 of the largest beginnings, of 48 KiB and a
#: head).
MAX_UNFINISHED_BYTES = 16 << 20


class UnfinishedRequests:
    """The beginnings of requests, in private memory, on all connections of a lane.

    A body that does not come within BODY_S, and any request for whose bytes there is no room, takes the road: there all
    uploads share the memory of --max-upload-mib, and have the deadline of --upload-timeout-secs.
    """

    def __init__(self, most_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._most_bytes = most_bytes
        #: Bytes that are counted. Changed by every method.
        self.nbytes = 0

    def keep(self, connection: HttpConnection, data: bytes, patience_s: float) -> bool:
        """Keep the beginning of a request until more of it comes, for at most `patience_s` from its first byte on:
        further bytes give the request no more time. False, and no effect, if there is no room."""
        if self.nbytes + len(data) > self._most_bytes:
            return False
        connection.buffer = data
        connection.num_counted = len(data)
        self.nbytes += len(data)
        connection.deadline_s = min(connection.deadline_s, connection.begun_s + patience_s)
        return True

    def release(self, connection: HttpConnection) -> None:
        """Stop counting a connection's bytes: more have come, or the connection leaves the lane."""
        self.nbytes -= connection.num_counted
        connection.num_counted = 0

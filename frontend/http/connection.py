"""One HTTP connection of a lane: bytes read and bytes to be sent. The code here deals with sockets only, and knows
nothing of requests.

Its stages: READING a head and a small body into private memory, QUEUED until there is room for a large body, RECEIVING
it into a block, WAITING for a reply, SENDING bytes that the socket has not taken yet, STREAMING responses as they come.
The lane changes the stage; nothing here blocks.
"""

from enum import IntEnum
from socket import socket as Socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shoal.frontend.access_log import HttpExchange
    from shoal.frontend.http.http_head import Head
    from shoal.frontend.http.templates import KnownRequest
    from shoal.frontend.tracing import TracedRequest

#: Most bytes of one read: a head and a small body come in one piece.
READ_BYTES: Final = 64 * 1024

#: Most chunks of one sendmsg; the kernel takes 1024.
MAX_CHUNKS: Final = 512

Chunks = list["bytes | bytearray | memoryview"]


class ConnectionStage(IntEnum):
    """The stage of the exchange on a connection."""

    READING = 0
    RECEIVING = 1
    WAITING = 2
    SENDING = 3
    STREAMING = 4
    QUEUED = 5


# The stages as names of the module, since each access to an attribute of the enumeration takes 900 instructions.
READING: Final[ConnectionStage] = ConnectionStage.READING
RECEIVING: Final[ConnectionStage] = ConnectionStage.RECEIVING
WAITING: Final[ConnectionStage] = ConnectionStage.WAITING
SENDING: Final[ConnectionStage] = ConnectionStage.SENDING
STREAMING: Final[ConnectionStage] = ConnectionStage.STREAMING
QUEUED: Final[ConnectionStage] = ConnectionStage.QUEUED


class HttpConnection:
    """A socket, non-blocking, and the state of the exchange on it."""

    __slots__ = (
        "api", "begun_s", "block", "body_start", "buffer", "deadline_s", "exchange", "fd", "head", "is_quiet",
        "keep_alive", "known", "last_head", "num_counted", "num_missed", "number", "received", "release", "socket",
        "stage", "target", "trace", "unsent",
    )  # fmt: skip

    def __init__(self, connection: Socket, now_s: float, deadline_s: float, api: Any = None) -> None:
        self.socket = connection
        self.fd = connection.fileno()
        self.api = api  # the LaneApi of the port that the client connected to (lane_api.py); None in tests
        # All changed by the lane.
        self.stage = READING
        self.buffer = b""  # bytes read and not used yet: the beginning of a request, or the next request
        self.num_counted = 0  # bytes of `buffer` that the lane counts as those of unfinished requests
        self.begun_s = now_s  # when the first bytes of the present request came
        self.deadline_s = deadline_s
        self.keep_alive = True
        self.is_quiet = False  # whether the lane does not wait for further bytes of the client
        self.head: object = None
        # A known request is one that a template fits.
        self.last_head: Head | None = None  # the head of the last request that no template fitted
        self.known: KnownRequest | None = None  # the template of the last known request
        self.num_missed = 0  # inferences that no template fitted since the last known request
        self.block: object = None  # the block that a body is received into
        self.target: memoryview | None = None  # memory for the rest of the body in `block`
        self.body_start = 0  # where in the block the body starts
        self.received = 0
        self.number = 0  # number of the request whose reply the connection waits for
        self.unsent: Chunks = []
        self.release = 0  # the reply whose block is to be released once everything is sent; 0: none
        #: The request's part of the access log, from the request's head on until its response has left; None without
        #: that log.
        self.exchange: HttpExchange | None = None
        self.trace: TracedRequest | None = None  # the trace of the request in progress, if it is traced

    def close_by(self, deadline_s: float) -> None:
        """Have an idle connection closed at `deadline_s`, if not before; one whose request has begun keeps its own
        deadline."""
        if self.stage is READING and not self.buffer:
            self.deadline_s = min(self.deadline_s, deadline_s)

    def read(self) -> bytes | None:
        """Received bytes; b"" at the end of the stream, None if there are none now."""
        try:
            return self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def receive(self) -> int:
        """Receive into `target`. Returns the number of bytes, 0 at the end of the stream, -1 if there are none now."""
        assert self.target is not None
        try:
            return self.socket.recv_into(self.target)
        except BlockingIOError:
            return -1
        except OSError:
            return 0

    def send(self, chunks: Chunks, nbytes: int) -> bool:
        """Send all `nbytes`, and keep in `unsent` the bytes that the socket does not take. False if the client is
        gone."""
        try:
            sent = self.socket.sendmsg(chunks[:MAX_CHUNKS]) if len(chunks) > 1 else self.socket.send(chunks[0])
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent == nbytes:
            self.unsent = []
            return True
        for index, chunk in enumerate(chunks):
            if sent < len(chunk):
                self.unsent = [chunk[sent:], *chunks[index + 1 :]]
                return True
            sent -= len(chunk)
        return True

    @property
    def num_unsent(self) -> int:
        return sum(map(len, self.unsent))

    def keep_unsent(self) -> None:
        """Copy the unsent bytes, so that the block in which they lie can be released."""
        self.unsent = [bytes(chunk) for chunk in self.unsent]

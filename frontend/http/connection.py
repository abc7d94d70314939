"""One HTTP connection of a lane: what was read and what is to be sent. Sockets only; knows no requests.

Its life: READING a head and a small body into private memory, RECEIVING a large body into a block, WAITING for a reply,
SENDING what the socket has not taken yet. The lane moves it; nothing here blocks.
"""

from enum import IntEnum
from socket import socket as Socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.frontend.tracing import TracedRequest

#: Most bytes of one read: a head and a small body come in one piece.
READ_BYTES = 64 * 1024

#: Most chunks of one sendmsg; the kernel takes 1024.
MAX_CHUNKS = 512

Chunks = list["bytes | memoryview"]


class ConnectionStage(IntEnum):
    """What a connection is doing."""

    READING = 0
    RECEIVING = 1
    WAITING = 2
    SENDING = 3


# Looked up in its enumeration, a member takes 0.9k instructions.
READING, RECEIVING, WAITING, SENDING = ConnectionStage


class HttpConnection:
    """A socket, non-blocking, and the state of the exchange on it."""

    __slots__ = (
        "begun_s", "block", "buffer", "deadline_s", "fd", "head", "is_quiet", "keep_alive", "number", "prefix_nbytes",
        "received", "release", "socket", "stage", "target", "trace", "unsent",
    )  # fmt: skip

    def __init__(self, connection: Socket, now_s: float, deadline_s: float) -> None:
        self.socket = connection
        self.fd = connection.fileno()
        # All changed by the lane.
        self.stage = READING
        self.buffer = b""  # read and not used: the beginning of a request, or the next one
        self.begun_s = now_s  # when the first bytes of a request came
        self.deadline_s = deadline_s
        self.prefix_nbytes = 0  # of the last request: its head and its JSON, in front of binary tensors
        self.keep_alive = True
        self.is_quiet = False  # its readiness to be read is not looked at
        self.head: object = None
        self.block: object = None  # the block a body is received into
        self.target: memoryview | None = None  # the rest of that body's place
        self.received = 0
        self.number = 0  # of the request that is waited for
        self.unsent: Chunks = []
        self.release = 0  # the reply to release once everything is sent
        self.trace: TracedRequest | None = None  # of the request that is waited for or answered, where it is traced

    def read(self) -> bytes | None:
        """The bytes that have come; b"" at the end of the stream, None if there are none."""
        try:
            return self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def receive(self) -> int:
        """Receive into `target`; the number of bytes, 0 at the end of the stream, -1 if there are none."""
        assert self.target is not None
        try:
            return self.socket.recv_into(self.target)
        except BlockingIOError:
            return -1
        except OSError:
            return 0

    def send(self, chunks: Chunks, nbytes: int) -> bool:
        """Send all `nbytes`, and keep in `unsent` what the socket does not take. False if the client is gone."""
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
        """Bytes the socket has not taken yet."""
        return sum(map(len, self.unsent))

    def keep_unsent(self) -> None:
        """Copy what is unsent out of the worker's block."""
        self.unsent = [bytes(chunk) for chunk in self.unsent]

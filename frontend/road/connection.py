"""A connection of the road, with gunicorn's parser, which reads the bytes that the event loop has collected, and never
the socket.

So gunicorn decides where each request ends. If gunicorn wants more bytes than were collected, the request ends there,
and so does the connection (`ReceivedBytes.is_short`): later bytes cannot be taken for another request.
"""

# The type hints that pyright brings for gunicorn are of an older version.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportArgumentType=false
# pyright: reportIncompatibleMethodOverride=false

import socket
from collections import deque
from typing import Any

from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import ParseException
from gunicorn.http.message import Request
from gunicorn.http.unreader import Unreader
from gunicorn.workers.gthread import TConn

from shoal.frontend.addressed_sockets import RelayedSocket, UnixConnection
from shoal.frontend.road.arrival import Arrival
from shoal.frontend.road.work import Work

#: Small pieces of a body are joined to pieces of this size, which are freed one by one as they are parsed.
PIECE_BYTES = 256 * 1024


class SpelledRequest(Request):  # type: ignore[misc]  # gunicorn has no type hints
    """gunicorn's request, which also keeps its head as the client spelled it: gunicorn turns the names of fields
    into capitals. `Expect: 100-continue` is answered by the event loop, not by gunicorn."""

    def parse(self, unreader: Any) -> bytes:
        """Parse a head as gunicorn does, and keep in `head` the bytes that it consumed."""
        read = unreader.read
        pieces: list[bytes] = []

        def keeping(*arguments: Any) -> bytes:
            piece: bytes = read(*arguments)
            pieces.append(piece)
            return piece

        self._expected_100_continue = False
        unreader.read = keeping
        try:
            unused: bytes = super().parse(unreader)
        finally:
            del unreader.read
        # gunicorn answers with the request's version; a server's is the highest that it has of that major version (RFC
        # 9110, 2.5).
        self.version: tuple[int, int] | None = min(self.version or (1, 1), (1, 1))
        self.head = b"".join(pieces).removesuffix(unused)
        self.expects_continue: bool = self._expected_100_continue
        self._expected_100_continue = False
        return unused

    def should_close(self) -> bool:
        """Whether the connection ends with this request: gunicorn alone does not find a `close` beside other options,
        as in `TE, close` (RFC 9112, section 9.3)."""
        fields = [value for name, value in self.headers if name == "CONNECTION"]
        options = {option.strip(" \t").lower() for option in ",".join(fields).split(",")}
        return "close" in options or bool(super().should_close())


class ReceivedBytes(Unreader):  # type: ignore[misc]
    """The bytes of a connection that were received and not parsed yet. One thread at a time."""

    #: Bytes that gunicorn gets at once while it parses a head (gunicorn's own number).
    HEAD_BYTES = 8192

    def __init__(self) -> None:
        super().__init__()
        # Changed as bytes come and are parsed: the received bytes that are not parsed yet, in order.
        self._pieces: deque[bytearray] = deque()
        self.is_short = False  # whether gunicorn has wanted more bytes than had been collected

    def push(self, data: bytes) -> None:
        if self._pieces and len(self._pieces[-1]) + len(data) <= PIECE_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def chunk(self, size_hint: int | None = None) -> bytes:
        """The next bytes, at most HEAD_BYTES or as many as gunicorn asks for, if those are more; b"" if there are none,
        which gunicorn takes for the end of the stream."""
        if not self._pieces:
            self.is_short = True
            return b""
        wanted = max(size_hint or 0, self.HEAD_BYTES)
        first = self._pieces[0]
        if len(first) <= wanted:
            return bytes(self._pieces.popleft())
        taken = bytes(first[:wanted])
        del first[:wanted]
        return taken

    def peek(self) -> bytes:
        """All bytes that were not parsed yet; they are not removed."""
        return b"".join(self._pieces)

    def take_rest(self) -> bytes:
        """Remove and return all bytes that were not parsed: the next request, or its beginning."""
        rest = b"".join([self.take_buffered(), *self._pieces])
        self._pieces.clear()
        return rest


class RoadConnection(TConn):  # type: ignore[misc]
    """A connection as gunicorn's threads use it. `is_lent`: a lane has handed it over, and gets it back when it is
    idle."""

    def __init__(self, cfg: Any, accepted: socket.socket, client: Any, server: Any, *, is_lent: bool) -> None:
        super().__init__(cfg, accepted, client, server)
        self.is_lent = is_lent
        self.is_tunnel = is_of_lane(accepted)
        self.address = client[0] if isinstance(client, tuple) else ""
        self.received = ReceivedBytes()
        # All of these are changed by the event loop (uploads.py, road.py).
        self.arrival: Arrival | None = None
        self.begun_s = 0.0  # when the first byte of the request came
        self.deadline_s = 0.0
        self.queued_s = 0.0  # when the request had been received, whole or cut short
        self.work, self.group = Work.REQUEST, ""  # the request's kind of work, and the group it shares threads with
        self.body_nbytes = 0  # of the request
        self.init()
        self.parser.unreader = self.received
        self.parser.mesg_class = SpelledRequest


def is_of_lane(accepted: socket.socket) -> bool:
    """Whether a connection is one end of a socket pair whose other end a gRPC lane has, for a call that the lane passes
    on, or for the lane's questions about keys (admissions.py)."""
    return accepted.family == socket.AF_UNIX and not isinstance(accepted, RelayedSocket | UnixConnection)


class ParsedHead(Unreader):  # type: ignore[misc]
    """The head of a request as gunicorn reads it, and how its body is framed. Raises ParseException if gunicorn refuses
    it."""

    def __init__(self, head: bytes, connection: RoadConnection) -> None:
        super().__init__()
        self.buf.write(head)
        request: Any = SpelledRequest(connection.cfg, self, connection.client)
        self.method: str = request.method
        self.target: str = request.uri
        self.headers: dict[str, str] = {name.lower(): value for name, value in request.headers}
        self.expects_continue: bool = request.expects_continue
        reader = request.body.reader
        #: Bytes of the body, or None if it is chunked.
        self.length: int | None = None if isinstance(reader, ChunkedReader) else reader.length

    def chunk(self, size_hint: int | None = None) -> bytes:
        """Nothing: all of the head is in the buffer."""
        del size_hint
        return b""


def parsed(head: bytes, connection: RoadConnection) -> ParsedHead | None:
    """The head of a request; None if gunicorn refuses it."""
    try:
        return ParsedHead(head, connection)
    except (ParseException, OSError, StopIteration):
        return None

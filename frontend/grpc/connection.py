"""A client's connection to a gRPC lane: its socket, its HTTP/2 state, its calls, and its unsent output."""

import socket
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Final

from shoal.frontend.access_log import GrpcCalls, address_of
from shoal.frontend.grpc.call import OpenCall, Opening, RefusedCall, Service
from shoal.frontend.grpc.framing import (
    HEADERS,
    IDENTITY,
    OK,
    PREFIX_BYTES,
    headers,
    only_trailers,
    prefix,
    trailers,
    with_timing,
)
from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.frames import ResponseHeaderBlocks
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.streams import Queue, Stream
from shoal.frontend.grpc.inbox import UnfinishedMessages
from shoal.frontend.grpc.known_call import KnownCall
from shoal.frontend.grpc.submission import MessageTemplate, RegionTemplate
from shoal.frontend.http.responses import JOIN_BYTES
from shoal.frontend.kept_memory import HOLD_S, KeptMemory, ReadRate, slow_reader_log
from shoal.frontend.v2.compression import deflate
from shoal.shm.port import Port

READ_BYTES: Final = 64 * 1024
#: The most bytes of one read in the middle of a large message: many frames, since most clients cut messages into frames
#: of 16 KiB.
LARGE_READ_BYTES: Final = 512 * 1024
#: The most pieces of memory in one sendmsg, two for each frame; the kernel takes up to 1024.
_MAX_PIECES = 256
#: Bytes of whole responses that may wait behind a connection's unsent output even while the lane's memory for unread
#: bytes is full (ours).
_LEAST_BEHIND_BYTES: Final = 1024 * 1024
_RESOURCE_EXHAUSTED = 8
_BLOCKS: Final = ResponseHeaderBlocks.of(HEADERS, OK)

Socket = socket.socket
#: The name of the reply in whose block a piece of output lies: the request's number, and which of the request's replies
#: it is.
Token = tuple[int, int]


class GrpcConnection:
    """One client's connection. Responses are queued, and leave with `flush`."""

    __slots__ = (
        "_behind", "_behind_bytes", "_counted_bytes", "_filled_s", "_kept", "_own_unsent_bytes", "_released", "_tokens",
        "_waiting_bytes", "access", "age_ends_s", "begun_s", "calls", "ends_s", "fd", "has_target", "headers", "http2",
        "is_blocked", "is_dirty", "is_ending", "is_late", "is_shut", "is_slow", "known", "opening", "peer", "pinged_s",
        "progress_s", "service", "silent_until_s", "socket", "template", "unfinished", "unsent",
    )  # fmt: skip

    def __init__(
        self,
        accepted: Socket,
        limits: Limits,
        now_s: float,
        released: Callable[[Token], None],
        kept: KeptMemory,
        unfinished: KeptMemory,
        service: Service,
    ) -> None:
        self.service = service
        self.socket = accepted
        self.fd = accepted.fileno()
        self.peer = address_of(accepted)
        self.http2 = Http2Connection(limits, now_s)
        self.unfinished = UnfinishedMessages(self.http2.keep_received, unfinished)
        self._released = released
        self._kept = kept
        self.access: GrpcCalls | None = None  # set by the lane: this connection's calls, for the access log
        # The fields below are changed by the lane and by calls.
        self.calls: dict[int, OpenCall] = {}
        self.headers: Mapping[str, str] | None = None  # the headers of the last call; equal headers are one object
        self.opening: Opening | RefusedCall | bytes = b""  # the result of parsing `headers`
        self.known: KnownCall | None = None  # the template by which the last calls were recognised
        #: The request template of the last call that was not of the template `known`.
        self.template: MessageTemplate | RegionTemplate | None = None
        self.has_target = False  # whether some call may have a `target`
        self.unsent: deque[bytes | memoryview] = deque()
        self._tokens: list[Token] = []  # replies in whose blocks pieces of `unsent` lie
        self._filled_s = now_s  # when `unsent` was filled last
        self._own_unsent_bytes = 0  # bytes of `unsent` once it is copied into our own memory; 0 before that
        self._behind_bytes = 0  # bytes of whole responses, which are copies, that wait for `unsent` to be sent
        self._waiting_bytes = 0  # bytes of copied answers that wait for earlier answers
        self._counted_bytes = 0  # this connection's bytes in the lane's count of kept bytes
        self.is_late = self.is_slow = False  # since the client last read all: responses lay unread long, were cut
        self._behind: dict[int, ReadRate] = {}  # streams for whose copies there was no room at the last check
        self.is_dirty = False  # whether there is output to be sent at the end of this pass
        self.is_ending = False  # whether no further calls are taken
        self.is_shut = False  # whether the sending side of the socket is closed
        self.is_blocked = False  # whether the socket is full; the loop waits until it takes more
        self.begun_s = now_s  # when bytes of the client came last
        self.progress_s = now_s  # when the socket took bytes last, or there were none to send
        self.silent_until_s = 0.0  # when a client that has sent nothing is disconnected; 0: it has sent bytes
        self.pinged_s = 0.0  # when the ping was sent whose answer is missing; 0: no answer is missing
        self.age_ends_s = 0.0  # when the connection has reached its maximum age; 0: never
        self.ends_s = 0.0  # when the connection is closed in any case; 0: never

    @property
    def is_over(self) -> bool:
        """Whether the unsent output is the connection's last."""
        return self.http2.is_failed or self.http2.is_drained

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the client has not read and that are kept in this process's own memory."""
        queued_bytes = max(self.http2.num_queued - self.http2.lent_bytes, 0)
        return queued_bytes + self._own_unsent_bytes + self._behind_bytes + self._waiting_bytes

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more bytes may be kept until the client reads them."""
        return self._kept.has_room(self.kept_bytes, nbytes)

    # --- bytes in and out ---

    def read(self) -> bytes | None:
        """Received bytes; b"" at the end of the connection, None if there are none now."""
        try:
            return self.socket.recv(LARGE_READ_BYTES if self.has_target else READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def read_into(self, buffers: list[memoryview]) -> int:
        """Receive directly into buffers. Returns the number of bytes, 0 at the end of the connection, -1 if there are
        none now."""
        try:
            return self.socket.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return -1
        except OSError:
            return 0

    def flush(self, now_s: float) -> bool:
        """Send output as far as the socket takes it. False if the client is gone, or sends requests without reading
        responses while the lane keeps as many bytes for its clients as it may."""
        self.is_dirty = False
        unsent, http2 = self.unsent, self.http2
        if not unsent:
            piece = http2.small_output()
            if piece and self._send_only(piece):  # the usual case
                self.progress_s = now_s
                return True
        before = len(unsent)
        while True:
            if not unsent:
                pieces, self._tokens = http2.output()
                unsent.extend(pieces)
                self._filled_s, self._own_unsent_bytes, self._behind_bytes = now_s, 0, 0
            if not self._send():
                return False
            if unsent or not http2.has_output:
                break
        if len(unsent) < before or not unsent:
            self.progress_s = now_s
        if unsent:  # whole small responses wait here, in no stream's queue, for a client that does not read
            self._behind_bytes += http2.join_waiting()
        else:
            self._own_unsent_bytes = 0
        if http2.num_queued or self._counted_bytes or self._behind_bytes:
            self._count()
        return self._behind_bytes <= _LEAST_BEHIND_BYTES or self._kept.fits(0)

    def _send_only(self, piece: bytes) -> bool:
        """Send a piece that is the whole output. False if some of it is unsent."""
        try:
            sent = self.socket.send(piece)
        except OSError:  # the next attempt raises the error again
            sent = 0
        if sent == len(piece):
            return True
        self.unsent.append(memoryview(piece)[sent:])
        return False

    def shut(self) -> None:
        self.is_shut = True
        with suppress(OSError):  # the client is gone already
            self.socket.shutdown(socket.SHUT_WR)

    def _send(self) -> bool:
        """Send until the socket takes no more, or all is sent. False if the client is gone."""
        unsent = self.unsent
        while unsent:
            pieces = list(islice(unsent, _MAX_PIECES))
            try:
                sent = self.socket.sendmsg(pieces)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if len(unsent) <= _MAX_PIECES and sent == sum(map(len, pieces)):  # all is sent, the usual case
                unsent.clear()
            else:
                self._drop(sent)
        self._release(self._tokens)
        return True

    def _release(self, tokens: list[Token]) -> None:
        """Release the replies of these tokens: no piece of `unsent` needs their blocks any more."""
        self._release_all(tokens)
        self._tokens = []

    def _release_all(self, tokens: list[Token]) -> None:
        for token in tokens:
            self._released(token)

    def _drop(self, nbytes: int) -> None:
        unsent = self.unsent
        while unsent:
            first = unsent[0]
            if nbytes >= len(first):
                nbytes -= len(first)
                unsent.popleft()
            else:
                if nbytes:
                    unsent[0] = memoryview(first)[nbytes:]
                return

    def _count(self) -> None:
        """Bring the lane's count of kept bytes up to date with those of this connection."""
        nbytes = self.kept_bytes
        self._kept.nbytes += nbytes - self._counted_bytes
        self._counted_bytes = nbytes
        if not self.http2.num_queued:  # the client has read all
            self.is_late = self.is_slow = False

    # --- what the client does not read ---

    def relieve(self, now_s: float) -> list[int]:
        """Release the workers' blocks with responses that the client has left unread for HOLD_S, as far as there is
        room for copies.

        Returns the numbers of the streams to `cut`: there is no room for copies of their responses, and the client
        reads them too slowly.
        """
        then_s, behind, slow = now_s - HOLD_S, dict[int, ReadRate](), list[int]()
        if self.unsent and self._filled_s < then_s:
            self._keep_unsent()
        left_bytes = self._kept.share_bytes - self.kept_bytes
        for stream, queue in self.http2.streams.lent_before(now_s) if self.http2.lent_bytes else ():
            if queue.is_lent_before(then_s):
                self.is_late = True
                self._keep(stream)
            left_bytes -= queue.nbytes
            if queue.num_lent and left_bytes < 0:
                behind[stream.number] = pace = self._behind.get(stream.number) or ReadRate()
                if pace.is_slow(now_s, queue.num_taken):
                    slow.append(stream.number)
        self._behind = behind
        self._count()
        return slow

    def recall(self, is_wanted: Callable[[Token], bool]) -> list[tuple[float, Stream]]:
        """Release the workers' blocks that are wanted back, as far as there is room for copies.

        Returns the streams for whose copies there is no room, each with the time since which its responses wait to be
        read.
        """
        if self.unsent:
            self._keep_unsent()
            self._count()
        for call in self.calls.values():
            call.recall(is_wanted)
        lent = self.http2.streams.lent_before(inf) if self.http2.lent_bytes else ()
        waiting = [(self.keep(stream, queue, is_wanted), stream) for stream, queue in lent]
        return [each for each in waiting if each[0] < inf]

    def keep(self, stream: Stream, queue: Queue, is_wanted: Callable[[Token], bool]) -> float:
        """Copy a stream's queued responses that lie in wanted blocks, as far as there is room for copies.

        Returns the time since which the oldest response without room for a copy waits to be read; inf if all were
        copied.
        """
        if queue.lent_since_s(is_wanted) < inf:
            self._keep(stream)
        return queue.lent_since_s(is_wanted)

    def _keep(self, stream: Stream) -> None:
        if self.unsent:
            self._keep_unsent()
        self._release_all(self.http2.keep(stream, self._kept.share_bytes - self.kept_bytes))
        self._count()

    def keep_waiting(self, nbytes: int) -> None:
        """Count `nbytes` more bytes (negative: fewer) of copied answers that wait for earlier answers of their
        streams."""
        self._waiting_bytes += nbytes
        self._count()

    def must_keep(self, stream_id: int) -> bool:
        """Whether a response must be copied, since it cannot leave now and its client has left other responses unread
        for long."""
        return self.is_late and self._is_stuck(stream_id)

    def must_refuse(self, stream_id: int) -> bool:
        """Whether a response without room for a copy must be dropped, since it cannot leave now and its client has
        already read so slowly that other responses were cut."""
        return self.is_slow and self._is_stuck(stream_id)

    def _is_stuck(self, stream_id: int) -> bool:
        return bool(self.unsent) or self.http2.is_shut(stream_id)

    def cut(self, stream_id: int) -> None:
        """End a response whose client reads too slowly; the queued part of the response is dropped."""
        self.calls.pop(stream_id, None)
        if self.access is not None:
            self.access.end(stream_id, _RESOURCE_EXHAUSTED)
        self.is_late = self.is_slow = True
        if self.unsent:
            self._keep_unsent()
        self._release_all(self.http2.cut(stream_id, trailers(_RESOURCE_EXHAUSTED, self._too_slow())))
        self._count()

    def _too_slow(self) -> str:
        return (
            "the client does not read its responses: those that a connection has not read may take "
            f"{self._kept.share_bytes} bytes of the server's memory now"
        )

    def _keep_unsent(self) -> None:
        """Copy the unsent output, which is a bounded part of the connection's responses, and release the replies in
        whose blocks it lies.

        To be called before queued pieces are released: the beginning of a queued reply may be part of the unsent
        output.
        """
        if not self._own_unsent_bytes:
            self.unsent = deque([bytes(each) for each in self.unsent])
        self._release(self._tokens + self.http2.take_tokens())
        self._own_unsent_bytes = sum(map(len, self.unsent))

    def close(self) -> None:
        """Close the connection: its calls end, and no further byte is received or sent."""
        self.end_calls()
        self.http2.close()
        self._release(self._tokens + self.http2.output()[1])
        self.unsent.clear()
        self._own_unsent_bytes = self._behind_bytes = 0
        self._count()
        self.socket.close()

    def end_calls(self) -> None:
        """Cancel all calls of a connection that has ended."""
        for call in list(self.calls.values()):
            call.cancel()
        self.calls.clear()
        if self.access is not None:
            self.access.cancel_all()

    def go_away(self) -> None:
        """Accept no further calls; open ones continue."""
        self.is_ending = True
        self.http2.go_away()

    # --- responses of calls ---

    def respond(
        self, stream_id: int, chunks: list[bytes | memoryview], token: Token | None, encoding: str = IDENTITY,
        trailers_block: bytes = OK,
    ) -> bool:  # fmt: skip
        """Send the one message of a call, and its end. True if its chunks must stay unchanged until `token` is
        released."""
        self.calls.pop(stream_id, None)
        nbytes = sum(map(len, chunks))
        if nbytes <= JOIN_BYTES:
            framed = prefix(nbytes), *chunks
            is_plain = encoding is IDENTITY and trailers_block is OK
            if is_plain and self.http2.respond_at_once(stream_id, _BLOCKS, framed, nbytes + PREFIX_BYTES):
                if self.access is not None:
                    self.access.end(stream_id, 0, nbytes)
                return False
            chunks = [b"".join(chunks)]
            token = None if self.has_room(nbytes) else token
        elif self.is_late and self.must_keep(stream_id) and self.has_room(nbytes):
            chunks, token = [b"".join(chunks)], None
        chunks = prefixed(chunks, encoding)
        if encoding != IDENTITY and token is not None and self.has_room(sum(map(len, chunks))):
            token = None  # compressed chunks are copies
        if token is not None and self.is_slow and self.must_refuse(stream_id):
            self.refuse(stream_id, _RESOURCE_EXHAUSTED, self._too_slow())
            return False
        self.http2.respond(stream_id, headers(encoding), chunks, trailers_block, token, time.monotonic())
        if token is None and self.http2.unsent_nbytes(stream_id) and not self.has_room(0):
            self.cut(stream_id)
        elif self.access is not None:
            self.access.end(stream_id, 0, nbytes)
        return token is not None

    def refuse(self, stream_id: int, status: int, message: str, timing: str = "") -> None:
        """End a call that has sent nothing, with this status, and with the request's times if the client has asked for
        these."""
        self.calls.pop(stream_id, None)
        if self.access is not None:
            self.access.end(stream_id, status)
        block = only_trailers(status, message)
        self.http2.send_headers(stream_id, with_timing(block, timing) if timing else block, end_stream=True)

    def finish(self, stream_id: int, status: int = 0, message: str = "", nbytes: int | None = None) -> None:
        """End a call that has sent its response headers. `nbytes` is the size of its response, None where it is not
        known."""
        self.calls.pop(stream_id, None)
        if self.access is not None:
            self.access.end(stream_id, status, nbytes)
        self.http2.send_trailers(stream_id, trailers(status, message) if status else OK)


def prefixed(chunks: list[bytes | memoryview], encoding: str = IDENTITY) -> list[bytes | memoryview]:
    """A message in pieces with gRPC's prefix in front; a compressed message is a copy."""
    if encoding != IDENTITY:
        message = deflate(encoding, chunks)
        return [prefix(len(message), is_compressed=True), message]
    return [prefix(sum(map(len, chunks))), *chunks]


class Recall:
    """Recalls of blocks for all connections of a lane: results of a worker that lacks memory are copied, or dropped if
    clients read too slowly (kept_memory.py); `cut` ends a call, given its stream, with RESOURCE_EXHAUSTED."""

    def __init__(self, port: Port, cut: Callable[[GrpcConnection, int], None]) -> None:
        self._port = port
        self._cut = cut
        self.given_up = slow_reader_log("calls")

    def recall(
        self, connections: Iterable[GrpcConnection], segments: Container[int], now_s: float, *, is_urgent: bool
    ) -> None:
        """Copy unsent results that lie in these segments, and release them.

        Where there is no room for a copy and `is_urgent` is true, calls are cut whose responses have waited for their
        clients for HOLD_S, those that have waited longest first.
        """

        def is_wanted(token: Token) -> bool:
            return self._port.lies_in(*token, segments)

        left = [(*each, connection) for connection in connections for each in connection.recall(is_wanted)]
        for since_s, stream, connection in sorted(left, key=itemgetter(0)) if is_urgent else ():
            if now_s - since_s < HOLD_S:
                break
            if stream.queue is not None and connection.keep(stream, stream.queue, is_wanted) < inf:  # still no room
                self._cut(connection, stream.number)
                self.given_up.add(now_s)

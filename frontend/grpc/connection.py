"""A client's connection to a gRPC lane: its socket, its HTTP/2 state, its calls, and what is on its way out."""

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from math import inf

from shoal.frontend.grpc.call import OpenCall
from shoal.frontend.grpc.framing import (
    HEADERS,
    IDENTITY,
    PREFIX_BYTES,
    compress,
    headers,
    only_trailers,
    prefix,
    trailers,
)
from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.response_blocks import ResponseHeaderBlocks
from shoal.frontend.grpc.http2.streams import Queue, Stream
from shoal.frontend.grpc.inbox import UnfinishedMessages
from shoal.frontend.grpc.known_call import KnownCall
from shoal.frontend.grpc.opening import Opening, RefusedCall
from shoal.frontend.grpc.submission import MessageTemplate
from shoal.frontend.http.submission import JOIN_BYTES
from shoal.frontend.kept_memory import KeptMemory, ReadRate
from shoal.frontend.slow_readers import HOLD_S

READ_BYTES = 64 * 1024
#: In the middle of a large message; that of a client that cuts it into frames of 16 KiB is read so.
LARGE_READ_BYTES = 512 * 1024
#: Pieces in one gathering write, two for each frame; the kernel takes up to 1024.
_MAX_PIECES = 256
_RESOURCE_EXHAUSTED = 8
_OK = trailers(0)
_BLOCKS = ResponseHeaderBlocks.of(HEADERS, _OK)

Socket = socket.socket
#: Which reply's block a piece of output lies in: its request's number, and its part.
Token = tuple[int, int]


class GrpcConnection:
    """One client. What it answers leaves with `flush`."""

    __slots__ = (
        "_behind", "_counted_bytes", "_filled_s", "_kept", "_own_unsent_bytes", "_released", "_tokens",
        "_waiting_bytes", "age_ends_s", "begun_s", "calls", "ends_s", "fd", "has_target", "headers", "http2",
        "is_blocked", "is_dirty", "is_ending", "is_late", "is_shut", "is_slow", "known", "opening", "peer", "pinged_s",
        "progress_s", "silent_until_s", "socket", "template", "unfinished", "unsent",
    )  # fmt: skip

    def __init__(
        self,
        accepted: Socket,
        limits: Limits,
        now_s: float,
        released: Callable[[Token], None],
        kept: KeptMemory,
        unfinished: KeptMemory,
    ) -> None:
        self.socket = accepted
        self.fd = accepted.fileno()
        self.peer = _address(accepted)
        self.http2 = Http2Connection(limits, now_s)
        self.unfinished = UnfinishedMessages(self.http2.keep_received, unfinished)
        self._released = released
        self._kept = kept
        # Changed by the lane and by calls.
        self.calls: dict[int, OpenCall] = {}
        self.headers: Mapping[str, str] | None = None  # of the last call, which are shared by all that are equal
        self.opening: Opening | RefusedCall | bytes = b""  # what they meant
        self.known: KnownCall | None = None  # what the last calls were like
        self.template: MessageTemplate | None = None  # of the last call that was not
        self.has_target = False  # a call may have one (OpenCall.target)
        self.unsent: deque[bytes | memoryview] = deque()
        self._tokens: list[Token] = []  # of what lies in `unsent`
        self._filled_s = now_s  # when `unsent` was filled last
        self._own_unsent_bytes = 0  # of `unsent`, since it was seen to lie in our own memory; 0 before that
        self._waiting_bytes = 0  # of answers that wait for others of their streams, copied
        self._counted_bytes = 0  # of what all connections keep
        self.is_late = self.is_slow = False  # since it last had read all, responses have lain for long, or were cut
        self._behind: dict[int, ReadRate] = {}  # of the streams for which there was no room when that was seen last
        self.is_dirty = False  # something is to be sent at the end of this pass
        self.is_ending = False  # it takes no further calls
        self.is_shut = False  # nothing more is said
        self.is_blocked = False  # the socket takes no more, the loop says when it does
        self.begun_s = now_s  # when something came last
        self.progress_s = now_s  # when the socket took something last, or there was nothing to take
        self.silent_until_s = 0.0  # how long it may say nothing at all; 0: it has said something
        self.pinged_s = 0.0  # when an answer to a ping was asked for; 0: none is awaited
        self.age_ends_s = 0.0  # when it is too old; 0: never
        self.ends_s = 0.0  # when it is closed whatever happens; 0: never

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to say than what is unsent."""
        return self.http2.is_failed or self.http2.is_drained

    @property
    def kept_bytes(self) -> int:
        """Bytes that the client has not read and that are kept in memory of our own."""
        return max(self.http2.num_queued - self.http2.lent_bytes, 0) + self._own_unsent_bytes + self._waiting_bytes

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes more may be kept until the client reads them."""
        return self._kept.has_room(self.kept_bytes, nbytes)

    # --- bytes in and out ---

    def read(self) -> bytes | None:
        """What has come; b"" at the end of the connection, None where there is nothing."""
        try:
            return self.socket.recv(LARGE_READ_BYTES if self.has_target else READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def read_into(self, buffers: list[memoryview]) -> int:
        """Receive directly; the number of bytes, 0 at the end of the connection, -1 where there is nothing."""
        try:
            return self.socket.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return -1
        except OSError:
            return 0

    def flush(self, now_s: float) -> bool:
        """Send what may go out, as far as the socket takes it. False where the client is gone."""
        self.is_dirty = False
        unsent, http2 = self.unsent, self.http2
        if not unsent:
            piece = http2.small_output()
            if piece and self._send_only(piece):  # which is usual
                self.progress_s = now_s
                return True
        before = len(unsent)
        while True:
            if not unsent:
                pieces, self._tokens = http2.output()
                unsent.extend(pieces)
                self._filled_s, self._own_unsent_bytes = now_s, 0
            if not self._send():
                return False
            if unsent or not http2.has_output:
                break
        if len(unsent) < before or not unsent:
            self.progress_s = now_s
        if not unsent:
            self._own_unsent_bytes = 0
        if http2.num_queued or self._counted_bytes:
            self._count()
        return True

    def _send_only(self, piece: bytes) -> bool:
        """Send what is all there is. False where some of it is unsent."""
        try:
            sent = self.socket.send(piece)
        except OSError:  # the next attempt tells why
            sent = 0
        if sent == len(piece):
            return True
        self.unsent.append(memoryview(piece)[sent:])
        return False

    def shut(self) -> None:
        """Say that nothing more comes."""
        self.is_shut = True
        with suppress(OSError):  # gone already
            self.socket.shutdown(socket.SHUT_WR)

    def _send(self) -> bool:
        """Send until the socket takes no more, or all is sent. False where the client is gone."""
        unsent = self.unsent
        while unsent:
            pieces = list(islice(unsent, _MAX_PIECES))
            try:
                sent = self.socket.sendmsg(pieces)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if len(unsent) <= _MAX_PIECES and sent == sum(map(len, pieces)):  # all there is, which is usual
                unsent.clear()
            else:
                self._drop(sent)
        self._release(self._tokens)
        return True

    def _release(self, tokens: list[Token]) -> None:
        """What they stand for is not needed any more, nor what lies in `unsent`."""
        self._release_all(tokens)
        self._tokens = []

    def _release_all(self, tokens: list[Token]) -> None:
        for token in tokens:
            self._released(token)

    def _drop(self, nbytes: int) -> None:
        """So many bytes have left."""
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
        """Bring what all connections keep up to date."""
        nbytes = self.kept_bytes
        self._kept.nbytes += nbytes - self._counted_bytes
        self._counted_bytes = nbytes
        if not self.http2.num_queued:  # it has read all
            self.is_late = self.is_slow = False

    # --- what the client does not read ---

    def relieve(self, now_s: float) -> list[int]:
        """Give back the workers' blocks that the client has let lie for HOLD_S, as far as there is room for copies.

        Returns the streams to `cut`: there is no room for theirs, and they are read too slowly to be waited for.
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
        """Give back the workers' blocks that are wanted, as far as there is room for copies.

        Returns the streams for which there is none, and since when each waits to be read.
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
        """Copy what is queued of a stream, if it lies in blocks that are wanted and as far as there is room for it.

        Returns since when the rest of that waits to be read; inf: there is none.
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
        """So many bytes more, or less, are kept of answers that wait for others."""
        self._waiting_bytes += nbytes
        self._count()

    def must_keep(self, stream_id: int) -> bool:
        """Whether a response is to be copied, since it cannot leave now and its client has let others lie."""
        return self.is_late and self._is_stuck(stream_id)

    def must_refuse(self, stream_id: int) -> bool:
        """Whether a response for which there is no room is to be dropped, since it cannot leave now and others of the
        connection were: its client would have to be waited for again."""
        return self.is_slow and self._is_stuck(stream_id)

    def _is_stuck(self, stream_id: int) -> bool:
        return bool(self.unsent) or self.http2.is_shut(stream_id)

    def cut(self, stream_id: int) -> None:
        """End a response whose client reads too slowly, in place of what is queued of it."""
        self.calls.pop(stream_id, None)
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
        """Copy what is on its way to the socket, a bounded part of all, and give back what it has come to the end of.

        Before anything that is queued is given back: the beginning of that may lie here.
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
        self._own_unsent_bytes = 0
        self._count()
        self.socket.close()

    def end_calls(self) -> None:
        """End all calls of a connection on which nothing may be sent any more."""
        for call in list(self.calls.values()):
            call.cancel()
        self.calls.clear()

    def go_away(self) -> None:
        """Take no further calls; those there are go on."""
        self.is_ending = True
        self.http2.go_away()

    # --- what calls say ---

    def respond(
        self, stream_id: int, chunks: list[bytes | memoryview], token: Token | None, encoding: str = IDENTITY
    ) -> bool:
        """The one message of a call, and its end. True where its chunks must stay until `token` is released."""
        self.calls.pop(stream_id, None)
        nbytes = sum(map(len, chunks))
        if nbytes <= JOIN_BYTES:
            framed = prefix(nbytes), *chunks
            if encoding is IDENTITY and self.http2.respond_at_once(stream_id, _BLOCKS, framed, nbytes + PREFIX_BYTES):
                return False
            chunks = [b"".join(chunks)]
            token = None if self.has_room(nbytes) else token
        elif self.is_late and self.must_keep(stream_id) and self.has_room(nbytes):
            chunks, token = [b"".join(chunks)], None
        chunks = prefixed(chunks, encoding)
        if encoding != IDENTITY and token is not None and self.has_room(sum(map(len, chunks))):
            token = None  # what is compressed is a copy
        if token is not None and self.is_slow and self.must_refuse(stream_id):
            self.refuse(stream_id, _RESOURCE_EXHAUSTED, self._too_slow())
            return False
        self.http2.respond(stream_id, headers(encoding), chunks, _OK, token, time.monotonic())
        if token is None and self.http2.unsent_nbytes(stream_id) and not self.has_room(0):
            self.cut(stream_id)
        return token is not None

    def refuse(self, stream_id: int, status: int, message: str) -> None:
        """The end of a call that has sent nothing."""
        self.calls.pop(stream_id, None)
        self.http2.send_headers(stream_id, only_trailers(status, message), end_stream=True)

    def refuse_http(self, stream_id: int, block: bytes) -> None:
        """The end of what is no call."""
        self.http2.send_headers(stream_id, block, end_stream=True)

    def finish(self, stream_id: int, status: int = 0, message: str = "") -> None:
        """The end of a call that has sent its head."""
        self.calls.pop(stream_id, None)
        self.http2.send_trailers(stream_id, trailers(status, message) if status else _OK)


def prefixed(chunks: list[bytes | memoryview], encoding: str = IDENTITY) -> list[bytes | memoryview]:
    """A message in pieces, its length in front; in an encoding, it is a copy."""
    if encoding != IDENTITY:
        message = compress(encoding, chunks)
        return [prefix(len(message), is_compressed=True), message]
    return [prefix(sum(map(len, chunks))), *chunks]


def _address(accepted: Socket) -> str:
    try:
        return str(accepted.getpeername()[0])
    except OSError:  # gone already
        return ""

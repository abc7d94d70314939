"""A client's connection to a gRPC lane: its socket, its HTTP/2 state, its calls, and what is on its way out."""

import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Protocol

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
from shoal.frontend.grpc.http2.frames import ENHANCE_YOUR_CALM
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.sending import Blocks
from shoal.frontend.grpc.http2.streams import num_private, private
from shoal.frontend.grpc.known_call import KnownCall
from shoal.frontend.grpc.opening import Opening, Refused
from shoal.frontend.grpc.submission import Form
from shoal.frontend.submission import JOIN_BYTES

READ_BYTES = 64 * 1024
#: In the middle of a large message; that of a client that cuts it into frames of 16 KiB is read so.
LARGE_READ_BYTES = 512 * 1024
#: Pieces in one gathering write, two for each frame; the kernel takes up to 1024.
_MAX_PIECES = 256
_OK = trailers(0)
_BLOCKS = Blocks.of(HEADERS, _OK)

Socket = socket.socket
#: Which reply's block a piece of output lies in: its request's number, and its part.
Token = tuple[int, int]


class Call(Protocol):
    """A stream of the connection."""

    #: Where the next bytes of its message may be received directly, or None.
    @property
    def target(self) -> memoryview | None: ...

    def landed(self, nbytes: int) -> None:
        """So many bytes were received into `target`."""
        ...

    def take(self, data: bytes | memoryview) -> None:
        """A piece of its messages has come."""
        ...

    def end(self) -> None:
        """The client sends nothing more."""
        ...

    def cancel(self) -> None:
        """The client does not want it any more, or is gone: nothing may be sent on it."""
        ...

    def expire(self, now_s: float) -> None:
        """Look at its deadline."""
        ...

    def end_idle(self) -> None:
        """The server ends: so does a call that has nothing to wait for but its client."""
        ...


class GrpcConnection:
    """One client. What it answers leaves with `flush`."""

    __slots__ = (
        "_released", "_tokens", "age_ends_s", "begun_s", "calls", "ends_s", "fd", "form", "headers", "http2",
        "is_blocked", "is_dirty", "is_ending", "is_landing", "is_shut", "known", "opening", "peer", "pinged_s",
        "progress_s", "silent_until_s", "socket", "unsent",
    )  # fmt: skip

    def __init__(self, accepted: Socket, limits: Limits, now_s: float, released: Callable[[Token], None]) -> None:
        self.socket = accepted
        self.fd = accepted.fileno()
        self.peer = _address(accepted)
        self.http2 = Http2Connection(limits, now_s)
        self._released = released
        # Changed by the lane and by calls.
        self.calls: dict[int, Call] = {}
        self.headers: Mapping[str, str] | None = None  # of the last call, which are shared by all that are equal
        self.opening: Opening | Refused | bytes = b""  # what they meant
        self.known: KnownCall | None = None  # what the last calls were like
        self.form: Form | None = None  # of the last call that was not
        self.is_landing = False  # a call may have a target
        self.unsent: deque[bytes | memoryview] = deque()
        self._tokens: list[Token] = []  # of what lies in `unsent`
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
    def is_waited_for(self) -> bool:
        """Whether the client has not read all there is for it."""
        return bool(self.unsent) or self.http2.num_queued > 0

    @property
    def tokens(self) -> list[Token]:
        """Of all replies whose blocks hold what the client has not read."""
        return [*self._tokens, *[token for _, token in self.http2.streams.tokens]]

    @property
    def num_unsent(self) -> int:
        """Bytes that the client has not read."""
        return sum(map(len, self.unsent)) + self.http2.num_queued

    @property
    def num_kept(self) -> int:
        """Those of them that do not lie in workers' blocks."""
        return num_private(self.unsent) + self.http2.streams.num_kept

    @property
    def holds_blocks(self) -> bool:
        """Whether what it has not read lies in workers' blocks."""
        return bool(self.tokens)

    # --- bytes in and out ---

    def read(self) -> bytes | None:
        """What has come; b"" at the end of the connection, None where there is nothing."""
        try:
            return self.socket.recv(LARGE_READ_BYTES if self.is_landing else READ_BYTES)
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
            if not self._send():
                return False
            if unsent or not http2.has_output:
                break
        if len(unsent) < before or not unsent:
            self.progress_s = now_s
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
        """What they stand for is not needed any more."""
        for token in tokens:
            self._released(token)
        self._tokens = []

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

    def keep_unsent(self) -> None:
        """The client reads slowly: copy what lies in workers' blocks, and give those back."""
        self.unsent = deque([private(each) for each in self.unsent])
        self._release(self._tokens + self.http2.keep())

    def give_up(self, tokens: list[Token]) -> bool:
        """Reset the streams whose data these replies are, and give all that is sent of them back. False where some of
        it is in the middle of the output: only the end of the connection gives that back."""
        if not set(tokens).isdisjoint(self._tokens):
            return False
        streams = {stream_id for stream_id, token in self.http2.streams.tokens if token in tokens}
        for stream_id in streams:
            call = self.calls.pop(stream_id, None)
            if call is not None:
                call.cancel()
            self.http2.reset(stream_id, ENHANCE_YOUR_CALM)
        self.unsent = deque([private(each) for each in self.unsent])  # it may begin what is given up now
        self._release(self._tokens + self.http2.take_tokens())
        return True

    def close(self) -> None:
        """Nothing more is received or sent; its calls end."""
        self.end_calls()
        self.http2.close()
        self._release(self._tokens + self.http2.output()[1])
        self.unsent.clear()
        self.socket.close()

    def end_calls(self) -> None:
        """Nothing may be sent on any stream any more."""
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
            chunks, token = [b"".join(chunks)], None
        self.http2.respond(stream_id, headers(encoding), prefixed(chunks, encoding), _OK, token)
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

"""A client's socket with TLS, in the place of a plain one: the bytes of a connection are de- and encrypted here.

OpenSSL works in memory, on bytes that the socket has received or is to send, so a system call moves many records.
"""

import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

#: The most plaintext of one record (RFC 8446, section 5.1).
_RECORD_BYTES = 16 * 1024
#: Bytes that OpenSSL is given at once, either way: OpenSSL keeps memory for as many until the connection ends (ours).
_PIECE_BYTES = 32 * 1024
#: The most bytes of a record beside its data (ours; a record has 22 to 30).
_OVERHEAD_BYTES = 64
#: The most bytes of records without data that a client may send (ours): an update of keys takes 27 bytes and 12 µs, so
#: a flood of them would take nearly all of a lane's time.
_MAX_IDLE_BYTES = 32 * 1024
#: The buffer into which a call receives ciphertext: one for all connections, since a lane has one thread and no call
#: leaves bytes in it.
_RECEIVED = memoryview(bytearray(512 * 1024))
#: Protocols by their names in ALPN (RFC 7301, section 6).
_PROTOCOLS = {"h2": "HTTP/2", "http/1.1": "HTTP/1.1"}
#: The body of the answer to a request of HTTP/1 that comes without TLS.
_SENTENCE = b'{"error":"this port takes TLS only: ask it by an https:// URL"}'
_NOT_PLAIN = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SENTENCE), _SENTENCE)
)


class TlsSocket(socket.socket):
    """A non-blocking socket of a TLS server. Once `shake_hands` has returned true, `recv`, `recvmsg_into`, `send` and
    `sendmsg` behave as those of a plain socket: they raise BlockingIOError where nothing can be received or sent now,
    another OSError where the connection is broken."""

    __slots__ = (
        "_alpn", "_incoming", "_num_idle", "_num_sealed", "_outgoing", "_tls", "_unsent", "handshake_ends_s",
        "has_spoken",
    )  # fmt: skip

    def __init__(
        self, accepted: socket.socket, context: ssl.SSLContext, handshake_ends_s: float, alpn: str = ""
    ) -> None:
        """Takes over the descriptor of `accepted`. The client must ask for the protocol `alpn`, such as "h2"; with ""
        it may ask for any, or for none."""
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._alpn = alpn
        self.handshake_ends_s = handshake_ends_s  # when the lane gives the handshake up, in monotonic s
        # Changed as bytes are received and sent.
        self.has_spoken = False  # whether the client has sent a byte
        self._unsent = memoryview(b"")  # ciphertext that the socket has not taken
        self._num_idle = 0  # bytes of records without data, less an allowance per record with data
        self._num_sealed = 0  # plaintext bytes that are encrypted in `_unsent`, and that `sendmsg` has not reported yet

    # --- the handshake ---

    def shake_hands(self) -> bool:
        """Receive the client's next part of the handshake and answer it. True where the handshake is complete.

        Raises OSError where it has failed: the client is gone, does not show the right certificate, speaks no TLS, or
        does not ask for the right protocol.
        """
        with suppress(BlockingIOError):  # this call came because the socket can send, not because bytes have come
            data = super().recv(_PIECE_BYTES)
            if not data:
                raise ConnectionResetError("the client hung up")
            self.has_spoken = True
            self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            with suppress(OSError):
                if error.reason == "HTTP_REQUEST":
                    super().send(_NOT_PLAIN)
                else:
                    self._flush()  # sends the alert with the reason
            raise
        if self._alpn and self._tls.selected_alpn_protocol() != self._alpn:
            raise ConnectionRefusedError(f"the client does not ask for {_PROTOCOLS[self._alpn]} (ALPN)")
        return self._flush()

    @property
    def has_unsent(self) -> bool:
        """Whether ciphertext waits until the socket takes more."""
        return bool(self._unsent)

    @property
    def has_received(self) -> bool:
        """Whether the client's first records came with the end of its handshake. epoll reports no event for these
        records."""
        return self._incoming.pending > 0

    # --- bytes in ---

    def recv(self, bufsize: int, _flags: int = 0, /) -> bytes:
        """Receive up to `bufsize` bytes of ciphertext, and return all plaintext that is complete with them; b"" at the
        end of the connection."""
        is_over = False
        try:
            nbytes = super().recv_into(_RECEIVED, min(bufsize, len(_RECEIVED)))
            is_over = not nbytes
        except BlockingIOError:
            nbytes = 0
        if not nbytes and not self._incoming.pending:  # `pending`: records that came with the handshake's end
            if is_over:
                return b""
            raise BlockingIOError
        try:
            pieces = self._decrypt(nbytes)
        except BlockingIOError:
            if is_over:  # the connection ended in the middle of a record
                return b""
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def recvmsg_into(
        self, buffers: Iterable[Any], _ancbufsize: int = 0, _flags: int = 0, /
    ) -> tuple[int, list[Any], int, Any]:
        """Like `recv`, into these buffers, in this order; the first value returned is the number of bytes received.

        The first buffer is not empty. All buffers together have room for more than a record, of which a part may have
        come before: no more ciphertext is received than fits into them as plaintext.
        """
        room = sum(map(len, buffers)) - _RECORD_BYTES
        nbytes = super().recv_into(_RECEIVED, min(room, len(_RECEIVED)))
        if not nbytes:
            return 0, [], 0, None
        pieces = self._decrypt(nbytes)
        rests = iter(buffers)
        rest = next(rests)
        for piece in pieces:
            left = memoryview(piece)
            while len(left) >= len(rest):
                rest[:] = left[: len(rest)]
                left = left[len(rest) :]
                rest = next(rests)
            rest[: len(left)] = left
            rest = rest[len(left) :]
        return sum(map(len, pieces)), [], 0, None

    def _decrypt(self, nbytes: int) -> list[bytes]:
        """The plaintext of all records that are complete with the first `nbytes` of `_RECEIVED`; the last piece is
        empty if the client has ended its side (close_notify). Raises BlockingIOError where no record is complete,
        another OSError where a record is malformed, or the client sends too many without data or does not read
        alerts."""
        pieces: list[bytes] = []
        for start in range(0, nbytes or 1, _PIECE_BYTES):
            self._incoming.write(_RECEIVED[start : min(start + _PIECE_BYTES, nbytes)])
            with suppress(ssl.SSLWantReadError):  # only a part of the last record has come
                while self._incoming.pending:
                    pieces.append(self._tls.read(_RECORD_BYTES))
                    if not pieces[-1]:  # close_notify: the data before it comes first, the end with the next call
                        with suppress(OSError):
                            super().shutdown(socket.SHUT_RD)
                        return pieces
        num_used = sum(map(len, pieces)) + _OVERHEAD_BYTES * len(pieces)
        self._num_idle = max(0, self._num_idle + nbytes - num_used)
        if self._num_idle > _MAX_IDLE_BYTES:
            raise ConnectionAbortedError("the client sends records that carry no data")
        if self._outgoing.pending and not self._flush() and len(self._unsent) > 2 * _PIECE_BYTES:
            raise ConnectionAbortedError("the client does not read the alerts that answer what it sends")
        if not pieces:
            raise BlockingIOError
        return pieces

    # --- bytes out ---

    def send(self, data: Any, _flags: int = 0, /) -> int:
        """Encrypt and send the beginning of these bytes, as `sendmsg` does."""
        return self.sendmsg([data])

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        """Encrypt and send the beginning of these buffers; returns how many bytes have been sent.

        Bytes whose ciphertext the socket has not taken are not counted yet: BlockingIOError is raised, and the next
        call must begin with the same bytes. The next call sends the rest of that ciphertext, and counts the bytes.
        """
        if not self._num_sealed:
            if not self._flush():  # waiting ciphertext, such as an alert, goes first
                raise BlockingIOError
            self._num_sealed = self._tls.write(_beginning(buffers))
        if not self._flush():
            raise BlockingIOError
        num_sent, self._num_sealed = self._num_sealed, 0
        return num_sent

    def _flush(self) -> bool:
        """Send the ciphertext that is waiting, as far as the socket takes it. True if no ciphertext is left."""
        if self._outgoing.pending:
            new = self._outgoing.read()
            self._unsent = memoryview(b"".join((self._unsent, new)) if self._unsent else new)
        if self._unsent:
            try:
                self._unsent = self._unsent[super().send(self._unsent) :]
            except BlockingIOError:
                return False
        return not self._unsent

    def shutdown(self, how: int, /) -> None:
        """End the server's side of the connection: send close_notify, then shut down the TCP connection."""
        with suppress(ssl.SSLError):  # the client's close_notify is not waited for
            self._tls.unwrap()
        self._flush()
        super().shutdown(how)


def _beginning(buffers: Iterable[Any]) -> Any:
    """The first _PIECE_BYTES of these buffers, which is as much as is encrypted at once."""
    pieces, room = [], _PIECE_BYTES
    for each in buffers:
        pieces.append(each if len(each) <= room else memoryview(each)[:room])
        room -= len(each)
        if room <= 0:
            break
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)

"""An HTTP connection of a lane whose clients speak TLS. Two things differ from plain text: a record may hold the end of
one request and the beginning of the next, and one call sends only a piece of a response."""

from shoal.frontend.http.connection import Chunks, HttpConnection

#: Receives the bytes that were decrypted beyond the end of a body: room for more than a record, as
#: TlsSocket.recvmsg_into needs it.
_BEYOND = memoryview(bytearray(64 * 1024))
#: Pieces of a response that are sent at once, 32 KiB each: other connections wait meanwhile (ours).
_MAX_PIECES = 16


class TlsHttpConnection(HttpConnection):
    """A connection over TLS, or in plain text on a lane that has both."""

    __slots__ = ()

    def receive(self) -> int:
        """Like `HttpConnection.receive`; bytes beyond `target`, which begin the next request, go into `buffer`."""
        assert self.target is not None
        room = len(self.target)
        try:
            received: int = self.socket.recvmsg_into([self.target, _BEYOND])[0]
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        if received > room:
            self.buffer += bytes(_BEYOND[: received - room])
        return min(received, room)

    def send(self, chunks: Chunks, nbytes: int) -> bool:
        """Like `HttpConnection.send`, piece by piece until the socket takes no more."""
        for _ in range(_MAX_PIECES):
            if not super().send(chunks, nbytes):
                return False
            num_left = self.num_unsent
            if not num_left or num_left == nbytes:
                break
            chunks, nbytes = self.unsent, num_left
        return True

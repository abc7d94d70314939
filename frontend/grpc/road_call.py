"""A unary call that the road answers, because it waits: for the supervisor, for a model, or for memory.

The call becomes a request of HTTP/1.1 on a socket pair, whose other end is handed to the road as if it were a client's
connection (tunnel.py). Bytes are passed on as they come: neither side keeps more than a window of them, and the lane
keeps no more than --max-upload-mib of them for all calls together. One thread, the lane's, which never waits for the
road.
"""

import select
import socket

from shoal.frontend.grpc.call import OpenCall, Opening
from shoal.frontend.grpc.call_lane import CallLane
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.framing import HEADERS, IDENTITY, decompressed_start, prefix
from shoal.frontend.grpc.inbox import LargeMessage
from shoal.frontend.grpc.inference import deadline_ns
from shoal.frontend.grpc.tunnel import pack_head, unpack_head
from shoal.frontend.grpc.wire import MAX_LEADING_BYTES, leading_text
from shoal.frontend.kept_memory import SEND_S, ReadRate
from shoal.frontend.upload_budget import NoUploadMemoryError

_INTERNAL = 13
_READ_BYTES = 256 * 1024
#: While the client has left more than this many bytes of a response unread, the lane reads no more of the response from
#: the road; fewer bytes suffice if there is no memory for more.
_MAX_UNSENT_BYTES = 1 << 20
_MAX_HEAD_BYTES = 64 * 1024
_LOST = "the front end that answers this call has ended, or has ended the call; the server's log says why"


class RoadCall(OpenCall):
    """A call that was handed over to the road, until it has been answered. The call's message is passed on to the road
    as it comes."""

    def __init__(
        self,
        lane: CallLane,
        connection: GrpcConnection,
        stream_id: int,
        opening: Opening,
        message: LargeMessage,
        deadline_s: float,
    ) -> None:
        self._lane = lane
        self._connection = connection
        self._stream_id = stream_id
        self._opening = opening
        self._deadline_s = deadline_s
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()
        # The fields below are changed as the call goes on.
        self._missing = message.nbytes  # bytes of the message that have not come yet
        self._unsent = bytearray()
        self._num_counted = 0  # bytes of `_unsent` that are counted in the lane's budget
        self._num_uncredited = 0  # received bytes whose place in the window the client has not got back
        self._answer = bytearray()  # what has come of the answer's head, until the head is whole
        self._num_left = -1  # bytes of the answer's body to come; -1: the head is not whole
        self._nbytes = 0  # bytes of the answer's whole body, once the head is whole
        self._events = select.EPOLLIN
        self._pace, self._progress = ReadRate(), ReadRate(1, SEND_S)  # how fast the client reads while the road waits
        try:
            lane.listen(self)
        except OSError:  # the kernel watches no further descriptor
            self._socket.close()
            theirs.close()
            raise
        lane.hand_over(theirs, _head(opening, connection.peer, message, deadline_ns(opening, deadline_s)))
        self._pass(message.begun)

    # --- the message goes out ---

    def take(self, data: bytes | memoryview) -> None:
        """Pass on a piece of the message; bytes after its end are ignored."""
        self._pass(data)
        self.bound()

    def bound(self) -> None:
        """Refuse calls on the road, this one or others, until the bytes that the road has not taken are within
        --max-upload-mib. To be called when the connection has this call among its calls, since the first bytes of a
        message count, too."""
        budget = self._lane.upload_budget
        while isinstance(call := budget.excess(), RoadCall):
            error = NoUploadMemoryError(budget.limit)
            call._refuse(error.grpc_status, str(error))
            self._lane.note_output(call._connection)

    def _pass(self, data: bytes | memoryview) -> None:
        data = data[: self._missing]
        self._missing -= len(data)
        self._unsent += data
        self._num_uncredited += len(data)
        self._connection.http2.keep_received(len(data))
        self._send()

    def end(self) -> None:
        if self._missing:
            self._end()
            self._connection.refuse(self._stream_id, _INTERNAL, "the call ended before its message was complete")

    def _send(self) -> None:
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                sent = 0
            except OSError:  # the road has closed its end: the answer, if one comes, says why
                sent = len(self._unsent)
            del self._unsent[:sent]
            self._connection.http2.keep_received(-sent)
        self._count(len(self._unsent))
        if not self._unsent and self._missing:
            self._connection.http2.credit(self._stream_id, self._num_uncredited)
            self._num_uncredited = 0
        self._watch()

    def _count(self, num_kept: int) -> None:
        """Count in the lane's upload budget the bytes of this call that the lane keeps."""
        if num_kept != self._num_counted:
            self._lane.upload_budget.add(self, self._connection.peer, num_kept - self._num_counted)
            self._num_counted = num_kept

    def _watch(self) -> None:
        unsent_bytes = self._connection.http2.unsent_nbytes(self._stream_id)
        is_read = not unsent_bytes or (unsent_bytes <= _MAX_UNSENT_BYTES and self._connection.has_room(_READ_BYTES))
        events = select.EPOLLIN * is_read | select.EPOLLOUT * bool(self._unsent)
        if events != self._events:
            self._events = events
            self._lane.watch(self.fd, events)

    # --- the answer comes in ---

    def serve(self, event: int) -> None:
        if event & select.EPOLLOUT:
            self._send()
            self._lane.note_output(self._connection)
        if event & ~select.EPOLLOUT:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
        elif self._num_left < 0:
            self._answer += data
            self._read_head()
        else:
            self._pass_on(data)
        self._lane.note_output(self._connection)

    def _read_head(self) -> None:
        head = unpack_head(self._answer)
        if head is None:
            if len(self._answer) > _MAX_HEAD_BYTES:
                self._lost()
        elif head.status:
            self._refuse(head.status, head.message)
        else:
            self._num_left = self._nbytes = head.response_nbytes
            self._connection.http2.send_headers(self._stream_id, HEADERS)
            self._connection.http2.send_data(self._stream_id, [prefix(self._num_left)])
            self._pass_on(bytes(self._answer[head.nbytes :]))

    def _pass_on(self, data: bytes) -> None:
        self._num_left -= len(data)
        if data:
            self._connection.http2.send_data(self._stream_id, [data])
        if self._num_left:
            self._watch()
            return
        self._end()
        self._connection.finish(self._stream_id, nbytes=self._nbytes)

    # --- other ends of the call ---

    def cancel(self) -> None:
        self._end()

    def expire(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self._refuse(*self._lane.too_late(self._opening))
            self._lane.note_output(self._connection)
            return
        self._watch()
        if self._is_too_slow(now_s):
            self._end()
            self._connection.cut(self._stream_id)
            self._lane.note_output(self._connection)

    def _is_too_slow(self, now_s: float) -> bool:
        """Whether the client reads the response so slowly that the call is to be ended: nothing for SEND_S or, while
        the connection has no room for more, less than PACE_BYTES in PACE_S."""
        queue = self._connection.http2.streams.queue_of(self._stream_id)
        if self._events & select.EPOLLIN or queue is None:
            self._pace, self._progress = ReadRate(), ReadRate(1, SEND_S)
            return False
        if self._connection.has_room(_READ_BYTES):
            self._pace = ReadRate()
            return self._progress.is_slow(now_s, queue.num_taken)
        return self._pace.is_slow(now_s, queue.num_taken)

    def _lost(self) -> None:
        self._refuse(_INTERNAL, _LOST)

    def _refuse(self, status: int, message: str) -> None:
        self._end()
        if self._num_left < 0:
            self._connection.refuse(self._stream_id, status, message)
        else:
            self._connection.finish(self._stream_id, status, message)

    def _end(self) -> None:
        if self._socket.fileno() >= 0:
            self._lane.forget(self)
            self._socket.close()
            self._connection.http2.keep_received(-len(self._unsent))
            self._unsent.clear()
            self._lane.upload_budget.remove(self)


def _head(opening: Opening, peer: str, message: LargeMessage, deadline_ns_: int) -> bytes:
    path, metadata = opening.method.path, opening.metadata
    begun, encoding = message.begun, IDENTITY
    if message.is_compressed:
        encoding = opening.encoding
        begun = decompressed_start(encoding, begun, MAX_LEADING_BYTES)
    return pack_head(path, peer, metadata, message.nbytes, encoding, deadline_ns_, leading_text(begun))

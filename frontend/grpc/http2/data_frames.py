"""Bodies of requests on their way in: DATA frames passed on as they come, and the receive windows of connection and
streams. Pure."""

from typing import Any

from shoal.frontend.grpc.http2.abuse_limits import AbuseLimits
from shoal.frontend.grpc.http2.events import DataReceived, Event, new
from shoal.frontend.grpc.http2.frames import (
    DEFAULT_MAX_FRAME,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HEAD_BYTES,
    PADDED,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    BrokenError,
)
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.sending import Sending
from shoal.frontend.grpc.http2.streams import Stream

#: A piece of data up to this size is copied out of the received bytes: a view costs as much, and would keep all of
#: these bytes in memory.
_COPIED_BYTES = 4096
#: A frame up to this size is joined with the frame before: HTTP/2 allows every client frames of this size, and many
#: send no larger ones.
_JOINED_BYTES = DEFAULT_MAX_FRAME


class DataFrames:
    """The DATA frame that is being received, and the connection's receive window."""

    __slots__ = (
        "_abuse",
        "_ends",
        "_kept",
        "_left",
        "_length",
        "_limits",
        "_sending",
        "_skip_left",
        "_stream",
        "_streams",
        "spare",
    )

    def __init__(self, limits: Limits, sending: Sending, abuse: AbuseLimits) -> None:
        self._limits = limits
        self._streams = sending.streams
        self._sending = sending
        self._abuse = abuse
        # The fields below are changed by every method.
        #: Bytes that may still come before the connection needs a WINDOW_UPDATE; negative if more than these have come.
        self.spare = limits.connection_window // 2
        self._kept = 0  # received bytes of all streams that count as not consumed, see `keep`
        self._stream: Stream | None = None  # the frame's stream; None: the frame's bytes are dropped
        self._length = 0  # length of the frame's payload if it is all data and further frames may follow; else 0
        self._left = 0  # bytes of the frame's data to come
        self._ends = False  # whether the stream ends with the frame
        self._skip_left = 0  # bytes to come of the frame's padding, or of an unknown frame

    @property
    def is_within_frame(self) -> bool:
        """Whether the next bytes belong to a frame that has begun, so that `go_on` must take them."""
        return self._left > 0 or self._skip_left > 0

    @property
    def expected(self) -> tuple[int, int, int, int] | None:
        """The stream whose data comes next, how many bytes of its data come for certain, the length of a frame like the
        present one, and how many such frames might follow; None if other bytes may come next."""
        stream, length = self._stream, self._length
        if stream is None or not self._is_open(stream):
            return None
        if not self._left and (not length or self._skip_left or stream.is_ended_by_peer):
            return None
        if not length:
            return stream.number, self._left, 0, 0
        room = min(self.spare, stream.receive_window)
        if stream.body_left >= 0:
            room = min(room, stream.body_left)
        return stream.number, self._left, length, room // length

    def received_directly(self, nbytes: int, num_alike: int, events: list[Event]) -> None:
        """Count `nbytes` of the `expected` bytes that were received without `go_on`, and among which `num_alike`
        further frames like the last one have begun."""
        stream = self._stream
        if num_alike and stream is not None:
            length = num_alike * self._length
            self.spare -= length
            stream.receive_window -= length
            if stream.body_left > 0:
                stream.body_left -= length
            self._left += length
        self._left -= nbytes
        if stream is not None and not self._left and self._ends:
            self._end(stream, b"", events)

    def credit(self, stream: Stream, nbytes: int) -> None:
        """Note that `nbytes` bytes of a stream are consumed: the client may send as many more on the stream."""
        stream.uncredited += nbytes
        if stream.uncredited * 2 >= self._limits.stream_window and not stream.is_ended_by_peer:
            self._sending.update_window(stream.number, stream.uncredited)
            stream.receive_window += stream.uncredited
            stream.uncredited = 0

    def keep(self, nbytes: int) -> None:
        """Count `nbytes` more received bytes (negative: fewer) as not consumed. The connection's window is smaller by
        the bytes that are so counted at the moment.

        All other data counts as consumed when it is received.
        """
        self._kept += nbytes
        if nbytes < 0 and self.spare < 0:
            self._give_back()

    def _give_back(self) -> None:
        increment = self._limits.connection_window // 2 - self.spare - self._kept
        if increment > 0:
            self._sending.update_window(0, increment)
            self.spare += increment

    def begin(self, data: bytes, position: int, length: int, flags: int, number: int, events: list[Event]) -> int:
        """Receive a DATA frame whose payload begins at `position`. Returns the position behind the bytes taken."""
        stream = self._streams.open.get(number)
        stop = position + length
        if (
            stream is None
            or stream.is_ended_by_peer
            or 0 <= stream.body_left < length
            or (flags and (flags & PADDED or stream.body_left > length))
            or not 0 < length <= stream.receive_window
            or length > self.spare
            or stop > len(data)
        ):
            return self._begin(data, position, length, flags, number, events)
        # The common kind of frame: this branch does what `_begin` would do, in a fifth of the time.
        self.spare -= length
        stream.receive_window -= length
        if stream.body_left > 0:
            stream.body_left -= length
        stream.is_ended_by_peer = ends = flags & END_STREAM != 0
        self._stream, self._ends, self._length = stream, ends, 0 if flags else length
        piece: bytes | memoryview = data[position:stop] if length <= _COPIED_BYTES else memoryview(data)[position:stop]
        if not ends and length <= _JOINED_BYTES:
            piece, stop = self._join_equals(data, position, piece, stream)
        events.append(new(DataReceived, (number, piece, ends)))
        return stop

    def _join_equals(self, data: bytes, position: int, first: bytes | memoryview, stream: Stream) -> tuple[Any, int]:
        """A payload joined with the payloads of the frames behind it that have an equal head, and the position behind
        the last of these frames.

        Many clients cut a large message into frames of 16 KiB: to copy such a frame costs a tenth of the time that an
        event of its own would take.
        """
        length = len(first)
        head, stop, step = data[position - HEAD_BYTES : position], position + length, HEAD_BYTES + length
        most = min(self.spare, stream.receive_window, (len(data) - stop) // step * length) // length
        if stream.body_left >= 0:
            most = min(most, stream.body_left // length)
        pieces, view = [first], memoryview(data)
        for _ in range(most):
            if not data.startswith(head, stop):
                break
            stop += step
            pieces.append(view[stop - length : stop])
        if len(pieces) == 1:
            return first, stop
        nbytes = length * (len(pieces) - 1)
        self.spare -= nbytes
        stream.receive_window -= nbytes
        if stream.body_left > 0:
            stream.body_left -= nbytes
        return b"".join(pieces), stop

    def _begin(self, data: bytes, position: int, length: int, flags: int, number: int, events: list[Event]) -> int:
        num_padded = 0
        if flags & PADDED:
            # Padding, its length byte included, counts as data in the windows.
            num_padded = 1 + data[position] if length else 1
            position += 1
            if num_padded > length:
                raise BrokenError(PROTOCOL_ERROR if length else FRAME_SIZE_ERROR, "more padding than payload")
        self._take(length)
        nbytes = length - num_padded
        ends = flags & END_STREAM != 0
        stream = self._streams.open.get(number)
        if stream is None:
            self._streams.pass_over(number, ends)
        else:
            error_code = _fault(stream, length, nbytes, ends)
            if error_code:
                stream.is_ended_by_peer |= ends
                self._abuse.fault(stream, error_code, events)
                stream = None
            else:
                stream.receive_window -= length
                if num_padded:
                    self.credit(stream, num_padded)
        if not nbytes:
            if not ends:
                self._abuse.nuisance()
            elif stream is not None:
                self._end(stream, b"", events)
        self._stream, self._left, self._ends = stream, nbytes, ends
        self._length = 0 if flags else length
        self._skip_left = max(num_padded - 1, 0)
        return self.go_on(data, position, events)

    def skip(self, nbytes: int) -> None:
        self._skip_left = nbytes

    def go_on(self, data: bytes, position: int, events: list[Event]) -> int:
        """Receive the rest of a frame. Returns the position behind the bytes taken."""
        if self._left:
            stop = min(position + self._left, len(data))
            nbytes = stop - position
            self._left -= nbytes
            stream = self._stream
            if stream is not None and nbytes:
                piece = data[position:stop] if nbytes <= _COPIED_BYTES else memoryview(data)[position:stop]
                if self._ends and not self._left:
                    self._end(stream, piece, events)
                elif self._is_open(stream):
                    events.append(DataReceived(stream.number, piece, False))
            position = stop
            if self._left:
                return position
        skipped = min(self._skip_left, len(data) - position)
        self._skip_left -= skipped
        return position + skipped

    def _take(self, nbytes: int) -> None:
        """Take data from the connection's window; consumed bytes are given back once half of the window is used.
        Raises BrokenError if the client exceeds the window."""
        self.spare -= nbytes
        if self.spare < 0:
            if self.spare + self._limits.connection_window // 2 < 0:
                raise BrokenError(FLOW_CONTROL_ERROR, "more data than the connection's window")
            self._give_back()

    def _end(self, stream: Stream, data: bytes | memoryview, events: list[Event]) -> None:
        """End the client's side of a stream with the last piece of its data."""
        if self._is_open(stream):
            stream.is_ended_by_peer = True
            events.append(DataReceived(stream.number, data, True))
        else:
            self._streams.left.pop(stream.number, None)

    def _is_open(self, stream: Stream) -> bool:
        """Whether a stream is still open: it may have been reset since its frame began."""
        return self._streams.open.get(stream.number) is stream


def _fault(stream: Stream, length: int, nbytes: int, ends: bool) -> int:
    """The error code for a DATA frame that breaks a rule of its stream, or 0."""
    if stream.is_ended_by_peer:
        return STREAM_CLOSED
    if length > stream.receive_window:
        return FLOW_CONTROL_ERROR
    if stream.body_left >= 0:
        stream.body_left -= nbytes
        if stream.body_left < 0 or (ends and stream.body_left):
            return PROTOCOL_ERROR
    return 0

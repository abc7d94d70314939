"""The receiving half of an HTTP/2 connection: a client's bytes are split into frames, and frames become events. Pure.

Frames with data are passed on as they come; a frame of any other kind is kept until it has come whole. A broken rule of
a stream resets the stream; a broken rule of the connection raises BrokenError (RFC 9113, 5.4).
"""

from collections.abc import Callable
from typing import Literal

from shoal.frontend.grpc.http2 import frames
from shoal.frontend.grpc.http2.abuse_limits import AbuseLimits
from shoal.frontend.grpc.http2.data_frames import DataFrames
from shoal.frontend.grpc.http2.events import (
    DataReceived,
    Event,
    PingAcked,
    RequestStarted,
    StreamReset,
    new,
)
from shoal.frontend.grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HEAD_BYTES,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    PRIORITISED,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    BrokenError,
    unpack_head,
    word_of,
)
from shoal.frontend.grpc.http2.header_blocks import (
    HeaderBlocks,
    LargeHeaders,
    MalformedError,
    TooLargeError,
    body_length,
)
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.sending import Sending
from shoal.frontend.grpc.http2.streams import Stream

#: The payload of our pings, by which their answers are recognised.
PING = b"shoal\0\0\0"
_ANY = -1
#: The cost of SETTINGS, counted in frames without content: SETTINGS may change the window of every stream.
_SETTINGS_COST = 10.0

_Handler = Callable[[int, int, bytes, list[Event]], None]


class Receiving:
    """The parts, received so far, of a frame and of a header list; `data_frames` receives the bodies."""

    __slots__ = (
        "_abuse",
        "_block",
        "_block_flags",
        "_block_stream_id",
        "_expected",
        "_kinds",
        "_max_continuations",
        "_max_frame",
        "_max_header_bytes",
        "_max_open_header_bytes",
        "_max_streams",
        "_num_continuations",
        "_partial",
        "_sending",
        "_stream_window",
        "_streams",
        "_waits_since_s",
        "_wanted",
        "blocks",
        "data_frames",
        "has_begun",
        "is_between_frames",
        "is_going_away",
    )

    def __init__(self, limits: Limits, sending: Sending, now_s: float) -> None:
        self._max_frame = limits.max_frame
        self._max_streams = limits.max_streams
        self._stream_window = limits.stream_window
        self._max_header_bytes = limits.max_header_bytes
        self._max_open_header_bytes = limits.max_open_header_bytes
        self._max_continuations = limits.max_continuations
        self._streams = sending.streams
        self._sending = sending
        self._abuse = AbuseLimits(limits, sending, now_s)
        self.blocks = HeaderBlocks(limits)
        self.data_frames = DataFrames(limits, sending, self._abuse)
        most = limits.max_header_bytes + 256 + 5  # beside the block: padding and priority
        #: By kind of frame: its handler, and the fewest and most bytes that its payload may have.
        self._kinds: dict[int, tuple[_Handler, int, int]] = {
            HEADERS: (self._headers, 0, most),
            frames.PRIORITY: (self._priority, 5, 5),
            frames.RST_STREAM: (self._rst_stream, 4, 4),
            frames.SETTINGS: (self._settings, 0, limits.max_settings * 6),
            frames.PING: (self._ping, 8, 8),
            frames.GOAWAY: (self._go_away, 8, 8 + limits.max_debug_bytes),
            frames.WINDOW_UPDATE: (self._window_update, 4, 4),
            frames.CONTINUATION: (self._continuation, 0, most),
        }
        # The fields below are changed by `receive` and all methods that it calls.
        #: Whether the client's connection preface (RFC 9113, 3.4) has come.
        self.has_begun = False
        self._expected = SETTINGS  # the one kind of frame that may come next; _ANY: all may
        self._partial = bytearray()  # the beginning of a frame, which is handled once there are `_wanted` bytes
        self._wanted = 0
        self._waits_since_s = now_s  # when the beginning of a frame, or of a header list, came
        #: Whether the next byte begins a frame, of any kind. Changed by the connection, too.
        self.is_between_frames = False
        self._block = bytearray()  # the beginning of a header list of which more is to come
        self._block_stream_id = self._block_flags = self._num_continuations = 0
        #: Whether new streams are refused. Changed by the connection.
        self.is_going_away = False

    def bound(self, max_streams: int, max_header_bytes: int) -> None:
        """Bound the open streams, and the bytes of their header lists, from now on; open streams go on."""
        self._max_streams, self._max_open_header_bytes = max_streams, max_header_bytes
        self.blocks.bound(max_header_bytes)

    @property
    def header_nbytes(self) -> int:
        """Bytes of the header lists that are kept: of open streams, and of known blocks."""
        return sum(self._open_lists().values()) + self.blocks.known_nbytes

    def receive(self, data: bytes, now_s: float, events: list[Event]) -> None:
        """Parse received bytes and append their events. Raises BrokenError if the client breaks a rule of the
        connection."""
        self._abuse.now_s = now_s
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return
            data = bytes(self._partial)
            self._partial.clear()
        position = 0
        if self.data_frames.is_within_frame:
            position = self.data_frames.go_on(data, 0, events)
        elif not self.has_begun:
            position = self._begin(data)
        position = self._frames(data, position, events)
        if position < len(data):
            self._partial += memoryview(data)[position:]
            self._waits_since_s = now_s
        self._abuse.unread()
        self.is_between_frames = not (self._partial or self.data_frames.is_within_frame) and self._expected == _ANY

    def waits_since(self, then_s: float) -> bool:
        """Whether the rest of a frame other than DATA, or of a header list, has been missing since `then_s`."""
        return bool(self._partial or self._block) and self._waits_since_s <= then_s

    def _begin(self, data: bytes) -> int:
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise BrokenError(PROTOCOL_ERROR, "not an HTTP/2 preface")
        if len(data) < len(PREFACE):
            self._wanted = len(data) + 1
            return 0
        self.has_begun = True
        return len(PREFACE)

    def _frames(self, data: bytes, position: int, events: list[Event]) -> int:
        """Parse all complete frames. Returns the position of the first incomplete one."""
        if not self.has_begun:
            return 0
        end = len(data)
        while end - position >= HEAD_BYTES:
            word, flags, number = unpack_head(data, position)
            length, kind = word >> 8, word & 0xFF
            number &= MAX_STREAM_ID
            if length > self._max_frame:
                raise BrokenError(FRAME_SIZE_ERROR, "frame larger than SETTINGS_MAX_FRAME_SIZE")
            if kind != self._expected != _ANY:
                raise BrokenError(PROTOCOL_ERROR, "SETTINGS or CONTINUATION expected")
            if kind == DATA:
                if flags & PADDED and end - position == HEAD_BYTES:
                    self._wanted = HEAD_BYTES + 1
                    return position
                position = self.data_frames.begin(data, position + HEAD_BYTES, length, flags, number, events)
                continue
            if kind > CONTINUATION:
                self._abuse.nuisance()
                self.data_frames.skip(length)
                position = self.data_frames.go_on(data, position + HEAD_BYTES, events)
                continue
            if kind == frames.PUSH_PROMISE:  # refused at its head, so that its payload need not be kept
                raise BrokenError(PROTOCOL_ERROR, "PUSH_PROMISE of a client")
            handler, least, most = self._kinds[kind]
            if not least <= length <= most:
                # A frame that is too small breaks a rule of the RFC; a frame that is too large may only exceed our
                # limits.
                is_fixed = length < least or least == most
                raise BrokenError(FRAME_SIZE_ERROR if is_fixed else ENHANCE_YOUR_CALM, "frame of an illegal size")
            stop = position + HEAD_BYTES + length
            if stop > end:
                self._wanted = HEAD_BYTES + length
                return position
            handler(flags, number, data[position + HEAD_BYTES : stop], events)
            position = stop
        self._wanted = HEAD_BYTES
        return position

    def open_whole(self, number: int, block: bytes, nbytes: int) -> Stream | Literal[False] | None:
        """Open a stream for two frames that the lane has recognised, in place of `receive`: a whole HEADERS with this
        block, and a whole DATA of `nbytes` bytes that ends the stream.

        Returns None if the stream is refused: only the DATA must then go through `receive`. Returns False, without
        effect, if both frames must go through `receive`. Raises BrokenError.
        """
        data_frames = self.data_frames
        if (
            not self.is_between_frames
            or self.is_going_away
            or not self._streams.last_id < number <= MAX_STREAM_ID
            or not number & 1
            or nbytes > data_frames.spare
        ):
            return False
        stream = self._open(number, block, is_last=False)
        if stream is not None:
            data_frames.spare -= nbytes
            stream.is_ended_by_peer = True
        return stream

    def go_on(self, stream: Stream, nbytes: int) -> None:
        """Note that the DATA frame of `open_whole` comes through `receive` after all."""
        self.data_frames.spare += nbytes
        stream.is_ended_by_peer = False

    # --- header lists ---

    def _headers(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if not number & 1:
            raise BrokenError(PROTOCOL_ERROR, "HEADERS of a stream that is no client's")
        if flags & (PADDED | PRIORITISED):
            payload = frames.unpadded(payload, flags)
        if flags & END_HEADERS:
            self._header_list(flags, number, payload, events)
        else:
            self._block += payload
            self._waits_since_s = self._abuse.now_s
            self._block_stream_id, self._block_flags, self._num_continuations = number, flags, 0
            self._expected = CONTINUATION

    def _continuation(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if self._expected != CONTINUATION or number != self._block_stream_id:
            raise BrokenError(PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        self._num_continuations += 1
        if self._num_continuations > self._max_continuations or len(self._block) > self._max_header_bytes:
            raise BrokenError(ENHANCE_YOUR_CALM, "header list too large")
        if flags & END_HEADERS:
            self._expected = _ANY
            block = bytes(self._block)
            self._block.clear()
            self._header_list(self._block_flags, number, block, events)

    def _header_list(self, flags: int, number: int, block: bytes, events: list[Event]) -> None:
        is_last = flags & END_STREAM != 0
        if number <= self._streams.last_id:
            self._trailers(number, block, is_last, events)
            return
        stream = self._open(number, block, is_last)
        if stream is not None:
            events.append(new(RequestStarted, (number, stream.headers, is_last)))

    def _open(self, number: int, block: bytes, is_last: bool) -> Stream | None:
        """Open a stream by its header block; None if the stream is refused. Raises BrokenError."""
        headers = self.blocks.known.get(block)
        error_code = 0
        if headers is None:
            try:
                headers = self.blocks.request(block)
            except MalformedError:
                error_code = PROTOCOL_ERROR
            except TooLargeError:
                error_code = ENHANCE_YOUR_CALM
        self._streams.last_id = number
        if self.is_going_away or len(self._streams.open) >= self._max_streams:
            error_code = REFUSED_STREAM
        if isinstance(headers, LargeHeaders) and not self._has_room_for(headers):
            error_code = REFUSED_STREAM
        if headers is None or error_code:
            self._refuse(number, error_code, is_last)
            return None
        body_left = -1
        if "content-length" in headers:
            body_left = body_length(headers["content-length"])
            if body_left < 0 or (is_last and body_left):
                self._refuse(number, PROTOCOL_ERROR, is_last)
                return None
        stream = Stream(number, self._sending.initial_window, self._stream_window, is_last, headers)
        stream.body_left = body_left
        self._streams.open[number] = stream
        return stream

    def _has_room_for(self, headers: LargeHeaders) -> bool:
        """Whether a further stream may have these headers: the newest open stream shares them, or there is room for
        them beside those of all open streams."""
        last = next(reversed(self._streams.open.values()), None)
        if last is not None and last.headers is headers:  # the client's calls are all alike
            return True
        open_lists = self._open_lists()
        open_lists[id(headers)] = headers.nbytes
        return sum(open_lists.values()) <= self._max_open_header_bytes

    def _open_lists(self) -> dict[int, int]:
        """The bytes of each large header list of the open streams, by the identity of its LargeHeaders."""
        found = [stream.headers for stream in self._streams.open.values()]
        return {id(each): each.nbytes for each in found if isinstance(each, LargeHeaders)}

    def _refuse(self, number: int, error_code: int, is_last: bool) -> None:
        """Refuse a stream that was never opened."""
        self._abuse.nuisance()
        self._sending.refuse(number, error_code, is_ended_by_peer=is_last)

    def _trailers(self, number: int, block: bytes, is_last: bool, events: list[Event]) -> None:
        error_code = 0
        try:
            self.blocks.trailers(block)
        except MalformedError:
            error_code = PROTOCOL_ERROR
        except TooLargeError:
            error_code = ENHANCE_YOUR_CALM
        stream = self._streams.open.get(number)
        if stream is None:
            self._streams.pass_over(number, is_last)
        elif stream.is_ended_by_peer:
            self._abuse.fault(stream, STREAM_CLOSED, events)
        elif error_code or not is_last or stream.body_left > 0:
            self._abuse.fault(stream, error_code or PROTOCOL_ERROR, events)
        else:
            stream.is_ended_by_peer = True
            events.append(DataReceived(number, b"", True))

    # --- everything else ---

    def _priority(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Ignore an obsolete PRIORITY (RFC 9113, 5.3)."""
        del flags, payload, events
        if number == 0:
            raise BrokenError(PROTOCOL_ERROR, "PRIORITY of no stream")
        self._abuse.nuisance()

    def _rst_stream(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        del flags
        if number == 0 or number > self._streams.last_id:
            raise BrokenError(PROTOCOL_ERROR, "RST_STREAM of a stream that was never opened")
        stream = self._streams.open.get(number)
        self._streams.left.pop(number, None)
        if stream is None:
            self._abuse.nuisance()
            return
        self._abuse.cancellation()
        self._sending.drop(stream)
        events.append(StreamReset(number, word_of(payload)))

    def _settings(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        del events
        if number != 0 or (flags & ACK and self._expected == SETTINGS):
            raise BrokenError(PROTOCOL_ERROR, "SETTINGS of a stream, or an answer before them")
        if len(payload) % 6 or (flags & ACK and payload):
            raise BrokenError(FRAME_SIZE_ERROR, "SETTINGS of an illegal size")
        self._abuse.nuisance(_SETTINGS_COST)
        self._expected = _ANY
        if flags & ACK:
            return
        values = dict(frames.parse_settings(payload))  # if a setting is repeated, its last value holds
        if values.get(frames.ENABLE_PUSH, 0) > 1:
            raise BrokenError(PROTOCOL_ERROR, "illegal SETTINGS_ENABLE_PUSH")
        max_frame = values.get(frames.MAX_FRAME_SIZE, frames.DEFAULT_MAX_FRAME)
        if not frames.DEFAULT_MAX_FRAME <= max_frame <= frames.MAX_MAX_FRAME:
            raise BrokenError(PROTOCOL_ERROR, "illegal SETTINGS_MAX_FRAME_SIZE")
        window = values.get(frames.INITIAL_WINDOW_SIZE, 0)
        if window > MAX_WINDOW:
            raise BrokenError(FLOW_CONTROL_ERROR, "illegal SETTINGS_INITIAL_WINDOW_SIZE")
        if not self._sending.apply(values):
            raise BrokenError(FLOW_CONTROL_ERROR, "a stream's window beyond 2^31-1")

    def _ping(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if number != 0:
            raise BrokenError(PROTOCOL_ERROR, "PING of a stream")
        if not flags & ACK:
            self._abuse.ping(len(self._streams.open))
            self._sending.answer(frames.ping(payload, ACK))
        elif payload == PING:
            events.append(PingAcked())
        else:
            self._abuse.nuisance()

    def _go_away(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Check a GOAWAY. A server need not act on it: the client opens no more streams, and the open streams go on."""
        del flags, payload, events
        if number != 0:
            raise BrokenError(PROTOCOL_ERROR, "GOAWAY of a stream")
        self._abuse.nuisance()

    def _window_update(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        del flags
        self._abuse.nuisance()
        increment = word_of(payload) & MAX_WINDOW
        sending = self._sending
        if number == 0:
            sending.window += increment
            if not increment:
                raise BrokenError(PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            if sending.window > MAX_WINDOW:
                raise BrokenError(FLOW_CONTROL_ERROR, "the connection's window beyond 2^31-1")
            return
        if number > self._streams.last_id:
            raise BrokenError(PROTOCOL_ERROR, "WINDOW_UPDATE of a stream that was never opened")
        stream = self._streams.open.get(number)
        if stream is None:
            return
        if not increment:
            self._abuse.fault(stream, PROTOCOL_ERROR, events)
        elif not sending.widen(stream, increment):
            self._abuse.fault(stream, FLOW_CONTROL_ERROR, events)

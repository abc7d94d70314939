"""The server side of an HTTP/2 connection (RFC 9113), as much of it as gRPC needs; socket and clock are the lane's.
Pure.

Bytes go into `receive`, which never raises on a client's bytes, and come out as events; the server's actions come out
of `output` as bytes. A client that breaks a rule of a stream loses the stream; one that breaks a rule of the connection
or floods it gets GOAWAY with the code that the RFC names, and `is_failed` is true. A client must begin with HTTP/2 at
once ("prior knowledge"): there is no upgrade from HTTP/1.
"""

from shoal.frontend.grpc.http2 import frames
from shoal.frontend.grpc.http2.events import Event
from shoal.frontend.grpc.http2.frames import NO_ERROR, BrokenError
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.receiving import PING, Receiving
from shoal.frontend.grpc.http2.sending import Sending

_HTTP1_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ")
_ADVICE = b"This port speaks gRPC, over HTTP/2. HTTP has a port of its own: 8000, or what --http-port says.\n"
#: The answer to a client that speaks HTTP/1.
_IN_HTTP1 = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_ADVICE), _ADVICE)
)


class Http2Connection(Sending):
    """One client's connection: receives through Receiving, and responds by Sending's methods."""

    __slots__ = (
        "_max_pings",
        "_num_pings",
        "_num_sent_at_ping",
        "_receiving",
        "go_on",
        "is_failed",
        "keep_received",
        "open_whole",
    )

    def __init__(self, limits: Limits, now_s: float) -> None:
        super().__init__(limits)
        self._receiving = Receiving(limits, self, now_s)
        self._max_pings = limits.max_pings_without_data
        #: `open_whole` opens a stream for two frames, HEADERS and DATA, that the lane has recognised; `go_on` has the
        #: DATA go through `receive` after all.
        self.open_whole = self._receiving.open_whole
        self.go_on = self._receiving.go_on
        #: Counts received bytes that are not consumed; see DataFrames.keep.
        self.keep_received = self._receiving.data_frames.keep
        # The fields below are changed by `ping`.
        self._num_pings = self._num_sent_at_ping = 0
        #: Whether the client broke a rule of the connection: the output is to be sent, then it is closed. Changed by
        #: `receive`.
        self.is_failed = False

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """The events of these received bytes; none once the connection has failed, which ends all its streams without
        events.

        The lane then sends what `output` returns; it may first send the rest of an earlier output.
        """
        events: list[Event] = []
        if self.is_failed:
            return events
        try:
            self._receiving.receive(data, now_s, events)
        except BrokenError as error:
            events.clear()
            self.fail(error, data)
        return events

    def fail(self, error: BrokenError, data: bytes = b"") -> None:
        """End the connection, whose client has broken a rule with this data."""
        self.is_failed = True
        self.drop_all()
        has_greeted = self._receiving.has_begun or not self._small
        if data.startswith(_HTTP1_METHODS) and not has_greeted:
            self._small = [_IN_HTTP1]
        else:
            self.go_away(error.error_code, str(error).encode())

    @property
    def expected(self) -> tuple[int, int, int, int] | None:
        """The next bytes of the connection, where they are certain to be data of one stream; else None.

        A tuple: the stream's id, the number of bytes, the length of the stream's last DATA frame, and how many frames
        with an equal head may follow. The lane may receive these bytes directly, instead of by `receive`, and then
        calls `received_directly`.
        """
        data_frames = self._receiving.data_frames
        if self.is_failed or not (data_frames.is_within_frame or self._receiving.is_between_frames):
            return None
        return data_frames.expected

    def received_directly(self, nbytes: int, num_alike: int = 0) -> list[Event]:
        """Count `nbytes` bytes of the `expected` data that were received directly, among which `num_alike` further
        frames have begun. Returns an event if the stream ends with them."""
        events: list[Event] = []
        data_frames = self._receiving.data_frames
        data_frames.received_directly(nbytes, num_alike, events)
        self._receiving.is_between_frames = not data_frames.is_within_frame
        return events

    def waits_since(self, then_s: float) -> bool:
        """Whether the rest of a frame other than DATA, or of a header list, has been missing since `then_s`."""
        return self._receiving.waits_since(then_s)

    def bound(self, max_streams: int, max_header_bytes: int) -> None:
        """Bound the open streams, and the bytes of their header lists, from now on; open streams go on."""
        self._receiving.bound(max_streams, max_header_bytes)

    @property
    def header_nbytes(self) -> int:
        """Bytes of the header lists that are kept: of open streams, and of known blocks."""
        return self._receiving.header_nbytes

    def credit(self, stream_id: int, nbytes: int) -> None:
        """Note that `nbytes` bytes of a stream's data are consumed: its client may send as many more."""
        stream = self.streams.open.get(stream_id)
        if stream is not None:
            self._receiving.data_frames.credit(stream, nbytes)

    def ping(self) -> bool:
        """Send a ping, to be answered by PingAcked. False if `max_pings_without_data` pings have been sent since the
        last HEADERS or DATA."""
        if self._num_sent_at_ping != self.num_sent:
            self._num_sent_at_ping, self._num_pings = self.num_sent, 0
        if 0 < self._max_pings <= self._num_pings:
            return False
        self._num_pings += 1
        self.answer(frames.ping(PING))
        return True

    def go_away(self, error_code: int = NO_ERROR, debug: bytes = b"") -> None:
        """Accept no further streams; open ones continue. `is_drained` once they are done."""
        if not self._receiving.is_going_away or error_code:
            self._receiving.is_going_away = True
            self.answer(frames.go_away(self.streams.last_id, error_code, debug))

    def close(self) -> None:
        """Drop all streams of a dead connection. `output` then returns the tokens of their data, with bytes that must
        not be sent."""
        self.drop_all()

    @property
    def is_drained(self) -> bool:
        """Whether no further streams are accepted, and the output has every response to its end."""
        return self._receiving.is_going_away and not self.streams.open

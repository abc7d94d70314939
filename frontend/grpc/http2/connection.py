"""The server side of an HTTP/2 connection (RFC 9113), as much of it as gRPC needs, without socket and clock. Pure.

Bytes go into `receive`, which never raises on what a client sends, and come out as events; what the server does comes
out of `output` as bytes. A client that breaks a rule of a stream loses the stream; one that breaks a rule of the
connection or floods it gets GOAWAY with the code that the RFC names, and `is_failed` is true. HTTP/2 starts with prior
knowledge only.
"""

from shoal.frontend.grpc.http2 import frames
from shoal.frontend.grpc.http2.events import Event
from shoal.frontend.grpc.http2.frames import NO_ERROR, BrokenError
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.receiving import PING, Receiving
from shoal.frontend.grpc.http2.sending import Sending

_HTTP1_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ")
_ADVICE = b"This port speaks gRPC, over HTTP/2. HTTP has a port of its own: 8000, or what --http-port says.\n"
#: What a client that speaks HTTP/1 is answered.
_IN_HTTP1 = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_ADVICE), _ADVICE)
)


class Http2Connection(Sending):
    """One client's connection: receives through Receiving, and responds by Sending's methods."""

    __slots__ = ("_receiving", "is_failed", "keep_received", "open_whole")

    def __init__(self, limits: Limits, now_s: float) -> None:
        super().__init__(limits)
        self._receiving = Receiving(limits, self, now_s)
        #: Short for `receive`, for calls that are known.
        self.open_whole = self._receiving.open_whole
        #: Short for `DataFrames.keep`.
        self.keep_received = self._receiving.data_frames.keep
        #: The client broke the connection: send the output, then close. Changed by `receive`.
        self.is_failed = False

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """What the client did by these bytes; nothing once it has failed: then all its streams are void without a word.

        Call `output` afterwards, at the latest when what it gave before is written.
        """
        events: list[Event] = []
        if self.is_failed:
            return events
        try:
            self._receiving.receive(data, now_s, events)
        except BrokenError as error:
            self.is_failed = True
            events.clear()
            self.drop_all()
            has_greeted = self._receiving.has_begun or not self._small
            if data.startswith(_HTTP1_METHODS) and not has_greeted:
                self._small = [_IN_HTTP1]
            else:
                self.go_away(error.error_code, str(error).encode())
        return events

    @property
    def expected(self) -> tuple[int, int, int, int] | None:
        """Stream and number of the bytes that come next, where they are certain to be its data and nothing else; then
        the length of its last frame, and how many frames of the same head might follow.

        The caller may receive these where it wants them, instead of by `receive`, and says so afterwards.
        """
        data_frames = self._receiving.data_frames
        if self.is_failed or not (data_frames.is_within_frame or self._receiving.is_between_frames):
            return None
        return data_frames.expected

    def received_directly(self, nbytes: int, num_alike: int = 0) -> list[Event]:
        """So many bytes of data have come of what was `expected`, and so many frames have begun with them.

        An event where the stream ends with them.
        """
        events: list[Event] = []
        data_frames = self._receiving.data_frames
        data_frames.received_directly(nbytes, num_alike, events)
        self._receiving.is_between_frames = not data_frames.is_within_frame
        return events

    def credit(self, stream_id: int, nbytes: int) -> None:
        """So many bytes of a stream's data are consumed: its client may send as many more."""
        stream = self.streams.open.get(stream_id)
        if stream is not None:
            self._receiving.data_frames.credit(stream, nbytes)

    def ping(self) -> None:
        """Ask for a sign of life: PingAcked."""
        self.answer(frames.ping(PING))

    def go_away(self, error_code: int = NO_ERROR, debug: bytes = b"") -> None:
        """Take no further streams; those open go on. `is_drained` once they are done."""
        if not self._receiving.is_going_away or error_code:
            self._receiving.is_going_away = True
            self.answer(frames.go_away(self.streams.last_id, error_code, debug))

    def close(self) -> None:
        """Drop all streams of a dead connection. Their tokens come out of `output`, with bytes that are not to be
        sent."""
        self.drop_all()

    @property
    def is_drained(self) -> bool:
        """Gone away, and every response lies in the output to its end."""
        return self._receiving.is_going_away and not self.streams.open

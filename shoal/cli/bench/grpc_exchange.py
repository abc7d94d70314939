"""gRPC on one connection of a load: one call at a time over HTTP/2, of whose answer only the status is read.

Pure. grpcio is not used, so that the load costs less than the server that it measures. The server's header table is set
to size 0, so that equal trailers are equal bytes, which are decoded once.
"""

from collections.abc import Sequence
from urllib.parse import unquote

from hpack import Decoder, Encoder, HPACKError

from shoal.frontend.grpc.http2 import frames

#: The window for the server's responses in bytes: the largest that HTTP/2 allows. The connection's window is renewed
#: once half of it is used.
_WINDOW = frames.MAX_WINDOW
#: The most bytes of a frame that is sent: larger frames cost copies and save nothing (ours).
_MOST_FRAME_BYTES = 1 << 18
#: The most trailers of which the outcome is kept (ours).
_MAX_KEPT = 1024
_STATUSES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class GrpcExchange:
    """The calls of one connection, one after the other. `messages` are bodies of calls (`grpc_message`)."""

    _outcomes: dict[bytes, str | None] = {}  # noqa: RUF012  trailers → the error's sentence, for all connections

    def __init__(self, authority: str, path: str, messages: Sequence[bytes]) -> None:
        self._messages = messages
        self._encoder = Encoder()
        self._headers = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority),
            ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "shoal-bench"),
        ]  # fmt: skip
        # Changed by request and receive: all fields below.
        self._data = b""  # the beginning of a frame that has not arrived whole
        self._stream_id = -1
        self._block = b""  # the beginning of headers or trailers that have not arrived whole
        self._frames: list[tuple[int, bytes]] = []  # waiting for the server's windows: (length of its body, frame)
        self._initial_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.DEFAULT_MAX_FRAME
        self._connection_window = self._stream_window = frames.DEFAULT_WINDOW
        self._is_trailer = False  # whether the block being received has trailers
        self._num_received = 0
        self.error: str | None = None
        self.is_last = False

    def opening(self) -> bytes:
        """The client's preface: no header table, and windows that never close."""
        values = {frames.HEADER_TABLE_SIZE: 0, frames.INITIAL_WINDOW_SIZE: _WINDOW, frames.ENABLE_PUSH: 0}
        return frames.PREFACE + frames.settings(values) + frames.window_update(0, _WINDOW - frames.DEFAULT_WINDOW)

    def request(self, number: int) -> bytes:
        """The bytes of a call, as far as the server's windows allow."""
        self._stream_id += 2
        self._stream_window = self._initial_window
        body = self._messages[number % len(self._messages)]
        block = self._encoder.encode(self._headers)
        head = frames.headers(self._stream_id, block, 0, self._frame_bytes)
        size = self._frame_bytes
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        last = len(pieces) - 1
        self._frames = [
            (len(piece), frames.pack_head(len(piece) << 8, frames.END_STREAM * (at == last), self._stream_id) + piece)
            for at, piece in enumerate(pieces)
        ]
        return head + self._allowed()

    def _allowed(self) -> bytes:
        """The frames that the server's windows have room for now."""
        sent = []
        while self._frames and self._frames[0][0] <= min(self._connection_window, self._stream_window):
            num_bytes, frame = self._frames.pop(0)
            self._connection_window -= num_bytes
            self._stream_window -= num_bytes
            sent.append(frame)
        return b"".join(sent)

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Receive bytes from the server; returns bytes to send, and whether the call has ended."""
        if self._data:
            data = self._data + data
        at, end, reply, is_whole = 0, len(data), b"", False
        while end - at >= frames.HEAD_BYTES:
            word, flags, stream_id = frames.unpack_head(data, at)
            kind, num_bytes = word & 0xFF, word >> 8
            at += frames.HEAD_BYTES
            if end - at < num_bytes:
                at -= frames.HEAD_BYTES
                break
            if kind == frames.DATA:
                self._num_received += num_bytes
            elif kind in (frames.HEADERS, frames.CONTINUATION):
                is_whole |= self._take_headers(data[at : at + num_bytes], kind, flags, stream_id)
            elif kind == frames.RST_STREAM:
                if stream_id == self._stream_id:
                    self.error, is_whole = "the server reset the stream", True
            else:
                reply += self._take_control(data[at : at + num_bytes], kind, flags, stream_id)
            at += num_bytes
        self._data = data[at:]
        if self._num_received > _WINDOW // 2:
            reply += frames.window_update(0, self._num_received)
            self._num_received = 0
        return reply, is_whole

    def _take_headers(self, payload: bytes, kind: int, flags: int, stream_id: int) -> bool:
        """Receive headers or trailers; returns whether they end the call."""
        if kind == frames.HEADERS:
            payload = frames.unpadded(payload, flags)
            self._is_trailer = bool(flags & frames.END_STREAM)
        self._block += payload
        if not flags & frames.END_HEADERS:
            return False
        block, self._block = self._block, b""
        if not self._is_trailer or stream_id != self._stream_id:
            return False
        if block in self._outcomes:
            self.error = self._outcomes[block]
            return True
        self.error = _outcome(block)
        if len(self._outcomes) < _MAX_KEPT:
            self._outcomes[block] = self.error
        return True

    def _take_control(self, payload: bytes, kind: int, flags: int, stream_id: int) -> bytes:
        """Receive a frame that belongs to no call; returns the bytes to send in reply."""
        if kind == frames.SETTINGS and not flags & frames.ACK:
            for setting, value in frames.parse_settings(payload):
                if setting == frames.INITIAL_WINDOW_SIZE:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
                elif setting == frames.MAX_FRAME_SIZE:
                    self._frame_bytes = min(value, _MOST_FRAME_BYTES)
            return frames.SETTINGS_ACK + self._allowed()
        if kind == frames.PING and not flags & frames.ACK:
            return frames.ping(payload, frames.ACK)
        if kind == frames.WINDOW_UPDATE:
            if stream_id == 0:
                self._connection_window += frames.word_of(payload)
            elif stream_id == self._stream_id:
                self._stream_window += frames.word_of(payload)
            return self._allowed()
        if kind == frames.GOAWAY:
            self.is_last = True
        return b""


def grpc_message(serialized: bytes) -> bytes:
    """A message as it lies in a call's body: not compressed, its length before it."""
    return b"\0" + len(serialized).to_bytes(4, "big") + serialized


def _outcome(block: bytes) -> str | None:
    """The sentence of the error in a call's trailers; None where its status is OK."""
    try:
        headers = {str(name): str(value) for name, value in Decoder().decode(block)}
    except HPACKError as error:
        return f"trailers that cannot be read: {error}"
    status = headers.get("grpc-status", "")
    if status == "0":
        return None
    if not status.isdigit():
        return f"an answer without a gRPC status (HTTP status {headers.get(':status', 'none')})"
    name = _STATUSES[int(status)] if int(status) < len(_STATUSES) else status
    return f"{name}: {unquote(headers.get('grpc-message', ''))}"

"""A gRPC client that says by hand how much it reads: its windows are closed, or never given back, until it opens
them."""

import socket
from collections import defaultdict
from types import TracebackType

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, ResponseReceived, StreamEnded, TrailersReceived
from h2.settings import SettingCodes, Settings

from tests.end_to_end.server import DEADLINE_S

#: HTTP/2's initial window.
ORDINARY = 65_535
_WIDE = 1 << 30


class WindowClient:
    """One connection. What comes is kept by its streams; `window` is how much may come of each at first."""

    def __init__(self, port: int, window: int = 0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = Settings(client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._h2.initiate_connection()
        self._send()
        # Changed by what comes.
        self._data: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._trailers: dict[int, dict[str, str]] = {}
        self._is_open = False
        self._receive()  # the server's settings, which say what may be sent

    def __enter__(self) -> "WindowClient":
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.socket.close()

    def call(self, path: str, message: bytes | None = None, *, ends: bool = False) -> int:
        """Begin a call, with its message where that is given; its stream's number."""
        stream = self._h2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        self._h2.send_headers(stream, [*headers.items(), ("content-type", "application/grpc"), ("te", "trailers")])
        if message is not None:
            self.send(stream, b"\0" + len(message).to_bytes(4, "big") + message, ends=ends)
        return stream

    def send(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """More of a call, as the server's windows allow, unless the server has ended it."""
        while data and stream not in self._trailers:
            most = min(len(data), self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if most:
                self._h2.send_data(stream, data[:most])
                data = data[most:]
            else:
                self._send()
                self._receive()
        if ends and stream not in self._trailers:
            self._h2.end_stream(stream)
        self._send()

    def open_windows(self) -> None:
        """Read all from now on."""
        self._is_open = True
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: _WIDE})
        self._h2.increment_flow_control_window(_WIDE)
        self._send()

    def trailers(self, stream: int) -> dict[str, str]:
        """The end of a call, once it has come."""
        while stream not in self._trailers:
            self._receive()
        return self._trailers[stream]

    def first_end(self, streams: list[int]) -> dict[str, str]:
        """The end of the one of these calls that ends first."""
        while not (ended := [stream for stream in self._trailers if stream in streams]):
            self._receive()
        return self._trailers[ended[0]]

    def messages(self, stream: int) -> list[bytes]:
        """All messages of a call, once it has ended."""
        self.trailers(stream)
        data, found = bytes(self._data[stream]), []
        while data:
            end = 5 + int.from_bytes(data[1:5], "big")
            found.append(data[5:end])
            data = data[end:]
        return found

    def _send(self) -> None:
        self.socket.sendall(self._h2.data_to_send())

    def _receive(self) -> None:
        data = self.socket.recv(1 << 20)
        assert data, "the server has closed the connection"
        for event in self._h2.receive_data(data):
            self._take(event)
        self._send()

    def _take(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            assert event.stream_id is not None
            self._data[event.stream_id] += event.data or b""
        elif isinstance(event, (ResponseReceived, TrailersReceived)):
            assert event.stream_id is not None
            fields = {str(name): str(value) for name, value in event.headers or ()}
            if "grpc-status" in fields:
                self._trailers[event.stream_id] = fields
        else:
            assert not isinstance(event, RequestReceived | StreamEnded) or event.stream_id is not None

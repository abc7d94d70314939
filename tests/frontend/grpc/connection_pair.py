"""The two ends of a gRPC connection, without a socket."""

import socket

from shoal.frontend.grpc.connection import GrpcConnection, Token
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.kept_memory import KeptMemory
from tests.frontend.grpc.http2.peer import HEADERS, PLAIN_CALL, PREFACE, SETTINGS, frame, setting

#: With a window and frames that hold up nothing.
OPENING = PREFACE + frame(SETTINGS, 0, 0, setting(4, 1 << 30)) + frame(8, 0, 0, bytes((63, 0, 0, 0)))


class Pair:
    """A connection, its client, and the tokens that came back."""

    def __init__(self, opening: bytes = OPENING, kept: KeptMemory | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        ours.setblocking(False)
        self.released: list[Token] = []
        self.kept = kept or KeptMemory(1 << 20)
        self.connection = GrpcConnection(ours, Limits(), 0.0, self.released.append, self.kept, KeptMemory())
        self.connection.http2.receive(opening, 0.0)
        self.connection.flush(0.0)
        self.read()

    def read(self) -> bytes:
        """What has come, at least something."""
        return self.client.recv(1 << 20)

    def call(self, stream_id: int) -> None:
        self.connection.http2.receive(frame(HEADERS, 5, stream_id, PLAIN_CALL), 0.0)

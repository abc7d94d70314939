"""The two ends of a gRPC connection, in plain text or over TLS."""

import select
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from shoal.frontend.grpc.call import Service
from shoal.frontend.grpc.connection import GrpcConnection, Token
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.tls.tls_socket import TlsSocket
from shoal.tls import server_context
from tests.certificates import Certificates
from tests.frontend.grpc.http2.peer import HEADERS, PLAIN_CALL, PREFACE, SETTINGS, frame, setting

#: With a window and frames that hold up nothing.
OPENING = PREFACE + frame(SETTINGS, 0, 0, setting(4, 1 << 30)) + frame(8, 0, 0, bytes((63, 0, 0, 0)))


def plain_ends() -> tuple[socket.socket, socket.socket]:
    """The server's end of a connection, which does not block, and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=60)
        ours, _ = listener.accept()
    ours.setblocking(False)
    return ours, client


def tls_ends(
    certificates: Certificates, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[TlsSocket, ssl.SSLSocket]:
    """Like `plain_ends`, over TLS; the handshake is complete."""
    accepted, client = plain_ends()
    files = str(certificates.server_cert), str(certificates.server_key)
    ours = TlsSocket(accepted, server_context(*files, "", False), 0.0)
    context = ssl.create_default_context(cafile=certificates.root)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = version
    with ThreadPoolExecutor(1) as threads:
        wrapped = threads.submit(partial(context.wrap_socket, client, server_hostname="localhost"))
        while not ours.shake_hands():
            assert select.select([ours], [ours] if ours.has_unsent else [], [], 60)[0]
        return ours, wrapped.result(60)


class Pair:
    """A connection, its client, and the tokens that came back."""

    def __init__(
        self, opening: bytes = OPENING, kept: KeptMemory | None = None, certificates: Certificates | None = None
    ) -> None:
        """With `certificates`, over TLS."""
        self.client: socket.socket
        ours, self.client = plain_ends() if certificates is None else tls_ends(certificates)
        self.released: list[Token] = []
        self.kept = kept or KeptMemory(1 << 20)
        service = Service({}, cast(Any, None))  # the lane alone asks it
        self.connection = GrpcConnection(ours, Limits(), 0.0, self.released.append, self.kept, KeptMemory(), service)
        self.connection.http2.receive(opening, 0.0)
        self.connection.flush(0.0)
        self.read()

    def read(self) -> bytes:
        """What has come, at least something."""
        return self.client.recv(1 << 20)

    def call(self, stream_id: int) -> None:
        self.connection.http2.receive(frame(HEADERS, 5, stream_id, PLAIN_CALL), 0.0)

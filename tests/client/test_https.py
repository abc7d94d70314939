"""shoal/client/remote_http.py over TLS, against a server of the standard library's."""

import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shoal import Client
from shoal.errors import ConnectionLostError
from tests.certificates import make_certificates
from tests.listening import listening


class Metadata(BaseHTTPRequestHandler):
    """Answers every request with a server's metadata."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        text = b'{"name": "over TLS"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as its base class
        """Log nothing."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """The certificate that has signed the server's, and the server's port."""
    files = make_certificates(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server_cert, files.server_key)
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with listening(server):
        yield files.root, server.server_port


def test_a_server_whose_certificate_is_trusted(root: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(root[0]))
    with Client(f"https://localhost:{root[1]}") as client:
        assert client.server_metadata() == {"name": "over TLS"}


def test_a_server_whose_certificate_is_not(
    root: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(make_certificates(tmp_path).root))
    url = f"https://127.0.0.1:{root[1]}"  # localhost may be ::1, too, and tritonclient tells of the first address alone
    with Client(url) as client, pytest.raises(ConnectionLostError, match="certificate verify failed"):
        client.server_metadata()

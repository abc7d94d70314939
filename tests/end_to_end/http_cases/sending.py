"""Raw bytes to the server, one response from it, and whether the connection survives."""

import socket
from typing import NamedTuple

from tests.end_to_end.server import DEADLINE_S, Server


class Reply(NamedTuple):
    """What came back; status 0 = the connection was closed without a word."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=DEADLINE_S)


def receive(connection: socket.socket, fin: bool = False) -> Reply:
    """One response, and whether the server then closes; a reset after a complete response counts as closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            assert data == b""
            return Reply(0, {}, b"", closed=True)
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        piece = connection.recv(65536)
        assert piece, "the response was cut short"
        body += piece
    return Reply(int(status_line.split()[1]), headers, body, is_closed(connection, fin))


def is_closed(connection: socket.socket, fin: bool) -> bool:
    """Whether the server has ended the connection. One that it kept answers the next request."""
    try:
        if not fin:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(65536) == b""
    except (BrokenPipeError, ConnectionResetError):
        return True


def send(server: Server, data: bytes, fin: bool = False) -> Reply:
    """Send all that the server cares to read, and receive."""
    with connect(server) as connection:
        try:
            connection.sendall(data)
            if fin:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before its end: the answer is there all the same
        return receive(connection, fin)

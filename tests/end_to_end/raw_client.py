"""Raw HTTP for tests of the lane: a connection that sends any bytes, and requests to identity models as bytes."""

import json
import socket
import struct
from typing import NamedTuple

from tests.end_to_end.server import DEADLINE_S, Server


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def took_the_road(self) -> bool:
        """gunicorn signs what it answers."""
        return self.headers.get("server") == "gunicorn"


class Client:
    """A connection of raw bytes."""

    def __init__(self, server: Server, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", server.http_port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""  # received, not yet looked at

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> "Client":
        for piece in pieces:
            self.socket.sendall(piece)
        return self

    def finish(self) -> "Client":
        """Nothing more is sent."""
        self.socket.shutdown(socket.SHUT_WR)
        return self

    def reset(self) -> None:
        """Vanish."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def reply(self) -> Reply:
        """The next response."""
        while b"\r\n\r\n" not in self.data:
            self._more()
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if status.split()[1] == "100":
            return self.reply()
        length = int(headers["content-length"])
        while len(self.data) < length:
            self._more()
        body, self.data = self.data[:length], self.data[length:]
        return Reply(int(status.split()[1]), headers, body)

    def ask(self, data: bytes) -> Reply:
        return self.send(data).reply()

    def rest(self) -> bytes:
        """Everything until the server ends the connection."""
        try:
            while True:
                self._more()
        except (EOFError, ConnectionResetError):
            return self.data

    def _more(self) -> None:
        piece = self.socket.recv(1 << 20)
        if not piece:
            raise EOFError(f"the server ended the connection after {self.data!r}")
        self.data += piece


LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def post(model: str, body: bytes, *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in (*fields, b"Content-Length: %d" % len(body)))
    return b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n%s\r\n" % (model.encode(), lines) + body


def numbers(model: str, number: int, *fields: bytes) -> bytes:
    """A request in JSON whose answer has its number."""
    datatype, shape = ("FP32", b"[1,1]") if model == "grid" else ("INT32", b"[1]")
    return post(
        model,
        b'{"inputs":[{"name":"A","datatype":"%s","shape":%s,"data":[%d]}]}' % (datatype.encode(), shape, number),
        *fields,
    )


def number_in(reply: Reply) -> int:
    assert reply.status == 200, reply
    return int(json.loads(reply.body)["outputs"][0]["data"][0])


def tensor(data: bytes, *fields: bytes) -> bytes:
    """A request in binary, and for binary, of floats."""
    head = (
        b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],'
        b'"parameters":{"binary_data_output":true}}' % (len(data) // 4, len(data))
    )
    return post("grid", head + data, b"Inference-Header-Content-Length: %d" % len(head), *fields)


def tensor_in(reply: Reply) -> bytes:
    assert reply.status == 200, reply
    return reply.body[int(reply.headers["inference-header-content-length"]) :]

"""A real HTTP server on loopback that answers as it was told, and keeps what it was asked."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.listening import listening


class Request(NamedTuple):
    method: str
    path: str
    body: Any  # None where there was none
    headers: Mapping[str, str]  # names in lower case
    port: int  # the client's: a connection of its own has a port of its own


class Answering:
    """What is answered to a method and path, one after the other; the last answer stays. Anything else gets 404."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self._answers: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)

    def answer(self, request: str, value: Any = b"", status: int = 200) -> None:
        """Answer `METHOD path` with bytes as they are, or else with JSON."""
        self._answers[request].append((status, value if isinstance(value, bytes) else json.dumps(value).encode()))

    def next(self, request: Request) -> tuple[int, bytes]:
        self.requests.append(request)
        answers = self._answers[f"{request.method} {request.path}"]
        if not answers:
            return 404, b'{"error":"Not Found"}'
        return answers[0] if len(answers) == 1 else answers.pop(0)

    @property
    def asked(self) -> list[tuple[str, Any]]:
        """`METHOD path` and body of every request."""
        return [(f"{request.method} {request.path}", request.body) for request in self.requests]


@contextmanager
def answering() -> Iterator[Answering]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(
                self.command, self.path, json.loads(body) if body else None, headers, self.client_address[1]
            )
            status, answer = server.next(request)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name there
            """Nothing: the tests look at the requests themselves."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Answering(listener.server_port)
    with listening(listener):
        yield server

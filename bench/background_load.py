"""Background load on a server that is measured: a crowd of connections, or large bodies again and again.

Each is a context manager with a thread in this process, at the lowest priority: real clients would be elsewhere.
Leaving the context raises BenchmarkError where the server did not bear the whole load: then the figures mean nothing.
"""

import http.client
import math
import os
import resource
import selectors
import socket
import threading
import time
from dataclasses import dataclass

from bench.errors import BenchmarkError
from bench.server import ask
from bench.workloads import Request

SETTLE_S = 20.0  # the most seconds until the server has answered all openings
#: Seconds before a client whose connection the server has closed comes again, so that closing causes no flood.
RETURN_S = 5.0
TICK_S = 0.05
SIP_BYTES, SIP_S = 4096, 1.0
NICE = 19
_READ_BYTES = 64 * 1024


def raw(request: Request) -> bytes:
    """The bytes of a request in HTTP."""
    headers = {"Host": "127.0.0.1", **request.headers, "Content-Length": str(len(request.body))}
    lines = [f"POST {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + request.body


def content_length(head: bytes | bytearray) -> int | None:
    """The length of the body behind an answer's head; None where the head has none."""
    _, found, rest = head.lower().partition(b"\r\ncontent-length: ")
    return int(rest.partition(b"\r\n")[0]) if found else None


@dataclass(slots=True)
class QuietConnection:
    """One of many connections on which the server has nothing, or little, to do."""

    socket: socket.socket
    unsent: memoryview
    # Changed by the thread of QuietConnections.
    begins: bytes = b""  # the first bytes of the answer
    is_registered: bool = True  # False: a slow reader, which reads in turn
    is_gone: bool = False
    returns_at_s: float = 0.0


class QuietConnections:
    """`size` connections: each sends `opening`, then nothing. Each reads at once, or in sips as a slow reader does.

    `stays` demands that each connection is answered with 200 and none is closed, as for idle connections.
    """

    def __init__(self, port: int, size: int, opening: bytes, *, sips: bool = False, stays: bool = False) -> None:
        self._port = port
        self._size = size
        self._opening = opening
        self._sips = sips
        self._stays = stays
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quiet connections")
        # Changed by the thread, read by others after it has ended.
        self._selector = selectors.DefaultSelector()
        self._connections: list[QuietConnection] = []
        self._settled = threading.Event()
        self._fault = ""
        self._next_to_sip = 0
        self.num_closed = 0

    def __enter__(self) -> "QuietConnections":
        wanted = self._size + 100
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise BenchmarkError(f"{self._size} connections need more open files than {hard} (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        self._thread.start()
        self._settled.wait(SETTLE_S)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        answered = sum(connection.begins.startswith(b"HTTP/1.1 200 ") for connection in self._connections)
        for connection in self._connections:
            connection.socket.close()
        self._selector.close()
        if kind is None and self._fault:
            raise BenchmarkError(self._fault)
        if kind is None and self._stays and (answered < self._size or self.num_closed):
            raise BenchmarkError(f"of {self._size} idle connections {answered} were answered, {self.num_closed} closed")

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            while len(self._connections) < self._size and not self._stop.is_set():
                self._connections.append(self._arrive())
                self._step(0)
            next_sip_s = time.monotonic()
            while not self._stop.is_set():
                self._step(TICK_S)
                now_s = time.monotonic()
                if self._sips and now_s >= next_sip_s:
                    next_sip_s = now_s + TICK_S
                    self._let_sip()
                self._let_return(now_s)
                if not self._settled.is_set() and self._is_settled():
                    self._settled.set()
        except OSError as error:
            self._fault = f"the crowd could not be made: {error}"
            self._settled.set()

    def _is_settled(self) -> bool:
        """Whether the server has answered all openings that it must answer, and only keeps the connections open."""
        asks = self._sips or self._stays
        return not any(connection.unsent or (asks and not connection.begins) for connection in self._connections)

    def _arrive(self) -> QuietConnection:
        sock = socket.socket()
        if self._sips:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP_BYTES)
        sock.settimeout(SETTLE_S)
        try:
            sock.connect(("127.0.0.1", self._port))
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        connection = QuietConnection(sock, memoryview(self._opening))
        events = selectors.EVENT_WRITE if self._sips else selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(sock, events, connection)
        return connection

    def _step(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            connection: QuietConnection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
                    if not connection.unsent:
                        self._wait(connection)
                if events & selectors.EVENT_READ:
                    self._read(connection, _READ_BYTES)
            except OSError:
                self._leave(connection)

    def _wait(self, connection: QuietConnection) -> None:
        """Wait for the answer, once the opening has been sent."""
        if self._sips:
            self._selector.unregister(connection.socket)
            connection.is_registered = False
        else:
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _read(self, connection: QuietConnection, nbytes: int) -> None:
        data = connection.socket.recv(nbytes)
        connection.begins = connection.begins or data
        if not data:
            self._leave(connection)

    def _let_sip(self) -> None:
        """Let a few slow readers read, in turns: all at once would take the cores for longer than any request does."""
        for _ in range(math.ceil(self._size * TICK_S / SIP_S)):
            connection = self._connections[self._next_to_sip]
            self._next_to_sip = (self._next_to_sip + 1) % self._size
            if not connection.is_registered and not connection.is_gone:
                try:
                    self._read(connection, SIP_BYTES)
                except BlockingIOError:
                    continue  # no answer yet
                except OSError:
                    self._leave(connection)

    def _leave(self, connection: QuietConnection) -> None:
        if connection.is_registered:
            self._selector.unregister(connection.socket)
        connection.socket.close()
        connection.unsent = memoryview(b"")
        connection.is_gone, connection.is_registered = True, False
        connection.returns_at_s = time.monotonic() + RETURN_S
        self.num_closed += 1

    def _let_return(self, now_s: float) -> None:
        for index, connection in enumerate(self._connections):
            if connection.is_gone and connection.returns_at_s <= now_s:
                self._connections[index] = self._arrive()


class RepeatedRequest:
    """One request, repeated on one connection at a time, without a pause or each `every_s`; every answer must have the
    status 200 and end with `right`."""

    def __init__(
        self, port: int, request: Request, right: bytes = b"", *, method: str = "POST", every_s: float = 0.0
    ) -> None:
        self._port = port
        self._request = request
        self._right = right
        self._method = method
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repeated request")
        # Changed by the thread, read by others after it has ended.
        self._fault = ""
        self.num_answered = 0

    def __enter__(self) -> "RepeatedRequest":
        self._ask()
        if self._fault:
            raise BenchmarkError(self._fault)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None and self._fault:
            raise BenchmarkError(self._fault)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._stop.wait(self._every_s) and not self._fault:
            self._ask()

    def _ask(self) -> None:
        try:
            status, _, body = ask(self._port, self._request, method=self._method)
        except (OSError, http.client.HTTPException) as error:
            self._fault = f"{self._request.path} was not answered: {error}"
            return
        if status != http.HTTPStatus.OK or not body.endswith(self._right):
            text = body[:200].decode(errors="replace")
            self._fault = f"{self._request.path} was answered wrongly, status {status}: {text}"
        self.num_answered += 1

"""What a server has to bear while it is measured: a crowd of connections, or large bodies again and again.

Each is a context manager with a thread of its own in this process, at the lowest priority: clients would be elsewhere.
Leaving it raises BenchmarkError where the server had not to bear what was promised: then the figures mean nothing.
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

SETTLE_S = 20.0  # at most
#: A guest whose connection the server has closed comes again after so long: closing must not make it a flood.
RETURN_S = 5.0
TICK_S = 0.05
SIP_BYTES, SIP_S = 4096, 1.0
NICE = 19
_READ_BYTES = 64 * 1024


def raw(request: Request) -> bytes:
    """The request as it goes over the wire."""
    headers = {"Host": "127.0.0.1", **request.headers, "Content-Length": str(len(request.body))}
    lines = [f"POST {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + request.body


def content_length(head: bytes | bytearray) -> int | None:
    """The length of the body behind an answer's head; None where the head does not say it."""
    _, found, rest = head.lower().partition(b"\r\ncontent-length: ")
    return int(rest.partition(b"\r\n")[0]) if found else None


@dataclass(slots=True)
class QuietConnection:
    """One connection of the crowd."""

    socket: socket.socket
    unsent: memoryview
    # Changed by the crowd's thread.
    begins: bytes = b""  # the first bytes that it was answered
    is_registered: bool = True  # False: a slow reader, which looks when it is its turn
    is_gone: bool = False
    returns_at_s: float = 0.0


class QuietConnections:
    """`size` connections: each sends `opening`, then nothing. It reads at once, or in sips as a slow reader does.

    `stays` demands that each was answered with 200 and none was closed, as idle connections must.
    """

    def __init__(self, port: int, size: int, opening: bytes, *, sips: bool = False, stays: bool = False) -> None:
        self._port = port
        self._size = size
        self._opening = opening
        self._sips = sips
        self._stays = stays
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="crowd")
        # Changed by the thread, read by others after it has ended.
        self._selector = selectors.DefaultSelector()
        self._guests: list[QuietConnection] = []
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
        answered = sum(guest.begins.startswith(b"HTTP/1.1 200 ") for guest in self._guests)
        for guest in self._guests:
            guest.socket.close()
        self._selector.close()
        if kind is None and self._fault:
            raise BenchmarkError(self._fault)
        if kind is None and self._stays and (answered < self._size or self.num_closed):
            raise BenchmarkError(f"of {self._size} idle connections {answered} were answered, {self.num_closed} closed")

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            while len(self._guests) < self._size and not self._stop.is_set():
                self._guests.append(self._arrive())
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
        """Whether the server has done what the openings ask of it, and only bears the crowd from now on."""
        asks = self._sips or self._stays
        return not any(guest.unsent or (asks and not guest.begins) for guest in self._guests)

    def _arrive(self) -> QuietConnection:
        connection = socket.socket()
        if self._sips:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP_BYTES)
        connection.settimeout(SETTLE_S)
        try:
            connection.connect(("127.0.0.1", self._port))
        except OSError:
            connection.close()
            raise
        connection.setblocking(False)
        guest = QuietConnection(connection, memoryview(self._opening))
        events = selectors.EVENT_WRITE if self._sips else selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(connection, events, guest)
        return guest

    def _step(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            guest: QuietConnection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    guest.unsent = guest.unsent[guest.socket.send(guest.unsent) :]
                    if not guest.unsent:
                        self._wait(guest)
                if events & selectors.EVENT_READ:
                    self._read(guest, _READ_BYTES)
            except OSError:
                self._leave(guest)

    def _wait(self, guest: QuietConnection) -> None:
        """The opening has been sent."""
        if self._sips:
            self._selector.unregister(guest.socket)
            guest.is_registered = False
        else:
            self._selector.modify(guest.socket, selectors.EVENT_READ, guest)

    def _read(self, guest: QuietConnection, nbytes: int) -> None:
        data = guest.socket.recv(nbytes)
        guest.begins = guest.begins or data
        if not data:
            self._leave(guest)

    def _let_sip(self) -> None:
        """A few of them at a time, in turns: all at once would take the cores for longer than any request does."""
        for _ in range(math.ceil(self._size * TICK_S / SIP_S)):
            guest = self._guests[self._next_to_sip]
            self._next_to_sip = (self._next_to_sip + 1) % self._size
            if not guest.is_registered and not guest.is_gone:
                try:
                    self._read(guest, SIP_BYTES)
                except BlockingIOError:
                    continue  # not answered yet
                except OSError:
                    self._leave(guest)

    def _leave(self, guest: QuietConnection) -> None:
        if guest.is_registered:
            self._selector.unregister(guest.socket)
        guest.socket.close()
        guest.unsent = memoryview(b"")
        guest.is_gone, guest.is_registered = True, False
        guest.returns_at_s = time.monotonic() + RETURN_S
        self.num_closed += 1

    def _let_return(self, now_s: float) -> None:
        for index, guest in enumerate(self._guests):
            if guest.is_gone and guest.returns_at_s <= now_s:
                self._guests[index] = self._arrive()


class RepeatedRequest:
    """One request, repeated on one connection at a time; the first answer is checked against `right`."""

    def __init__(self, port: int, request: Request, right: bytes) -> None:
        self._port = port
        self._request = request
        self._right = right
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bodies")
        # Changed by the thread, read by others after it has ended.
        self._fault = ""
        self.num_answered = 0

    def __enter__(self) -> "RepeatedRequest":
        self._post()
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
        while not self._stop.is_set() and not self._fault:
            self._post()

    def _post(self) -> None:
        try:
            status, _, body = ask(self._port, self._request)
        except (OSError, http.client.HTTPException) as error:
            self._fault = f"a large body was not answered: {error}"
            return
        if status != http.HTTPStatus.OK or not body.endswith(self._right):
            self._fault = f"a large body was answered wrongly, status {status}: {body[:200].decode(errors='replace')}"
        self.num_answered += 1

"""Open-loop load: requests come when they come, whether or not earlier ones have been answered, as users do.

One thread, one epoll, raw sockets: a request costs it some 30 us, so that one process can ask ten times what a server
answers. A request's time counts from when it was due, not from when it was sent: a request that is sent late cannot
hide it.
"""

import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random

from bench.company import content_length, raw
from bench.errors import BenchmarkError
from bench.workloads import Request

#: How long the last ones may take.
PATIENCE_S = 5.0


@dataclass(slots=True)
class Answer:
    """What came back, and when, in seconds after it was due."""

    status: int
    may_retry: bool  # it has a Retry-After: refused at once
    time_s: float


@dataclass(slots=True, eq=False)
class _Connection:
    """One request at a time."""

    socket: socket.socket
    due_s: float = 0.0
    received: bytearray = field(default_factory=bytearray)

    def read(self) -> Answer | None:
        """The answer, once it is whole. Raises BenchmarkError where there will be none."""
        data = self.socket.recv(65536)
        if not data:
            raise BenchmarkError("the server has closed a connection that waits for an answer")
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        nbytes = content_length(head) if separator else None
        if nbytes is None or len(body) < nbytes:
            return None
        self.received.clear()
        return Answer(int(head[9:12]), b"\r\nretry-after: " in head.lower(), time.perf_counter() - self.due_s)


class OpenLoop:
    """Connections to one server, kept from one load to the next."""

    def __init__(self, port: int, request: Request) -> None:
        self._port = port
        self._data = raw(request)
        self._poller = select.epoll()
        # Changed by every load: all that there are, those that wait for nothing.
        self._connections: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()

    def close(self) -> None:
        """Hang up."""
        for connection in self._connections.values():
            connection.socket.close()
        self._poller.close()

    def load(self, per_s: float, duration_s: float, seed: int = 0) -> list[Answer]:
        """So many requests a second, at random times; everything that was answered, in that order."""
        random = Random(seed)
        answers: list[Answer] = []
        due_s = time.perf_counter()
        end_s = due_s + duration_s
        while due_s < end_s:
            self._collect(answers, due_s)
            while due_s <= time.perf_counter() and due_s < end_s:
                self._ask(due_s)
                due_s += random.expovariate(per_s)
        self._finish(answers)
        return answers

    def capacity(self, num_connections: int, duration_s: float) -> float:
        """Answers a second where so many clients ask again as soon as they have been answered."""
        answers: list[Answer] = []
        begin_s = time.perf_counter()
        for _ in range(num_connections):
            self._ask(begin_s)
        num_asked = num_connections
        while time.perf_counter() < begin_s + duration_s:
            self._collect(answers, begin_s + duration_s)
            while num_asked < len(answers) + num_connections:
                self._ask(time.perf_counter())
                num_asked += 1
        per_s = len([each for each in answers if each.status == 200]) / (time.perf_counter() - begin_s)
        self._finish(answers)
        return per_s

    def _ask(self, due_s: float) -> None:
        connection = self._idle.pop() if self._idle else self._connect()
        connection.due_s = due_s
        connection.socket.sendall(self._data)

    def _connect(self) -> _Connection:
        connection = _Connection(socket.create_connection(("127.0.0.1", self._port)))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.socket.fileno()] = connection
        self._poller.register(connection.socket.fileno(), select.EPOLLIN)
        return connection

    def _collect(self, answers: list[Answer], until_s: float) -> None:
        """Take what has come; wait for the next, but not for longer than that."""
        for fd, _ in self._poller.poll(max(0.0, until_s - time.perf_counter())):
            connection = self._connections[fd]
            answer = connection.read()
            if answer is not None:
                answers.append(answer)
                self._idle.append(connection)

    def _finish(self, answers: list[Answer]) -> None:
        end_s = time.perf_counter() + PATIENCE_S
        while len(self._idle) < len(self._connections):
            self._collect(answers, end_s)
            if time.perf_counter() > end_s:
                raise BenchmarkError(f"{len(self._connections) - len(self._idle)} requests have not been answered")

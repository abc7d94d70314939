"""Verified traffic at a steady rate, beside whatever a test does to the server meanwhile.

Each request carries a number of its own, and its answer must have it. Requests are sent when they are due, whether the
ones before have been answered or not, so a server that stands still is seen in the latencies.
"""

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from tests.end_to_end.repositories import config_text
from tests.end_to_end.server import Server

#: An identity model of four integers, as MODEL in most tests that use this.
MODEL = config_text("identity", "A INT32 4", "B INT32 4", "dynamic_batching { }", rows=8, count=1)
#: Every so often a request asks for a compressed answer, which takes it down the road.
ROAD_EVERY = 10
#: As many right answers show that it flows, where nothing else is asked for.
STEADY_AFTER = 100


class Answer(NamedTuple):
    """What came back for a request of `data`."""

    status: int
    body: bytes
    data: list[int]
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether the model's answer is this request's."""
        return self.status == 200 and json.loads(self.body)["outputs"][0]["data"] == self.data


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, model: str = "m", fields: bytes = b""
) -> Answer:
    """One request over a connection that has none under way."""
    sent_s = time.monotonic()
    return await receive(reader, send(writer, number, model, fields), sent_s)


def send(writer: asyncio.StreamWriter, number: int, model: str = "m", fields: bytes = b"") -> list[int]:
    """Write a request; its data, which its answer must have."""
    data = [number, -number, 7, number ^ 0x5555]
    request = {"inputs": [{"name": "A", "shape": [1, 4], "datatype": "INT32", "data": data}]}
    body = json.dumps(request).encode()
    line = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n" % model.encode()
    writer.write(line + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return data


async def receive(reader: asyncio.StreamReader, data: list[int], sent_s: float) -> Answer:
    """The answer to a request of `data`."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return Answer(status, await reader.readexactly(length), data, time.monotonic() - sent_s)


@dataclass
class Outcome:
    """What the traffic came to so far."""

    num_right: int = 0
    faults: list[str] = field(default_factory=list)
    #: When those had been sent whose connection ended without an answer, or never began; each is a fault as well.
    lost_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    is_steady: threading.Event = field(default_factory=threading.Event)

    def latency_s(self, share: float) -> float:
        """A quantile of what requests took, from when they were due."""
        return sorted(self.latencies_s)[int(len(self.latencies_s) * share)]


class Traffic:
    """`rate` requests a second from a thread of its own, over as many connections as it takes."""

    def __init__(self, server: Server, rate: float = 500.0, model: str = "m", steady_after: int = STEADY_AFTER) -> None:
        self._port = server.http_port
        self._interval_s = 1 / rate
        self._model = model
        self._steady_after = steady_after
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.outcome = Outcome()

    def __enter__(self) -> Outcome:
        self._thread.start()
        return self.outcome

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    async def _run(self) -> None:
        due_s, number, tasks = time.monotonic(), 0, set[asyncio.Task[None]]()
        while not self._is_over.is_set():
            due_s += self._interval_s
            number += 1
            await asyncio.sleep(due_s - time.monotonic())
            task = asyncio.create_task(self._one(number, due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        for _, writer in self._idle:
            writer.close()

    async def _one(self, number: int, due_s: float) -> None:
        sent_s = float("inf")
        writer: asyncio.StreamWriter | None = None
        try:
            if not self._idle:
                self._idle.append(await asyncio.open_connection("127.0.0.1", self._port))
            reader, writer = connection = self._idle.pop()
            fields = b"TE: trailers\r\n" if number % ROAD_EVERY == 0 else b""
            data = send(writer, number, self._model, fields)
            sent_s = time.monotonic()  # not before it is on its way: another thread may end the server in between
            answer = await receive(reader, data, sent_s)
        except (OSError, asyncio.IncompleteReadError) as error:
            if writer is not None:
                writer.close()
            self.outcome.lost_s.append(sent_s)
            self.outcome.faults.append(f"connection: {error!r}")
            return
        self._idle.append(connection)
        self.outcome.latencies_s.append(time.monotonic() - due_s)
        if answer.is_right:
            self.outcome.num_right += 1
            if self.outcome.num_right == self._steady_after:
                self.outcome.is_steady.set()
        else:
            self.outcome.faults.append(f"{answer.status} {answer.body[:300]!r} to {answer.data}")

"""A soak: Python models under mixed traffic, with exceptions, deaths, oversized tensors and clients that leave.

`scripts/reliability --only soak` is the long form, test_soak.py the short one. After a warm-up that does everything
once, the server's memory, descriptors and shared pages at rest are noted; at the end they must be the same. Every
minute the traffic rests, and the memory of each process is noted: none may grow steadily.
"""

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import Server, await_rest, descendants, footprint, lasting, serving, title
from tests.reliability.row import Course

FLAGS = (
    "--exit-on-error=false",
    "--shm-client-slab-mib=4",
    "--shm-worker-slab-mib=1",
    "--shm-oversize-mib=64",
    "--poison-refusal-secs=0",  # what ends an instance is sent again and again
)
OVERSIZED = 500_000  # elements: 2 MB, more than a block of these slabs
#: What a process may have more at the end: allocators and caches, not something that grows with requests.
MAX_GROWTH = 1.1
EXIT_EVERY_S = 5.0
EXCEPTION, EXIT = -1, -2
_FULL = b"Exceeds maximum queue size"

#: Answers what it is asked, and misbehaves when it is asked to.
ECHO = python_model("""
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if values[0] == -1:
                raise ValueError("asked to fail")
            if values[0] == -2:
                os._exit(3)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
        return responses
""")
#: A response per element, from a thread, until its client is gone.
STREAM = python_model("""
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().copy()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), values), daemon=True).start()

    def answer(self, sender, values):
        for value in values:
            if sender.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))]))
            time.sleep(0.002)  # the model's own pace: its clients may hang up in the middle of a stream
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""")


def write_models(repository: Path) -> Path:
    """The two models."""
    for name, source, count, decoupled in (("echo", ECHO, 2, "false"), ("stream", STREAM, 1, "true")):
        policy = f"model_transaction_policy {{ decoupled: {decoupled} }}"
        add_model(repository, name, config_text("python", "IN INT32 -1", "OUT INT32 -1", policy, count=count), source)
    return repository


class Soak:
    """One server and its traffic: every kind of request has a connection of its own that repeats it."""

    def __init__(self, server: Server, seed: int, exit_every_s: float = EXIT_EVERY_S, load: float = 1.0) -> None:
        """`load`: which part of its time a client of small requests waits for an answer; the rest it pauses."""
        self._server = server
        self._pause = 1 / load - 1
        self._exit_every_s = exit_every_s
        self._random = random.Random(seed)
        # Changed by every request.
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._last_exit_s = 0.0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """All kinds of traffic until it is over. Where one sleeps, that is its pace: nothing is waited for."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            *[self._small] * 6, self._oversized, self._exception, self._exit, self._read_stream, self._leave_stream,
            self._leave,
        ]  # fmt: skip
        assert self._server.process.stdout is not None
        log = self._server.process.stdout
        loop = asyncio.get_running_loop()
        loop.add_reader(log.fileno(), self._read_log)
        await asyncio.gather(*[self._repeat(kind, is_over) for kind in kinds])
        loop.remove_reader(log.fileno())

    def _read_log(self) -> None:
        # Unread, the server's log would lose lines once the pipe is full.
        assert self._server.process.stdout is not None
        self._server.log += self._server.process.stdout.raw.read(65536) or b""  # type: ignore[attr-defined]

    async def _repeat(self, kind: Callable[[], Awaitable[None]], is_over: Callable[[], bool]) -> None:
        while not is_over():
            await kind()
            await asyncio.sleep(0)

    async def _small(self) -> None:
        start_s = time.monotonic()
        await self._echo("right", self._random.randrange(1, 1 << 30), 4)
        await asyncio.sleep(self._pause * (time.monotonic() - start_s))

    async def _oversized(self) -> None:
        await self._echo("oversized", self._random.randrange(1, 1 << 30), OVERSIZED)
        await asyncio.sleep(0.05)

    async def _exception(self) -> None:
        status, body = await self._ask("echo", EXCEPTION, 4)
        self._expect("exception", status == 500 and (b"asked to fail" in body or _is_death(body)), status, body)
        await asyncio.sleep(0.01)

    async def _exit(self) -> None:
        if time.monotonic() - self._last_exit_s < self._exit_every_s:
            await asyncio.sleep(0.1)
            return
        self._last_exit_s = time.monotonic()
        status, body = await self._ask("echo", EXIT, 4)
        self._expect("exit", status == 500 and _is_death(body), status, body)

    async def _echo(self, name: str, first: int, count: int) -> None:
        status, body = await self._ask("echo", first, count)
        is_right = status == 200 and json.loads(body)["outputs"][0]["data"][:2] == [first, 7]
        if not is_right and _is_death(body):
            self.counts["died beside"] += 1
        else:
            self._expect(name, is_right, status, body[:300])

    async def _ask(self, model: str, first: int, count: int) -> tuple[int, bytes]:
        reader, writer = await self._send(model, "infer", _body(first, count))
        try:
            status, length = _read_head(await reader.readuntil(b"\r\n\r\n"))
            return status, await reader.readexactly(length)
        finally:
            writer.close()

    async def _read_stream(self) -> None:
        count = self._random.randrange(20)
        reader, writer = await self._send("stream", "generate_stream", json.dumps({"IN": [5] * count or [5]}).encode())
        body = await reader.read()
        writer.close()
        self._expect("stream", body.count(b'"OUT":5') == max(1, count), 200, body[-300:])

    async def _leave_stream(self) -> None:
        reader, writer = await self._send("stream", "generate_stream", json.dumps({"IN": [5] * 1000}).encode())
        try:
            await reader.readuntil(b'"OUT":5')
        except asyncio.IncompleteReadError as error:
            self._expect("left a stream", False, 200, error.partial)
        else:
            self.counts["left a stream"] += 1
        writer.transport.abort()

    async def _leave(self) -> None:
        _, writer = await self._send("echo", "infer", _body(9, 100_000))
        writer.transport.abort()
        self.counts["left"] += 1
        # Those who leave wait for the road, too: a starved one would have ever more of their bodies before it.
        await self._oversized()

    async def _send(self, model: str, verb: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.http_port, limit=1 << 26)
        head = f"POST /v2/models/{model}/{verb} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return reader, writer

    def _expect(self, name: str, is_right: bool, status: int, body: bytes) -> None:
        if is_right:
            self.counts[name] += 1
        elif _FULL in body:  # the slabs are small on purpose
            self.counts["refused"] += 1
        else:
            self.faults.append(f"{name}: {status} {body[:300]!r}")


def _body(first: int, count: int) -> bytes:
    data = [first, 7] + [3] * (count - 2)
    return json.dumps({"inputs": [{"name": "IN", "shape": [count], "datatype": "INT32", "data": data}]}).encode()


def _read_head(head: bytes) -> tuple[int, int]:
    fields = [line.lower() for line in head.split(b"\r\n")]
    length = next(int(line[15:]) for line in fields if line.startswith(b"content-length:"))
    return int(head.split(b" ", 2)[1]), length


def _is_death(body: bytes) -> bool:
    return b"is not healthy" in body


def at_rest(server: Server) -> list[object]:
    """The footprint once everything has been given back, and every instance and the standby batcher are there."""
    await_rest(server)
    return footprint(server.ledger_at_rest(lambda ledger: num_workers(ledger) == 3))


def num_workers(ledger: dict[str, list[dict[str, str]]]) -> int:
    """Instances that answered for the ledger."""
    return sum(each["title"].startswith("shoal worker") for each in ledger["processes"])


def resident_bytes(server: Server) -> int:
    """Private and shared pages of all processes, each shared one counted once (PSS)."""
    return sum(pss_bytes(pid) for pid in (server.process.pid, *descendants(server.process.pid)))


def pss_bytes(pid: int) -> int:
    """The private pages of a process and its share of those that it shares."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


class Memory:
    """What each process holds at rest, noted again and again: while requests run, large ones come and go in it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        # Changed by note: by pid and title, since a standby batcher that takes over has another, time in s and bytes.
        self.noted: dict[tuple[int, str], list[tuple[float, int]]] = {}

    def note(self) -> None:
        """Note the bytes of each process; the server must be at rest."""
        for pid in (self._server.process.pid, *descendants(self._server.process.pid)):
            with suppress(OSError):
                self.noted.setdefault((pid, title(pid)), []).append((time.monotonic(), pss_bytes(pid)))

    def steepest(self) -> tuple[str, float]:
        """The process that lived throughout and grew most; bytes per second, by linear fit."""
        num_most = max(map(len, self.noted.values()))
        slopes: dict[str, float] = {}
        for (_, name), points in self.noted.items():
            if len(points) == num_most:
                print(name, [nbytes >> 10 for _, nbytes in points], flush=True)
                slopes[name] = max(slope(points), slopes.get(name, -math.inf))
        name = max(slopes, key=lambda each: slopes[each])
        return name, slopes[name]


def slope(points: list[tuple[float, int]]) -> float:
    """The slope of the line that fits best; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def run(course: Course) -> None:
    """The long form: 70 % of what the clients can get, with a death every so often."""
    num_parts, seconds = course.pick(2, 30), course.pick(6, 60)
    with serving(write_models(course.directory / "models"), *FLAGS) as server:
        soak = Soak(server, course.seed, load=0.7)
        asyncio.run(soak.run(lasting(course.pick(8, 60))))
        before, before_bytes = at_rest(server), resident_bytes(server)
        memory = Memory(server)
        memory.note()
        for _ in range(num_parts):
            asyncio.run(soak.run(lasting(seconds)))
            at_rest(server)
            memory.note()
        name, per_s = memory.steepest()
        told = f"{soak.counts.total():,} requests: {dict(soak.counts)}"
        course.found("answers", told, soak.faults, is_met=not soak.faults)
        told = f"{per_s * 600 / (1 << 20):.2f} MiB, {name}, by {num_parts * seconds} s"
        course.found("slope", told, is_met=per_s * 600 <= 1 << 20)
        after, after_bytes = at_rest(server), resident_bytes(server)
        is_same = after == before and after_bytes <= before_bytes * MAX_GROWTH
        told = f"{'the same' if after == before else f'{after}, not {before}'}; {before_bytes >> 20} MiB, at the end "
        course.found("left", f"{told}{after_bytes >> 20} MiB", is_met=is_same)
        assert server.stop() == 0

"""A crowd of clients in a process of its own: `python -m bench.isolation.crowd`, begun by `Crowd`.

Its first line of input is its task; it prints a line once all clients have asked, and ends, with a last line of counted
answers, when its input ends or its time is over. It runs at the lowest priority, since real clients run elsewhere.
"""

import asyncio
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.background_load import content_length
from bench.errors import BenchmarkError
from bench.grpc_words import CHANNEL, METHOD, SERVICE
from bench.isolation.figures import OK, REFUSED

ROOT = Path(__file__).parents[2]
NICE = 19
SETTLE_S = 30.0
#: Seconds of a crowd's life: longer than any situation lasts.
LIFE_S = 90.0
#: Seconds before a refused or disconnected client comes again.
PAUSE_S = 1.0
#: Seconds after its start from which a call counts as under way.
START_S = 0.2
_READ_BYTES = 262144
#: A slow reader reads this often (s), and the kernel buffers this much for it.
SIP_S, SIP_BUFFER_BYTES = 0.05, 65536


@dataclass(frozen=True, slots=True)
class Guests:
    """Clients over HTTP: each sends one of the requests, and again when it has been answered."""

    port: int
    requests: Sequence[str]  # request bytes, as Latin-1
    count: int
    every_s: float = 0.0  # all send at the same moments, so far apart; 0: at once when answered
    bytes_per_s: float | None = None  # how fast each reads; 0: never


@dataclass(frozen=True, slots=True)
class Callers:
    """Calls over gRPC, so many open at once on these connections, or streams; with `is_silent` no response is read."""

    port: int
    message: str  # a ModelInferRequest, in Latin-1
    count: int
    channels: int = 1
    is_stream: bool = False
    is_silent: bool = False  # streams only


@dataclass(frozen=True, slots=True)
class Raw:
    """One connection on which prepared bytes are sent, one piece after the other; responses are read."""

    port: int
    opening: str  # in Latin-1
    later: Sequence[str]
    every_s: float
    count: int = 1


class Crowd:
    """A context in which such clients ask; `said` are their counted answers, once it has been left."""

    def __init__(self, spec: Guests | Callers | Raw) -> None:
        self._spec = spec
        # Changed by entering and leaving.
        self._process: subprocess.Popen[bytes] | None = None
        self.said: Counter[str] = Counter()

    def __enter__(self) -> "Crowd":
        command = [sys.executable, "-m", "bench.isolation.crowd"]
        self._process = process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"kind": type(self._spec).__name__, **asdict(self._spec)}).encode() + b"\n")
        process.stdin.flush()
        try:
            self._line()
        except BenchmarkError:
            self._end(process)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.close()
            self.said.update(json.loads(self._line()))
        except (OSError, ValueError, BenchmarkError) as fault:
            if kind is None:
                raise BenchmarkError(f"the crowd was lost: {fault}") from fault
        finally:
            self._end(process)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.wait()
        for each in (process.stdin, process.stdout):
            if each is not None:
                each.close()

    def _line(self) -> bytes:
        assert self._process is not None
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(SETTLE_S):
                raise BenchmarkError(f"a crowd of {self._spec.count} has not asked within {SETTLE_S:g} s")
        data = stdout.readline()
        if not data:
            raise BenchmarkError("a crowd ended before its time")
        return data

    @property
    def words(self) -> str:
        """The counted answers in words."""
        return ", ".join(f"{count:,} {word}" for word, count in sorted(self.said.items())) or "nothing"


class _Guest:
    """One client over HTTP."""

    def __init__(self, spec: Guests, number: int, said: Counter[str]) -> None:
        self._spec = spec
        self._data = spec.requests[number % len(spec.requests)].encode("latin-1")
        self._said = said
        # Changed by run.
        self._socket: socket.socket | None = None
        self.has_asked = asyncio.Event()

    async def run(self) -> None:
        """Send the request, and again when answered, until cancelled."""
        while True:
            try:
                status = await self._ask()
                self._said["answered" if status == OK else "refused" if status == REFUSED else f"{status}"] += 1
                every_s = self._spec.every_s
                pause_s = PAUSE_S if status != OK else every_s and every_s - time.monotonic() % every_s
            except (OSError, ValueError):
                self._said["lost"] += 1
                self._leave()
                pause_s = PAUSE_S
            await asyncio.sleep(pause_s)

    def _leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.has_asked.set()

    async def _ask(self) -> int:
        loop = asyncio.get_running_loop()
        if self._socket is None:
            self._socket = socket.socket()
            self._socket.setblocking(False)
            if self._spec.bytes_per_s is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP_BUFFER_BYTES)
            await loop.sock_connect(self._socket, ("127.0.0.1", self._spec.port))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_sendall(self._socket, self._data)
        self.has_asked.set()
        if self._spec.bytes_per_s == 0:
            await asyncio.sleep(LIFE_S)
        top = b""
        while b"\r\n\r\n" not in top:
            top += await self._read(self._socket)
        top, _, body = top.partition(b"\r\n\r\n")
        missing = (content_length(top) or 0) - len(body)
        while missing > 0:
            missing -= len(await self._read(self._socket))
        return int(top[9:12])

    async def _read(self, connection: socket.socket) -> bytes:
        """Some bytes, slowly if so configured. Raises ConnectionResetError at the end."""
        nbytes = _READ_BYTES
        if self._spec.bytes_per_s:
            await asyncio.sleep(SIP_S)
            nbytes = int(self._spec.bytes_per_s * SIP_S)
        data = await asyncio.get_running_loop().sock_recv(connection, nbytes)
        if not data:
            raise ConnectionResetError("closed before the answer")
        return data


class _RawClient:
    """One connection that is sent prepared bytes."""

    def __init__(self, spec: Raw, said: Counter[str]) -> None:
        self._spec = spec
        self._said = said
        self.has_asked = asyncio.Event()

    async def run(self) -> None:
        """Send and read until the server hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._spec.port)
        writer.write(self._spec.opening.encode("latin-1"))
        await writer.drain()
        self.has_asked.set()
        sending = asyncio.create_task(self._send_on(writer))
        try:
            while data := await reader.read(_READ_BYTES):
                self._said["bytes"] += len(data)
        except OSError:
            self._said["reset"] += 1
        sending.cancel()
        self._said["ended by the server"] += 1

    async def _send_on(self, writer: asyncio.StreamWriter) -> None:
        for each in self._spec.later:
            await asyncio.sleep(self._spec.every_s)
            writer.write(each.encode("latin-1"))


class _Caller:
    """Calls over gRPC one after the other, or streams one after the other, or a stream of which nothing is read."""

    def __init__(self, spec: Callers, channel: Any, said: Counter[str]) -> None:
        self._spec = spec
        self._message = spec.message.encode("latin-1")
        self._channel = channel
        self._said = said
        # Changed by run.
        self.has_asked = asyncio.Event()

    async def run(self) -> None:
        """Call until cancelled."""
        import grpc

        while True:
            try:
                await (self._stream() if self._spec.is_stream else self._call())
            except grpc.aio.AioRpcError as error:
                self._said[error.code().name] += 1
                await asyncio.sleep(PAUSE_S)

    async def _call(self) -> None:
        call = self._channel.unary_unary(METHOD)(self._message, timeout=LIFE_S)
        asyncio.get_running_loop().call_later(START_S, self.has_asked.set)
        await call
        self._said["answered"] += 1

    async def _stream(self) -> None:
        stream = self._channel.stream_stream(SERVICE + "ModelStreamInfer")()
        await stream.write(self._message)
        self.has_asked.set()
        if self._spec.is_silent:
            await asyncio.sleep(LIFE_S)
        await stream.done_writing()
        async for _ in stream:
            self._said["responses"] += 1


async def _run(spec: Guests | Callers | Raw, said: Counter[str]) -> None:
    """Run the clients until standard input ends, or for LIFE_S."""
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), is_over.set)
    clients: list[_Guest] | list[_Caller] | list[_RawClient]
    if isinstance(spec, Guests):
        clients = [_Guest(spec, number, said) for number in range(spec.count)]
    elif isinstance(spec, Raw):
        clients = [_RawClient(spec, said)]
    else:
        import grpc

        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{spec.port}", CHANNEL) for _ in range(spec.channels)]
        clients = [_Caller(spec, channels[number % spec.channels], said) for number in range(spec.count)]
    tasks = [asyncio.create_task(each.run()) for each in clients]
    for each in clients:
        await each.has_asked.wait()
    print("asked", flush=True)
    try:
        await asyncio.wait_for(is_over.wait(), LIFE_S)
    except asyncio.TimeoutError:
        said["too long"] += 1
    print(json.dumps(said), flush=True)
    del tasks
    os._exit(0)  # calls and sockets end with the process: ending each by itself takes seconds


def main() -> None:
    """Do the task in the first line of standard input."""
    told = json.loads(sys.stdin.readline())
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kind = {"Guests": Guests, "Callers": Callers, "Raw": Raw}[told.pop("kind")]
    asyncio.run(_run(kind(**told), Counter()))


if __name__ == "__main__":
    main()

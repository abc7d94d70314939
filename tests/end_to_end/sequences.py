"""Sequences at length: a thousand at once, of clients that are killed at random, in the middle of whatever they do.

    python -m tests.end_to_end.sequences --seconds 600

Each client adds numbers in some sequences at a time, with the state in the model or in the server, ends them or just
leaves them, and compares every answer. At the end every slot must be free, and nothing left of what was there.
"""

import argparse
import asyncio
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.end_to_end.sequence_models import STATES, write_models
from tests.end_to_end.server import Server, descendants, footprint, imbalances, serving, title

#: Sequences of one client at a time, and how long one may be idle. Each of the models has slots for so many.
OF_EACH, IDLE_S, NUM_SLOTS = 50, 5.0, 1024
#: What a process may have more at the end: allocators and caches, not something that grows with sequences.
MAX_GROWTH = 1.1
_HEADER_END = b"\r\n\r\n"


class LostError(Exception):
    """A sequence has ended because a batcher has: on a machine that is too busy one that stands still is replaced."""


class Connection:
    """One keep-alive connection, on which a sequence is asked."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def add(self, model: str, key: int | str, number: int, **flags: bool) -> int:
        """The sum that the model has then."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        tensor = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [number]}
        body = json.dumps({"inputs": [tensor], "parameters": {"sequence_id": key, **flags}}).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(_HEADER_END)).lower()
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n")[0])
        told = json.loads(await self._reader.readexactly(length))
        if "must specify the START flag" in told.get("error", "") or "taken the place" in told.get("error", ""):
            raise LostError
        assert "outputs" in told, (model, key, flags, told)
        values: list[int] = next(each for each in told["outputs"] if each["name"] == "Y")["data"]
        return values[0]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def sequences(port: int, name: str, writing: int) -> None:
    """One sequence after the other, a dot for each that went right, and an x for one that was lost."""
    chance = random.Random(name)
    connection = Connection(port)
    for count in range(10**9):
        model = chance.choice(STATES)
        key = f"{name}-{count}" if count % 2 else hash((name, count)) & 2**63 - 1 or 1
        total, num_steps = 0 if model == "onnx" else 10, chance.randint(1, 12)  # the others begin with 10
        for step in range(num_steps):
            number = chance.randint(-1000, 1000)
            is_last = step == num_steps - 1 and chance.random() < 0.9  # the others are left to themselves
            total += number
            try:
                got = await connection.add(model, key, number, sequence_start=step == 0, sequence_end=is_last)
            except LostError:
                os.write(writing, b"x")
                break
            assert got == total, (model, key, step, got, total)
        else:
            os.write(writing, b".")


def fork_client(port: int, number: int) -> tuple[int, int]:
    """A process with OF_EACH sequences at a time; its id, and where it tells of those that went right."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading

    async def run() -> None:
        await asyncio.gather(*[sequences(port, f"{number}/{each}", writing) for each in range(OF_EACH)])

    try:
        os.close(reading)
        asyncio.run(run())
    except BaseException as error:  # noqa: BLE001 - a copy of the parent must not go on as that
        os.write(writing, f"!{error!r}\n".encode())
    finally:
        os._exit(1)


def storm(server: Server, num_clients: int, seconds: float) -> tuple[int, int, int]:
    """Run so many clients at a time and kill one after the other: sequences that went right, and were lost, clients
    killed."""
    clients = [fork_client(server.http_port, number) for number in range(num_clients)]
    end_s, num_right, num_lost, num_killed = time.monotonic() + seconds, 0, 0, 0
    try:
        while time.monotonic() < end_s:
            ready, _, _ = select.select([reading for _, reading in clients], [], [], 0.05)
            for reading in ready:
                told = os.read(reading, 65536)
                assert b"!" not in told, told.decode(errors="replace")
                num_right += told.count(b".")
                num_lost += told.count(b"x")
            server.read_on()
            if random.random() < 0.2:
                child, reading = clients.pop(random.randrange(num_clients))
                end(child, reading)
                num_killed += 1
                clients.append(fork_client(server.http_port, num_clients + num_killed))
    finally:
        for child, reading in clients:
            end(child, reading)
    return num_right, num_lost, num_killed


def end(child: int, reading: int) -> None:
    """Kill a client."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)


async def fill_slots(server: Server) -> float:
    """Have as many sequences at once as there are slots; seconds that it took of the slowest model."""
    took_s = []
    for model in STATES:
        start_s = time.monotonic()
        await ask_all(server, model, sequence_start=True)
        took_s.append(time.monotonic() - start_s)
        await ask_all(server, model, sequence_end=True)
        server.read_on()
    return max(took_s)


async def ask_all(server: Server, model: str, **flags: bool) -> None:
    """A request of each of NUM_SLOTS sequences."""
    for first in range(1, NUM_SLOTS, 128):
        connections = {key: Connection(server.http_port) for key in range(first, first + 128)}
        await asyncio.gather(*[one.add(model, key, 0, **flags) for key, one in connections.items()])
        for one in connections.values():
            one.close()


def resident_kib(server: Server) -> dict[str, int]:
    """What each process has for itself, by its title; of processes of one title the largest."""
    found: dict[str, int] = {}
    for pid in (server.process.pid, *descendants(server.process.pid)):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        anonymous = next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)
        found[title(pid)] = max(anonymous, found.get(title(pid), 0))
    return found


def main(seconds: float, num_clients: int) -> None:
    """A long run, and what it came to."""
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory)
        write_models(repository, *STATES, num_slots=NUM_SLOTS, idle_us=int(IDLE_S * 1e6))
        with serving(repository, "--max-in-flight=4096", "--default-max-queue-size=4096") as server:
            storm(server, num_clients, min(seconds, 20.0))
            before = footprint(server.ledger_at_rest())
            resident = resident_kib(server)
            num_right, num_lost, num_killed = storm(server, num_clients, seconds)
            server.ledger_once(lambda ledger: not imbalances(ledger) and footprint(ledger) == before, before)
            grown = {name: (resident[name], kib) for name, kib in resident_kib(server).items() if name in resident}
            time.sleep(1.5 * IDLE_S)  # what was left to itself ends by being idle, and by nothing else
            elapsed_s = asyncio.run(fill_slots(server))
            sys.stdout.write(
                f"{num_right} sequences of {num_clients * OF_EACH} at a time were right, {num_lost} lost with their "
                f"batcher, {num_killed} clients of {OF_EACH} killed; all {NUM_SLOTS} slots of each model are free, and "
                f"were filled in {elapsed_s:.1f} s; memory before and after: {grown}\n"
            )
            assert not num_lost or b"another takes its place" in server.log, num_lost
            # One slot less, and the last sequence would have waited until the first was idle.
            assert elapsed_s < IDLE_S, elapsed_s
            assert all(after <= MAX_GROWTH * earlier + 1024 for earlier, after in grown.values()), grown
            assert server.stop() == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=20, help=f"each with {OF_EACH} sequences at a time")
    options = parser.parse_args()
    main(options.seconds, options.clients)

"""Batching by goal beside fixed settings, on a real server: `python -m bench.goal`.

Models that sleep as long as a latency curve says, each under several settings in one server. Open loads of three shapes
ask them over HTTP, and ten clients that wait for their answers ask one that takes a millisecond. What is compared is
the share of requests answered within the target, or answers per second.

Machines change their speed from second to second. So the settings take turns in slices of a second, each round in
another order and with the same arrivals for all, and what counts is the median over the rounds of the ratio of two
slices of one round. The last line is beside no batching alone: a goal must cost a fast model nothing. Four and a half
minutes; loads one core and a half, and needs a machine that has them.
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench.server import free_ports

TARGET_MS = 200
#: Of a slice of an open load, and of a closed one.
SLICE_S, CLOSED_S = 1.0, 0.4
#: Of each; the first one teaches, and does not count.
ROUNDS, CLOSED_ROUNDS = 6, 17
#: Where less than this is answered in time under every setting, the machine is too slow to tell anything.
LEAST = 2 / 3
NUM_CLIENTS = 10
#: By name: milliseconds as Python of the number of rows, and requests a second, six tenths of what it can do in time.
CURVES = {"affine": ("20 + 1.25 * rows", 320), "linear": ("5 * rows", 120), "fast": ("1", 0)}
SHAPES = ("steady", "bursty", "ramp")
SETTINGS = {
    "unbatched": "",
    "no delay": "dynamic_batching {}",
    "8, 5 ms": "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 5000 }",
    "32, 20 ms": "dynamic_batching { max_queue_delay_microseconds: 20000 }",
    "goal": f'parameters {{ key: "latency_target_ms" value {{ string_value: "{TARGET_MS}" }} }}',
}
FIXED = [setting for setting in SETTINGS if setting != "goal"]
CONFIG = """
backend: "python"
max_batch_size: 32
input [{{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }}]
{}
"""
MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        rows = len(requests)
        time.sleep(({}) / 1000)
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
BODY = json.dumps({"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]})


Row = dict[str, float]  # by setting: of one round, the share in time, or answers per second


def arrivals(shape: str, per_s: float, dice: random.Random) -> Iterator[float]:
    """Seconds at which requests are sent."""
    now_s = 0.0
    while now_s < SLICE_S:
        rate = per_s * (0.2 + 1.1 * now_s / SLICE_S) if shape == "ramp" else per_s
        size = 16 if shape == "bursty" else 1
        now_s += dice.expovariate(rate / size)
        yield from [now_s] * size


class Connections:
    """Connections to the server, kept open; one more when all are in use."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, model: str) -> bool:
        """One request; whether it was answered, not refused because too many wait. Who is called off hangs up."""
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
            writer.write((head + BODY).encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        except asyncio.CancelledError:
            writer.close()
            raise
        self._idle.append((reader, writer))
        return answer.startswith(b"HTTP/1.1 200")

    def close(self) -> None:
        """Hang up."""
        for _, writer in self._idle:
            writer.close()


async def open_load(port: int, model: str, due: list[float]) -> float:
    """The share answered within the target. Whoever is late by then hangs up, and leaves the queue."""
    connections = Connections(port)
    begun_s = time.perf_counter()

    async def one(at_s: float) -> bool:
        await asyncio.sleep(begun_s + at_s - time.perf_counter())
        is_answered = await connections.ask(model)
        return is_answered and time.perf_counter() - begun_s - at_s <= TARGET_MS / 1000

    asked = [asyncio.create_task(one(at_s)) for at_s in due]
    done, late = await asyncio.wait(asked, timeout=due[-1] + TARGET_MS / 1000)
    for each in late:
        each.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    connections.close()
    return sum(each.result() for each in done) / len(asked)


async def closed_load(port: int, model: str) -> float:
    """Answers per second."""
    connections = Connections(port)
    end_s = time.perf_counter() + CLOSED_S

    async def client() -> int:
        count = 0
        while time.perf_counter() < end_s:
            count += await connections.ask(model)
        return count

    answered = await asyncio.gather(*[client() for _ in range(NUM_CLIENTS)])
    connections.close()
    return sum(answered) / CLOSED_S


def name(curve: str, setting: str) -> str:
    """A model's."""
    return f"{curve}_{list(SETTINGS).index(setting)}"


def rounds(ask: Callable[[str, int], float], count: int) -> list[Row]:
    """The settings in turns: what `ask` measures of a setting in a round."""
    rows = []
    for number in range(count):
        turns = list(SETTINGS)
        random.Random(number).shuffle(turns)
        rows.append({setting: ask(setting, number) for setting in turns})
    return rows[1:]


def ratios(rows: list[Row], fixed: Iterable[str]) -> Row:
    """The goal beside fixed settings: medians of what it reached in a round by what the other did."""
    return {each: statistics.median([row["goal"] / max(row[each], 1e-3) for row in rows]) for each in fixed}


def line(title: str, rows: list[Row], form: str, fixed: Iterable[str] = FIXED) -> str:
    """Of the table: medians, and the least ratio with the fixed setting that it was beside."""
    medians = [statistics.median([row[each] for row in rows]) for each in SETTINGS]
    beside = ratios(rows, fixed)
    nearest = min(beside, key=beside.__getitem__)
    told = f"{beside[nearest]:.2f} ({nearest})" if max(medians) >= LEAST else "the machine is too slow"
    return f"| {title} | {' | '.join(format(each, form) for each in medians)} | {told} |"


def table(port: int) -> Iterator[str]:
    """Its lines, as they are measured."""
    yield f"| model, load | {' | '.join(SETTINGS)} | goal / best fixed |"
    yield "| --- |" + " ---: |" * (len(SETTINGS) + 1)
    for curve, (_, per_s) in CURVES.items():
        for shape in SHAPES if per_s else ():

            def ask(setting: str, number: int, curve: str = curve, shape: str = shape, per_s: float = per_s) -> float:
                due = list(arrivals(shape, per_s, random.Random(number)))
                return asyncio.run(open_load(port, name(curve, setting), due))

            yield line(f"{curve}, {shape}", rounds(ask, ROUNDS), ".1%")
    closed = rounds(lambda setting, _: asyncio.run(closed_load(port, name("fast", setting))), CLOSED_ROUNDS)
    yield line(f"1 ms, {NUM_CLIENTS} clients", closed, ",.0f", ["unbatched"])


def main() -> None:
    """Start a server, print the table."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        for curve, (milliseconds, _) in CURVES.items():
            for setting, batching in SETTINGS.items():
                model = Path(directory, name(curve, setting))
                (model / "1").mkdir(parents=True)
                (model / "config.pbtxt").write_text(CONFIG.format(batching))
                (model / "1" / "model.py").write_text(MODEL.format(milliseconds))
        flags = [
            f"--model-repository={directory}",
            f"--http-port={port}",
            "--allow-metrics=false",
            "--allow-grpc=false",
        ]
        flags.append("--default-max-queue-size=256")  # else the unbatched model would be busy long after its load
        command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "serve", *flags]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                wait(port)
                for line in table(port):
                    sys.stdout.write(f"{line}\n")
                    sys.stdout.flush()
            finally:
                server.terminate()


def wait(port: int) -> None:
    """Until the server is ready."""
    end_s = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").close()
            return
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    main()

"""Goodput of one model under more requests than it can execute, from clients that give up and from clients that wait.

    python -m bench.overload [--checkout FOLDER] [--seconds 6]

A model sleeps for 20 ms, so the cores are no bound. Requests come at random times (open loop), each on a connection of
its own. An answer is good if it comes before its client gives up; goodput is good answers per second as a share of the
peak, which sixteen clients get that each send one request after the other. Each figure is of one run with the server's
defaults.
"""

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from bench.isolation.site import Checkout
from bench.server import Server, free_ports
from bench.workloads import Request

#: Seconds of one execution, and until an impatient client gives up.
EXECUTION_S, PATIENCE_S = 0.02, 0.5
TIMES_CAPACITY = (0.9, 2.0, 3.0, 10.0)
#: Seconds before the figures begin: the queue reaches its length, and the server learns the model's speed.
_WARM_UP_S = 3.0
_NUM_AT_PEAK = 16
_CONFIG = """
backend: "python"
input { name: "A" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
_MODEL = f"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep({EXECUTION_S})
            array = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("B", array)]))
        return answers
"""
_BODY = b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1],"data":[1]}]}'
_REQUEST = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY
_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(slots=True)
class Outcome:
    """The outcomes of the requests that began after the warm-up; times in seconds."""

    counts: Counter[str] = field(default_factory=Counter)
    good_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    live_s: list[float] = field(default_factory=list)


def write_model(repository: Path) -> None:
    """The repository of the model."""
    version = repository / "slow" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_MODEL)


async def _exchange(port: int) -> str:
    """One request on a connection of its own; returns its outcome."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        return "broken"
    finally:
        if writer is not None:
            writer.close()
    return "good" if head.startswith(b"HTTP/1.1 200") else "refused"


async def _ask(port: int, patience_s: float | None, outcome: Outcome, from_s: float, until_s: float) -> None:
    """One request; counted if it began within the time or, where clients wait, if it ended within it."""
    start_s = time.monotonic()
    try:
        verdict = await asyncio.wait_for(_exchange(port), patience_s)
    except asyncio.TimeoutError:
        verdict = "given up"
    counted_s = time.monotonic() if patience_s is None else start_s
    if from_s <= counted_s < until_s:
        outcome.counts[verdict] += 1
        if verdict == "good":
            outcome.good_s.append(time.monotonic() - start_s)
        elif verdict == "refused":
            outcome.refused_s.append(time.monotonic() - start_s)


async def _watch_liveness(port: int, outcome: Outcome) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        start_s = time.monotonic()
        writer.write(_LIVE)
        await reader.readuntil(b"\r\n\r\n")
        outcome.live_s.append(time.monotonic() - start_s)
        await asyncio.sleep(0.02)


async def load(port: int, rate: float, patience_s: float | None, seconds: float) -> Outcome:
    """Requests at this rate, at random times, for so many seconds after the warm-up; patience None: clients wait."""
    outcome, chance = Outcome(), random.Random(1)
    watcher = asyncio.create_task(_watch_liveness(port, outcome))
    asked: set[asyncio.Task[None]] = set()
    due_s = time.monotonic()
    from_s = due_s + _WARM_UP_S
    while (now_s := time.monotonic()) < from_s + seconds:
        while due_s <= now_s:
            task = asyncio.create_task(_ask(port, patience_s, outcome, from_s, from_s + seconds))
            asked.add(task)
            task.add_done_callback(asked.discard)
            due_s += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    if patience_s is None:
        for task in asked:
            task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    watcher.cancel()
    return outcome


async def peak(port: int, seconds: float) -> float:
    """Answers per second of clients that send one request after the other: so many clients that the model never
    pauses."""
    until_s = time.monotonic() + seconds

    async def ask_on() -> int:
        num_answers = 0
        while time.monotonic() < until_s:
            num_answers += await _exchange(port) == "good" and time.monotonic() < until_s
        return num_answers

    return sum(await asyncio.gather(*[ask_on() for _ in range(_NUM_AT_PEAK)])) / seconds


def _percentile(values: list[float], part: float) -> str:
    if not values:
        return "-"
    return f"{1000 * sorted(values)[min(len(values) - 1, math.floor(part * len(values)))]:.0f} ms"


def _row(times: float, patience_s: float | None, outcome: Outcome, seconds: float, peak: float) -> str:
    goodput = outcome.counts["good"] / seconds / peak
    clients = "wait" if patience_s is None else f"give up after {patience_s:g} s"
    cells = [f"{times:g} x", clients, f"{100 * goodput:.0f} %", _percentile(outcome.good_s, 0.99)]
    cells += [_percentile(outcome.refused_s, 0.99), _percentile(outcome.live_s, 0.99)]
    cells.append(", ".join(f"{number} {verdict}" for verdict, number in sorted(outcome.counts.items())))
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Serve the model from a checkout, load it in every way, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, default=Path(), help="a working tree with Shoal in .venv")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run, after its warm-up")
    parser.add_argument("--flag", action="append", default=[], help="a further flag of shoal serve")
    arguments = parser.parse_args()
    checkout = Checkout.at(arguments.checkout)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "models")
        (port,) = free_ports(1)
        command = [str(checkout.folder / ".venv" / "bin" / "shoal"), "serve", "--model-repository", f"{folder}/models"]
        command += [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false", *arguments.flag]
        server = Server(command, {"PATH": "/usr/bin:/bin", "HOME": folder}, port, Path(folder) / "log")
        with server.running(Request("/v2/models/slow/infer", {}, _BODY)):
            highest = asyncio.run(peak(port, arguments.seconds))
            sys.stdout.write(f"{checkout.title}: {highest:.1f} answers/s at its peak\n\n")
            sys.stdout.write("| load | clients | goodput | p99 good | p99 refused | p99 live | |\n")
            sys.stdout.write("| --- | --- | ---: | ---: | ---: | ---: | --- |\n")
            for patience_s in (PATIENCE_S, None):
                for times in TIMES_CAPACITY:
                    outcome = asyncio.run(load(port, times * highest, patience_s, arguments.seconds))
                    sys.stdout.write(_row(times, patience_s, outcome, arguments.seconds, highest) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Compares all ways to ask a server on this host: python -m bench.client_paths [--write]

Each way asks one ONNX model at every size, one request at a time, in turns, and the median counts; then the server's
cost is read where sixteen requests are open at once. Triton, where .venv-bench has it, is asked through regions of
shared memory as Shoal is. --write puts the table into docs/client.md and the picture beside it. On a busy machine
compare only within one run, and prefer the stable figures: instructions, and the quickest calls.
"""

import argparse
import asyncio
import dataclasses
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench import measure, repository
from bench.bench import print_line
from bench.client_ways import (
    ALONE,
    BINARY,
    CLIENT,
    IN_PLACE,
    TRITON_REGION,
    WAYS,
    Call,
    Places,
    array_of,
    save_onnx,
)  # fmt: skip
from bench.errors import BenchmarkError
from bench.peers import ROOT, launch_shoal
from bench.server import Server, ask, free_ports
from bench.triton_beside import triton_beside
from bench.workloads import READY, BenchModel
from shoal import AsyncClient, Client
from shoal.cli.bench.picture import Series, svg

DOCUMENT = ROOT / "docs" / "client.md"
PICTURE = "![The time of a call against the size of its tensors](client.svg)"
#: Elements of one tensor, in FP32.
SIZES = (64, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
#: The sizes in the table; the picture has all.
SHOWN = (SIZES[0], SIZES[3], SIZES[5], SIZES[6])
AT_ONCE = 16
#: Seconds of a turn at every size, and the least number of calls in it.
TURN_S, MIN_CALLS = 0.05, 4
_CHAPTER = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one request, in the server and in the client, with AT_ONCE open, and how many requests shared an
    execution."""

    title: str
    server_us: float
    client_us: float
    batch: float


Times = dict[tuple[str, int], list[float]]


def models(file: Path, sizes: Sequence[int]) -> list[BenchModel]:
    """A model for each size, so that the server knows how large its results are. The first can be batched."""
    return [
        BenchModel(
            f"double_{nbytes}", ("x",), (nbytes // 4,), ("y",), (nbytes // 4,), 32 if nbytes == sizes[0] else 1, file
        )
        for nbytes in sizes
    ]


def serve(folder: Path, every: Sequence[BenchModel]) -> tuple[Server, Places]:
    """A server that is not started yet, and its addresses."""
    (grpc_port,), path = free_ports(1), str(folder / "socket")
    flags = ["--allow-grpc=true", f"--grpc-port={grpc_port}", f"--client-socket={path}"]
    server = launch_shoal(folder, every[0], "regions", every[1:], python=Path(sys.executable), flags=flags)
    return server, Places(server.port, grpc_port, 0, path)


def measure_times(places: Places, every: Sequence[BenchModel], num_rounds: int) -> Times:
    """The duration of each call in µs, by way and size."""
    times: Times = {}
    for model in every:
        with ExitStack() as stack:
            calls: dict[str, Call] = {}
            for way in WAYS:
                if (call := way.open(places, model, stack)) is not None:
                    check(way.title, model, call)
                    calls[way.name] = call
            for _ in range(num_rounds):
                for name, call in calls.items():
                    times.setdefault((name, array_of(model).nbytes), []).extend(_turn(call))
        print_line("  ".join([f"{size(array_of(model).nbytes):>8}", *_told(times, array_of(model).nbytes)]))
    return times


def check(title: str, model: BenchModel, call: Call) -> None:
    """Raise BenchmarkError unless three answers in a row are right: a client may reuse memory from the second on."""
    for _ in range(3):
        if not np.array_equal(call(), array_of(model) * 2):
            raise BenchmarkError(f"{title}: a wrong answer of {model.name}")


def _turn(call: Call) -> list[float]:
    took: list[float] = []
    end_s = time.perf_counter() + TURN_S
    while len(took) < MIN_CALLS or time.perf_counter() < end_s:
        start_ns = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - start_ns) / 1000)
    return took


def _told(times: Times, nbytes: int) -> list[str]:
    return [f"{way.name} {median(times[way.name, nbytes]):.0f}" for way in WAYS if (way.name, nbytes) in times]


# -- many at once ------------------------------------------------------------------------------------------------------


def ask_as_coroutines(path: str, model: BenchModel, num_each: int) -> None:
    """Send `num_each` requests from each of AT_ONCE coroutines, through one AsyncClient."""
    inputs = {"x": array_of(model)}

    async def ask(client: AsyncClient) -> None:
        for _ in range(num_each):
            await client.infer(model.name, inputs)

    async def ask_all() -> None:
        async with AsyncClient(path) as client:
            await asyncio.gather(*[ask(client) for _ in range(AT_ONCE)])

    asyncio.run(ask_all())


def ask_as_threads(path: str, model: BenchModel, num_each: int) -> None:
    """Send `num_each` requests from each of AT_ONCE threads, through one Client."""
    inputs = {"x": array_of(model)}
    with Client(path) as client, ThreadPoolExecutor(AT_ONCE) as pool:

        def ask(_: int) -> None:
            for _ in range(num_each):
                client.infer(model.name, inputs)

        list(pool.map(ask, range(AT_ONCE)))


def cost(
    title: str,
    load: Callable[[str, BenchModel, int], None],
    server: Server,
    path: str,
    model: BenchModel,
    num_each: int,
) -> Cost:
    """Measure what requests cost in the server and the client while `load` sends them."""
    load(path, model, num_each // 10)
    with Client(path) as client:
        before = client.statistics(model.name)[0]["execution_count"]
        server_s, client_s = measure.cpu_s(server.pid), time.process_time()
        load(path, model, num_each)
        server_s, client_s = measure.cpu_s(server.pid) - server_s, time.process_time() - client_s
        num_executions = client.statistics(model.name)[0]["execution_count"] - before
    num = num_each * AT_ONCE
    return Cost(title, server_s * 1e6 / num, client_s * 1e6 / num, num / num_executions)


# -- the results -------------------------------------------------------------------------------------------------------


def document(times: Times, costs: Sequence[Cost]) -> str:
    """The chapter of docs/client.md, as Markdown."""
    rows = ["| one request at a time, p50 | " + " | ".join(map(size, SHOWN)) + " |", "| --- |" + " ---: |" * len(SHOWN)]
    for way in WAYS:
        cells = [_cell(times.get((way.name, nbytes))) for nbytes in SHOWN]
        rows.append(f"| {way.title} | " + " | ".join(cells) + " |")
    many = [f"| {AT_ONCE} requests of {size(SIZES[0])} at once | server's CPU | client's CPU | requests in a batch |"]
    many += ["| --- | ---: | ---: | ---: |"]
    many += [
        f"| {each.title} | {each.server_us:.0f} µs | {each.client_us:.0f} µs | {each.batch:.1f} |" for each in costs
    ]
    return "\n".join([*rows, "", PICTURE, "", *many, ""])


def _cell(took: Sequence[float] | None) -> str:
    if took is None:
        return "–"
    us = median(took)
    return f"{us:,.0f} µs" if us < 10_000 else f"{us / 1000:,.1f} ms"


def picture(times: Times) -> str:
    """The picture of times against sizes, as SVG."""
    sizes = sorted({nbytes for _, nbytes in times})
    series = []
    for way in WAYS:
        found = [(nbytes, median(times[way.name, nbytes]) / 1000) for nbytes in sizes if (way.name, nbytes) in times]
        points = [(nbytes, ms, f"{way.title}, {size(nbytes)}: {ms:,.3g} ms") for nbytes, ms in found]
        series += [Series(way.title, points, has_dots=False)] if points else []
    marks: dict[float, str] = {nbytes: size(nbytes) for nbytes in sizes}
    return svg("The time of a call against the size of its tensors", series, across="a tensor", marks=marks)


def size(nbytes: int) -> str:
    """A size in the largest unit of which it is a whole number."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def targets(times: Times, costs: Sequence[Cost]) -> str:
    """The targets of the client, beside the medians that were measured."""
    p50 = {key: median(took) for key, took in times.items()}
    small, *_, large = sorted({nbytes for _, nbytes in times})
    lines = [
        f"Client / binary over HTTP at {size(small)}: {p50[CLIENT, small] / p50[BINARY, small]:.0%} (60 %), "
        f"of a bare socket: {p50[CLIENT, small] / p50['socket', small]:.0%}",
        *(f"{each.title}: {each.server_us:.0f} µs of the server's CPU per request (45)" for each in costs),
        f"{size(large)} in place: {p50[IN_PLACE, large]:.0f} µs, the model alone {p50[ALONE, large]:.0f} µs "
        f"({p50[ALONE, large] * 1.2 + 200:.0f})",
    ]
    if (TRITON_REGION, large) in p50:
        lines.append(f"Triton's regions take {p50[TRITON_REGION, large] / p50[IN_PLACE, large]:.1f} times as long (2)")
    return "\n".join(lines)


def run(
    folder: Path, sizes: Sequence[int], num_rounds: int, num_requests: int, *, with_triton: bool
) -> tuple[Times, list[Cost]]:
    """Measure all ways and costs."""
    save_onnx(folder / "double.onnx")
    every = models(folder / "double.onnx", sizes)
    server, places = serve(folder, every)
    with ExitStack() as stack:
        if with_triton:
            triton = stack.enter_context(triton_beside(folder, repository.write_onnx_for_triton(folder, every)))
            places = dataclasses.replace(places, triton=triton)
        stack.enter_context(server.running(READY, partial(ask, method="GET")))
        times = measure_times(places, every, num_rounds)
        num_each = max(10, num_requests // AT_ONCE)
        costs = [
            cost(title, load, server, places.path, every[0], num_each)
            for title, load in (("AsyncClient", ask_as_coroutines), ("Client, 16 threads", ask_as_threads))
        ]
    return times, costs


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark; print the tables, and write them where --write says so."""
    parser = argparse.ArgumentParser("python -m bench.client_paths", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each way at each size (default: 20)")
    parser.add_argument("--requests", type=int, default=20_000, help="of each kind, many at once (default: 20000)")
    parser.add_argument("--without-triton", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.relative_to(ROOT)}, and its picture")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        with_triton = not options.without_triton
        times, costs = run(Path(folder), SIZES, options.rounds, options.requests, with_triton=with_triton)
    chapter = document(times, costs)
    print(chapter, targets(times, costs), sep="\n")
    if options.write:
        DOCUMENT.write_text(_CHAPTER.sub(lambda _: chapter, DOCUMENT.read_text()))
        DOCUMENT.with_suffix(".svg").write_text(picture(times))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BenchmarkError as error:
        sys.exit(f"client_paths: {error}")

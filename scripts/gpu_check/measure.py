"""Servers for rows, requests to them through shoal.Client, and rates and latencies beside a framework's bare call."""

import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shoal import Client
from tests.end_to_end.server import Server, serving

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[Array], Array]
#: Rows of the largest batch, and clients that each wait for their answer.
MOST, CLIENTS = 32, 4
#: The largest error of answers of about 1: a GPU may compute FP32 in TF32.
TOLERANCE = 1e-2


def write_model(repository: Path, name: str, config: str, code: str = "") -> Path:
    """Write a model's configuration, and the code of a Python model; returns its version directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(code)
    return version


@contextmanager
def served(repository: Path, *flags: str) -> Iterator[tuple[Server, Client]]:
    """A server of a repository and a client; where the row fails, the server's log is in the row's output."""
    server = None
    try:
        with serving(repository, *flags) as server:
            yield server, Client(server.client_socket)
            server.stop()
    except BaseException:
        if server is not None:
            print(server.log.decode(errors="replace"))
        raise


def post(server: Server, path: str, body: bytes = b"{}") -> int:
    """Send an HTTP request to the server; returns the status. Raises HTTPError for a status of an error."""
    request = urllib.request.Request(f"http://{server.url}/{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return int(response.status)


def rate(call: Callable[[], object], seconds: float) -> float:
    """Calls per second, after a first call that is not counted."""
    call()
    start_s, count = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - start_s) < seconds:
        call()
        count += 1
    return count / elapsed_s


def served_rate(call: Callable[[], object], seconds: float, clients: int = CLIENTS) -> float:
    """Calls per second of several clients, each with one request at a time."""
    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(lambda _: rate(call, seconds), range(clients)))


def median_ms(call: Callable[[], object], seconds: float) -> float:
    """The median time of a call in milliseconds, after a first call that is not counted."""
    call()
    took: list[float] = []
    end_s = time.perf_counter() + seconds
    while not took or time.perf_counter() < end_s:
        start_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - start_s)
    return statistics.median(took) * 1e3


def beside_bare(bare: Call, through: Call, sample: Callable[[int], Array], seconds: float, least: int = 1) -> str:
    """Latency of a small batch and rows a second of large ones: the framework's own call, and through the server."""
    few, many = sample(least), sample(MOST)
    bare_ms, served_ms = median_ms(lambda: bare(few), seconds / 2), median_ms(lambda: through(few), seconds / 2)
    bare_rows = rate(lambda: bare(many), seconds) * MOST
    served_rows = served_rate(lambda: through(many), seconds) * MOST
    few_rows = f"{least} {'row' if least == 1 else 'rows'} {served_ms:.2f} ms, bare {bare_ms:.2f}"
    many_rows = f"{MOST} rows {served_rows:,.0f} rows/s, bare {bare_rows:,.0f}: {served_rows / bare_rows:.0%}"
    return f"{few_rows}; {many_rows}"


def worst_error(through: Call, expected: Call, sample: Callable[[int], Array], least: int = 1) -> float:
    """The largest difference between answers and expected ones, of `least`, 5 and MOST rows."""
    return max(float(np.abs(through(sample(rows)) - expected(sample(rows))).max()) for rows in (least, 5, MOST))

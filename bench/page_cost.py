"""Measures the cost of the page: python -m bench.page_cost [--turns COUNT]

CPU time of all processes of a server under the load of wrk, per request, with the page open and without, in turns of
one server; that of a server without requests; and that of two servers, of which one has --ui=false, in turns. An open
page is what frontend/page/static/app.js asks: GET /ui/figures every second, on one connection.
"""

import argparse
import http.client
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from statistics import median

from bench import measure
from bench.errors import BenchmarkError
from bench.load import Target, Wrk
from bench.peers import launch_shoal
from bench.server import Server
from bench.slices import turns
from bench.workloads import IDENTITY_16, v2_request

SECONDS, CONNECTIONS, IDLE_S, LOOK_S, NUM_PAIRS = 2, 10, 20, 1.0, 4
REQUEST = v2_request(IDENTITY_16, "binary")


@contextmanager
def open_page(port: int) -> Iterator[None]:
    """An open page, as the server sees it."""
    is_over = threading.Event()

    def look() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        while not is_over.wait(LOOK_S):
            connection.request("GET", "/ui/figures")
            connection.getresponse().read()
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def serving(folder: Path, *flags: str) -> AbstractContextManager[Server]:
    """A server that has answered once."""
    return launch_shoal(folder, IDENTITY_16, "binary", flags=flags).running(REQUEST)


def cpu_us(server: Server, body: Path) -> float:
    """CPU time of the server in µs, for each request of a turn."""
    before_s = measure.cpu_s(server.pid)
    seen = Wrk().shoot(Target(server.port, REQUEST, body, CONNECTIONS), SECONDS)
    if seen.errors:
        raise BenchmarkError(f"wrk: {seen.errors} errors")
    return (measure.cpu_s(server.pid) - before_s) * 1e6 / seen.requests


def in_turns(num_turns: int, ways: Sequence[Callable[[], float]]) -> str:
    """The medians of two ways, and of the ratios of neighbouring turns, with their quartiles."""
    found: dict[int, list[float]] = {0: [], 1: []}
    for way in turns((0, 1), num_turns):
        found[way].append(ways[way]())
    shares = sorted(other / plain for plain, other in zip(found[0], found[1], strict=True))
    low, high = shares[len(shares) // 4], shares[-1 - len(shares) // 4]
    return (
        f"{median(found[0]):.2f} µs and {median(found[1]):.2f} µs of CPU a request; "
        f"ratio {median(shares):.4f} (quartiles {low:.4f}–{high:.4f})"
    )


def cpu_ns(root: int) -> dict[str, int]:
    """CPU time of each thread of the tree below a process, finer than /proc/PID/stat has it."""
    times = {}
    for stat in measure.process_tree(root):
        for thread in Path("/proc", str(stat.pid), "task").glob("*/schedstat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # ended since the listing
                times[f"{thread}"] = int(thread.read_text().split()[0])
    return times


def idle_us(server: Server, page: AbstractContextManager[None]) -> float:
    """CPU time in µs that a server without requests takes in a second, but for that of threads that end."""
    with page:
        before_ns = cpu_ns(server.pid)
        time.sleep(IDLE_S)
        after_ns = cpu_ns(server.pid)
    return sum(spent - before_ns.get(thread, 0) for thread, spent in after_ns.items()) / 1e3 / IDLE_S


def main() -> None:
    """Measure, and print a line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--idle", action="store_true", help="only without requests")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        body = folder / "body"
        body.write_bytes(REQUEST.body)
        server = stack.enter_context(serving(folder))

        def with_page() -> float:
            with open_page(server.port):
                return cpu_us(server, body)

        cpu_us(server, body)  # warm
        print(f"without requests: {idle_us(server, nullcontext()):,.0f} µs of CPU a second, with a page open "
              f"{idle_us(server, open_page(server.port)):,.0f}", flush=True)  # fmt: skip
        if given.idle:
            return
        print("no page, and a page open:", in_turns(given.turns, [lambda: cpu_us(server, body), with_page]), flush=True)
        for number in range(NUM_PAIRS):
            flags = (["--ui=false"], []) if number % 2 else ([], ["--ui=false"])  # which is started first says nothing
            with ExitStack() as both:
                servers = {bool(each): both.enter_context(serving(folder, *each)) for each in flags}
                for each in servers.values():
                    cpu_us(each, body)
                ways = [partial(cpu_us, servers[True], body), partial(cpu_us, servers[False], body)]
                print("--ui=false, and --ui=true unseen:", in_turns(given.turns // 2, ways), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.page_cost: {error}")

"""What recording costs: python -m bench.recording_cost [--turns COUNT] [--requests COUNT] [--beside PYTHON]

CPU time of all processes of a server under the load of wrk, per request, in turns: of a server that records nothing and
one that records everything; of that and one that records other models. With --beside, of this version and of the one
that is installed for another interpreter, neither of which records: what a feature costs while it is off. With
--requests so many requests are recorded at the rate that comes about, and counted: those that the server has answered,
those that it has given to the recorder, dropped or lost, and those that are in the files.
"""

import argparse
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from bench.errors import BenchmarkError
from bench.load import Target, Wrk
from bench.page_cost import CONNECTIONS, REQUEST, cpu_us, in_turns, serving
from bench.server import Server

#: Seconds of load in which about a part of the requests of --requests is sent.
PART_S = 10


def compare(
    title: str,
    servers: tuple[AbstractContextManager[Server], AbstractContextManager[Server]],
    body: Path,
    num_turns: int,
) -> None:
    """Print the CPU per request of two servers in turns."""
    with ExitStack() as stack:
        both = [stack.enter_context(each) for each in servers]
        for each in both:
            cpu_us(each, body)  # warm
        print(f"{title}:", in_turns(num_turns, [partial(cpu_us, each, body) for each in both]), flush=True)


def count(folder: Path, body: Path, number: int) -> None:
    """Record so many requests, and print how many are where. Raises BenchmarkError if any is missing or there twice."""
    files, sent = folder / "counted", 0
    seconds = 0.0
    flags = (f"--record={files}", "--record-config=max-size=8GiB")
    with serving(folder, *flags) as server:
        while sent < number:
            seen = Wrk().shoot(Target(server.port, REQUEST, body, CONNECTIONS, is_distinct=True), PART_S)
            if seen.errors:
                raise BenchmarkError(f"wrk: {seen.errors} errors")
            sent += seen.requests
            seconds += seen.duration_s
        counted = figures(server)
    keys = [key for path in sorted(files.glob("*.shoalrec")) for key in keys_in(path)]
    print(
        f"{counted['nv_inference_request_success']:,} answered, {sent / seconds:,.0f} a second; "
        f"{counted['shoal_recorded_requests_total']:,} given to the recorder, "
        f"{counted['shoal_record_dropped_total']:,} dropped, {counted['shoal_record_lost_total']:,} lost to the disk; "
        f"{len(keys):,} in the files, {len(set(keys)):,} different ones, "
        f"{sum(path.stat().st_size for path in files.iterdir()) / len(keys):.0f} bytes each",
        flush=True,
    )
    if not len(keys) == len(set(keys)) == counted["nv_inference_request_success"]:
        raise BenchmarkError("requests are missing from the files, or twice in them")


def figures(server: Server) -> dict[str, int]:
    """The server's counters that have to do with recordings, over all models, once nothing is under way."""
    port = next(each.partition("=")[2] for each in server.command if each.startswith("--metrics-port="))
    found: dict[str, int] = {}
    for line in urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name.startswith(("shoal_record", "nv_inference_request_success")):
            found[name] = found.get(name, 0) + int(float(line.rpartition(" ")[2]))
    return found


def keys_in(path: Path) -> list[int]:
    """The key of each request in a file of a recording; raises BenchmarkError for a file that is damaged."""
    from shoal.recorder.entry import unpack
    from shoal.recorder.segment_file import FileReader

    with path.open("rb") as file:
        reader = FileReader(file)
        keys = [request.key for entry in reader for request in unpack(entry).requests]
    if reader.damage is not None:
        raise BenchmarkError(f"{path}: {reader.damage.why}")
    return keys


def main() -> None:
    """Measure, and print a line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--beside", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        body = folder / "body"
        body.write_bytes(REQUEST.body)
        if given.requests:
            count(folder, body, given.requests)
            return
        if given.beside is not None:
            other = serving(folder, python=given.beside)
            compare(f"{given.beside}, and this version", (other, serving(folder)), body, given.turns)
            return
        record = f"--record={folder / 'files'}"
        recorded = serving(folder, record, "--record-config=max-size=1GiB")
        compare("nothing recorded, and everything", (serving(folder), recorded), body, given.turns)
        others = serving(folder, record, "--record-config=models=other")
        compare("nothing recorded, and other models", (serving(folder), others), body, given.turns)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.recording_cost: {error}")

"""Whether a recording is whole: python -m bench.recording_cost [COUNT]

At least COUNT requests, all different, are recorded at the rate that comes about. Then three numbers are compared:
requests that the server has answered; requests that it has given to the recorder, dropped or lost; and requests in the
files. What a recording costs is compared by scripts/bench --flat record record-others.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

from bench.errors import BenchmarkError
from bench.load import Target, Wrk
from bench.peers import launch_shoal
from bench.server import Server
from bench.workloads import IDENTITY_16, v2_request

#: Seconds of load after which the requests so far are counted.
PART_S = 10
CONNECTIONS = 10
REQUEST = v2_request(IDENTITY_16, "binary")


def count(folder: Path, body: Path, number: int) -> None:
    """Record at least `number` requests, and print the numbers. Raises BenchmarkError if any is missing or there
    twice."""
    files, sent = folder / "counted", 0
    seconds = 0.0
    flags = (f"--record={files}", "--record-config=max-size=8GiB")
    with launch_shoal(folder, IDENTITY_16, "binary", flags=flags).running(REQUEST) as server:
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
    """The server's counters that have to do with recordings, over all models."""
    port = next(each.partition("=")[2] for each in server.command if each.startswith("--metrics-port="))
    found: dict[str, int] = {}
    for line in urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode().splitlines():
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
    """Record and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=1_000_000)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        body = folder / "body"
        body.write_bytes(REQUEST.body)
        count(folder, body, parser.parse_args().count)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.recording_cost: {error}")

"""What a hit in the response cache costs beside an execution: `python -m bench.response_cache`.

Two identity models that differ in `response_cache` alone are asked in turns over HTTP, one request at a time: the one
that is cached for the same numbers (hits) and for others each time (misses), the other for both. An identity model's
execution is the cheapest there is, so a hit pays wherever a model computes anything.
"""

import http.client
import statistics
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from tests.end_to_end.server import serving

ROUNDS, REQUESTS = 20, 100
CONFIG = """
    backend: "identity" max_batch_size: 0
    input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]
"""
_SERIAL = count(1)


def main() -> None:
    """Start a server, ask, print medians."""
    with tempfile.TemporaryDirectory() as directory:
        write_models(Path(directory))
        with serving(directory, "--cache-config=local,size=268435456") as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
            sys.stdout.write("floats   executed      hit     miss   (us, medians of requests one by one)\n")
            for size in (16, 4096, 150_528):
                ways = {"executed": ("plain", False), "hit": ("cached", False), "miss": ("cached", True)}
                times: dict[str, list[float]] = {way: [] for way in ways}
                for _ in range(ROUNDS):
                    for way, (model, is_new) in ways.items():
                        serials = [next(_SERIAL) if is_new else 0 for _ in range(REQUESTS)]
                        times[way] += [ask(connection, model, size, serial) for serial in serials]
                medians = [statistics.median(times[way]) * 1e6 for way in ways]
                sys.stdout.write(f"{size:6} " + " ".join(f"{median:8.0f}" for median in medians) + "\n")


def write_models(directory: Path) -> None:
    """A repository of the two."""
    for name, more in (("cached", "response_cache { enable: true }"), ("plain", "")):
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(CONFIG + more)


def ask(connection: http.client.HTTPConnection, model: str, size: int, serial: int) -> float:
    """Seconds for one request; those of the same number are equal."""
    data = serial.to_bytes(4, "little").ljust(4 * size, b"\0")
    json = (
        b'{"inputs":[{"name":"X","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}],'
        b'"parameters":{"binary_data_output":true}}' % (size, len(data))
    )
    headers = {"Inference-Header-Content-Length": str(len(json))}
    body = json + data
    start = time.perf_counter()
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    response = connection.getresponse()
    answer = response.read()
    took = time.perf_counter() - start
    if response.status != 200 or not answer.endswith(data):
        raise SystemExit(f"{model} answered {response.status}: {answer[:200]!r}")
    return took


if __name__ == "__main__":
    main()

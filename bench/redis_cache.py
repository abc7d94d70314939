"""What a hit in Redis costs beside one in the server's memory: `python -m bench.redis_cache`.

The models of response_cache.py on three servers: two share a Redis on this machine, one has its own memory alone. All
are asked the same over HTTP, one request at a time: what the first must execute, the second finds in Redis.
"""

import http.client
import statistics
import sys
import tempfile
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench.response_cache import ask, write_models
from tests.batcher.redis_server import RedisServer
from tests.end_to_end.server import serving

ROUNDS, REQUESTS = 100, 10
#: Who is asked for which model, in this order, for the same numbers: so each is a miss before it is a hit.
COLUMNS = {
    "executed": (2, "plain"),
    "miss": (2, "cached"),
    "hit": (2, "cached"),
    "Redis miss": (0, "cached"),
    "Redis hit": (1, "cached"),
}


def main() -> None:
    """Start the servers, ask, print medians."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        write_models(repository := Path(directory, "models"))
        redis = stack.enter_context(RedisServer(Path(directory)))
        shared = "--cache-config=redis,host=127.0.0.1", f"--cache-config=redis,port={redis.port}"
        servers = [stack.enter_context(serving(repository, *shared)) for _ in range(2)]
        for server in servers:
            server.read_log(b" answers")
        servers.append(stack.enter_context(serving(repository, "--cache-config=local,size=67108864")))
        connections = [http.client.HTTPConnection("127.0.0.1", server.http_port) for server in servers]
        sys.stdout.write(
            f"floats {' '.join(f'{name:>10}' for name in COLUMNS)}   (us, medians of requests one by one)\n"
        )
        numbers = count(1)
        for size in (16, 4096, 150_528):
            times: dict[str, list[float]] = {name: [] for name in COLUMNS}
            for _ in range(ROUNDS):
                serials = [next(numbers) for _ in range(REQUESTS)]
                for name, (which, model) in COLUMNS.items():
                    times[name] += [ask(connections[which], model, size, serial) for serial in serials]
            medians = [statistics.median(times[name]) * 1e6 for name in COLUMNS]
            sys.stdout.write(f"{size:6} {' '.join(f'{median:10.0f}' for median in medians)}\n")


if __name__ == "__main__":
    main()

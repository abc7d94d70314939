"""Asks /v2/health/live again and again, from a process of its own: the load's clients do not delay its clock.

    python -m tests.reliability.liveness PORT

Ends when its standard input does, and prints the latencies in seconds as a JSON list; those of requests without the
answer 200 are infinite.
"""

import http.client
import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Between two requests.
PAUSE_S = 0.02
DEADLINE_S = 30.0


def main(port: int) -> None:
    """Ask until the standard input ends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    latencies_s: list[float] = []
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        start_s = time.monotonic()
        try:
            connection.request("GET", "/v2/health/live")
            response = connection.getresponse()
            response.read()
            is_live = response.status == 200
        except (OSError, http.client.HTTPException):
            connection.close()
            is_live = False
        latencies_s.append(time.monotonic() - start_s if is_live else math.inf)
    print(json.dumps(latencies_s))


@contextmanager
def watching(port: int) -> Iterator[list[float]]:
    """Ask meanwhile; the list has the latencies at the end."""
    command = [sys.executable, "-m", "tests.reliability.liveness", str(port)]
    found: list[float] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
            printed, _ = process.communicate(timeout=2 * DEADLINE_S)
            found += json.loads(printed)
        finally:
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))

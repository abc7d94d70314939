"""Clients that connect, ask, and are killed: forked from a parent that has imported all and is connected nowhere.

    python -m tests.end_to_end.client_deaths 10000 4

starts a server, kills so many clients, so many at a time, and compares what the server has before and after.
"""

import os
import random
import signal
import sys
import time
import traceback

import numpy as np

from shoal import Client
from tests.end_to_end.server import SAMPLES, Server, imbalances, only, serving, title

COUNTED = ("descriptors", "shared_bytes", "children")
#: A client lives at most so long after it has connected: a few requests.
LIFE_S = 0.002
A = np.arange(16, dtype=np.int32).reshape(1, 16)


def cycle(path: str, count: int, at_once: int = 4) -> None:
    """Let `count` clients die, `at_once` at a time, each of a signal at some moment after it has connected."""
    left = count
    while left > 0:
        children = [_fork(path, number) for number in range(min(at_once, left))]
        left -= len(children)
        for child, reading in children:
            if not os.read(reading, 1):
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                raise AssertionError(f"a client could not connect: its exit code is {code}")
            os.close(reading)
        for child, _ in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGALRM


def _fork(path: str, number: int) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.close(reading)
        client = Client(path)
        held = [client.infer("simple", {"INPUT0": A, "INPUT1": A}, copy=False)]
        features = client.empty("mlp", "features", (4, 512))
        os.write(writing, b"x")
        # The kernel ends it in the middle of something: Python is not asked, as it is not by SIGKILL.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, LIFE_S))
        while True:
            held.append(client.infer("simple", {"INPUT0": A, "INPUT1": A}, copy=number % 2 == 0))
            client.infer("mlp", {"features": features})
            held = held[-20:]
    except BaseException:  # noqa: BLE001 - a copy of the parent must not go on as that
        traceback.print_exc()
    finally:
        os._exit(1)


def resident_kib(server: Server) -> dict[int, int]:
    """What each process of the server has for itself."""
    found = {}
    for pid in (server.process.pid, *server.children):
        try:
            with open(f"/proc/{pid}/status") as status:
                found[pid] = next((int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)
        except FileNotFoundError:
            continue
    return found


def main(count: int, at_once: int) -> None:
    """A long run, and what it came to."""
    path = f"/tmp/shoal-deaths-{os.getpid()}"
    with serving(SAMPLES, *only("simple", "mlp"), f"--client-socket={path}") as server:
        cycle(path, 100)
        before, resident = server.ledger_once(lambda ledger: not imbalances(ledger)), resident_kib(server)
        start_s = time.monotonic()
        for _ in range(0, count, 100):
            cycle(path, 100, at_once)
        seconds = time.monotonic() - start_s
        after = server.ledger_once(lambda ledger: not imbalances(ledger))
        counts = ((each, before["supervisor"][each], after["supervisor"][each]) for each in COUNTED)
        memory = ((f"KiB of {title(pid)}", resident.get(pid, 0), kib) for pid, kib in resident_kib(server).items())
        told = [f"{count} clients in {seconds:.0f} s"]
        told += [f"{what}: {was} before, {now} after" for what, was, now in (*counts, *memory)]
        told.append(f"exit status {server.stop()}")
        print(*told, sep="\n")  # noqa: T201 - its result


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

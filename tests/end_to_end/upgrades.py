"""Upgrades and SIGHUPs of a real server under load: every answer over HTTP, gRPC and shared memory is verified.

`scripts/upgrades` is the long form, test_upgrade.py the short one. Clients keep their connections, or make one for each
request; none asks twice: what fails, fails.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.http

from shoal import Client
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, serving, wait_for_deaths
from tests.end_to_end.traffic import MODEL

SHOAL = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())"]
#: One question of one client: a number in, and the four numbers that must come back.
Ask = Callable[[int], list[int]]


def row(number: int) -> list[int]:
    """The tensor of a request."""
    return [number, -number, 7, number ^ 0x5555]


class Doors(NamedTuple):
    """Where the server is found, before and after each upgrade."""

    http_port: int
    grpc_port: int
    socket: str


# --- clients, each with a connection of its own ---


@contextmanager
def kept_http(doors: Doors) -> Iterator[Ask]:
    """Requests over one connection of the standard library's, which a server may close after an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", doors.http_port, timeout=DEADLINE_S)) as connection:
        yield lambda number: _ask_http(connection, number)


@contextmanager
def fresh_http(doors: Doors) -> Iterator[Ask]:
    """Requests over a connection each."""

    def ask(number: int) -> list[int]:
        with closing(http.client.HTTPConnection("127.0.0.1", doors.http_port, timeout=DEADLINE_S)) as connection:
            return _ask_http(connection, number)

    yield ask


@contextmanager
def road_http(doors: Doors) -> Iterator[Ask]:
    """Requests that a lane hands over to the road."""
    with closing(http.client.HTTPConnection("127.0.0.1", doors.http_port, timeout=DEADLINE_S)) as connection:
        yield lambda number: _ask_http(connection, number, {"TE": "trailers"})


def _ask_http(connection: http.client.HTTPConnection, number: int, fields: dict[str, str] | None = None) -> list[int]:
    tensor = {"name": "A", "shape": [1, 4], "datatype": "INT32", "data": row(number)}
    connection.request("POST", "/v2/models/m/infer", json.dumps({"inputs": [tensor]}), fields or {})
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, (response.status, body[:300])
    data: list[int] = json.loads(body)["outputs"][0]["data"]
    return data


@contextmanager
def triton_http(doors: Doors) -> Iterator[Ask]:
    """Triton's own client over HTTP, with binary tensors."""
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{doors.http_port}", network_timeout=DEADLINE_S) as client:
        yield lambda number: _ask_triton(tritonclient.http, client, number)


@contextmanager
def triton_grpc(doors: Doors) -> Iterator[Ask]:
    """Triton's own client over gRPC; connections are gRPC's own affair."""
    # Clients of one process would share a channel otherwise.
    options = [("grpc.use_local_subchannel_pool", 1)]
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{doors.grpc_port}", channel_args=options)
    with client:
        yield lambda number: _ask_triton(tritonclient.grpc, client, number)


def _ask_triton(api: Any, client: Any, number: int) -> list[int]:
    tensor = api.InferInput("A", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.array([row(number)], np.int32))
    found: list[int] = client.infer("m", [tensor]).as_numpy("B")[0].tolist()
    return found


@contextmanager
def shared_memory(doors: Doors) -> Iterator[Ask]:
    """shoal.Client, through shared memory."""
    with Client(doors.socket) as client:
        yield lambda number: client.infer("m", {"A": np.array([row(number)], np.int32)})["B"][0].tolist()


@contextmanager
def fresh_shared_memory(doors: Doors) -> Iterator[Ask]:
    """A shoal.Client for each request, which connects at any moment of an upgrade."""

    def ask(number: int) -> list[int]:
        with Client(doors.socket) as client:
            found: list[int] = client.infer("m", {"A": np.array([row(number)], np.int32)})["B"][0].tolist()
            return found

    yield ask


KINDS = (kept_http, fresh_http, road_http, triton_http, triton_grpc, shared_memory, fresh_shared_memory)


class Load:
    """Clients of each kind, each in a thread, that ask one request after the other."""

    def __init__(self, server: Server, copies: int = 1) -> None:
        self._doors = Doors(server.http_port, server.grpc_port, server.client_socket)
        self._kinds = [kind for kind in KINDS for _ in range(copies)]
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        # Changed by the threads: right answers by kind, and all that was not right.
        self.num_right: Counter[str] = Counter()
        self.faults: list[str] = []

    def __enter__(self) -> "Load":
        for number, kind in enumerate(self._kinds):
            thread = threading.Thread(target=self._run, args=(kind, number * 1_000_000))
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def await_answers(self, each: int) -> None:
        """Return when every kind has had so many more right answers, or one has failed."""
        before = self.num_right.copy()
        end = time.monotonic() + DEADLINE_S
        while any(self.num_right[kind.__name__] < before[kind.__name__] + each for kind in KINDS) and not self.faults:
            assert time.monotonic() < end, self.num_right
            self._is_over.wait(0.01)

    def _run(self, kind: Any, number: int) -> None:
        name = kind.__name__
        with ExitStack() as opened:
            ask = opened.enter_context(kind(self._doors))
            while not self._is_over.is_set():
                number += 1
                began_s = time.monotonic()
                try:
                    found = ask(number)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is a request that has failed
                    took_s = time.monotonic() - began_s
                    self.faults.append(f"{name} after {took_s:.3f} s: {type(error).__name__}: {error}")
                    continue
                if found == row(number):
                    self.num_right[name] += 1
                else:
                    self.faults.append(f"{name}: {found} to {row(number)}")


# --- the server ---


def upgrade(pid: int) -> "subprocess.CompletedProcess[str]":
    """`shoal upgrade` of this server, to its end."""
    return subprocess.run([*SHOAL, "upgrade", f"--pid={pid}"], capture_output=True, text=True, check=False, timeout=180)


def new_pid(said: str) -> int:
    """The pid of the server that has taken over, as the command has said."""
    line = next(line for line in said.splitlines() if " serves in the place of " in line)
    return int(line.split()[1])


def stop(server: Server, pid: int) -> None:
    """End the server that has taken over, of which this process is no parent, and drain its log."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        server.read_log(b"\0never")
        assert wait_for_deaths([pid])
    finally:
        os.close(pidfd)


def write_models(repository: Path) -> Path:
    """One model that answers with what it was asked."""
    add_model(repository, "m", MODEL)
    return repository


def main(argv: list[str]) -> int:
    """Upgrade and hang up under load; returns 1 where a request has failed."""
    parser = argparse.ArgumentParser(description="Upgrade a server under load again and again, and count answers.")
    parser.add_argument("--upgrades", type=int, default=20)
    parser.add_argument("--hups", type=int, default=50)
    parser.add_argument("--answers", type=int, default=20, help="of each kind of client, between two events")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        flags = [f"--client-socket={directory}/socket", "--grpc-port=0"]
        with serving(write_models(Path(directory, "models")), *flags) as server:
            return _run(server, arguments)


def _run(server: Server, arguments: argparse.Namespace) -> int:
    pid, took_s = server.process.pid, []
    load = Load(server)
    drain = threading.Thread(target=lambda: server.read_log(b"\0never", 3600.0), daemon=True)
    drain.start()
    num_hups = 0
    with load:
        for number in range(arguments.upgrades):
            while num_hups < arguments.hups * (number + 1) // arguments.upgrades:
                load.await_answers(arguments.answers)
                os.kill(pid, signal.SIGHUP)
                num_hups += 1
            load.await_answers(arguments.answers)
            began_s = time.monotonic()
            done = upgrade(pid)
            took_s.append(time.monotonic() - began_s)
            print(f"{number + 1}: {took_s[-1]:.1f} s, {sum(load.num_right.values())} right, {len(load.faults)} failed")
            if done.returncode:
                print(done.stdout, done.stderr, server.log.decode()[-5000:])
                return 1
            pid = new_pid(done.stdout)
        load.await_answers(arguments.answers)
    os.kill(pid, signal.SIGTERM)
    wait_for_deaths([pid])
    drain.join(DEADLINE_S)
    for fault in load.faults[:50]:
        print(fault)
    print(f"{arguments.upgrades} upgrades of {sorted(took_s)[len(took_s) // 2]:.1f} s (median), {num_hups} SIGHUPs")
    print(f"{sum(load.num_right.values())} right answers ({dict(load.num_right)}), {len(load.faults)} failed")
    return 1 if load.faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

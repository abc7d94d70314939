"""Verified load over every door, beside the upgrades of a server: HTTP on the lane and on the road, gRPC, TLS, shared
memory.

Each request carries numbers of its own, which its answer must have. Clients keep their connections, or make one for
each request. None asks twice but where HTTP lets a client do so and no server can spare it that: see KeptConnection.
"""

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.http

from shoal import Client
from shoal.frontend.lane_loop import LINGER_S
from tests.certificates import Certificates
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, wait_for_deaths
from tests.end_to_end.traffic import MODEL

SHOAL = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())"]
#: One question of one client: a number in, and the four numbers that must come back.
Ask = Callable[[int], list[int]]
#: A field by which a lane hands a request over to the road.
TO_ROAD = {"TE": "trailers"}


def row(number: int) -> list[int]:
    """The tensor of a request."""
    return [number, -number, 7, number ^ 0x5555]


class Doors(NamedTuple):
    """Where the server is found, before and after each upgrade."""

    http_port: int
    grpc_port: int
    socket: str
    certificates: Certificates | None = None

    def connect(self) -> http.client.HTTPConnection:
        """A connection to HTTP's port, in plain text or over TLS; not open yet."""
        if self.certificates is None:
            return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=DEADLINE_S)
        context = ssl.create_default_context(cafile=self.certificates.root)
        return http.client.HTTPSConnection("127.0.0.1", self.http_port, timeout=DEADLINE_S, context=context)


# --- clients, each with a connection of its own ---


class KeptConnection:
    """A connection that is kept for as long as the server keeps it, as those of ordinary clients.

    A server may close an idle connection at any time (RFC 9112, section 9.5). This one promises to keep it for LINGER_S
    when it drains, and to say `Connection: close` with the answer to a request that comes by then. So only where this
    client has sent nothing for longer may a request be sent again: once, and if nothing of a response has come.
    """

    def __init__(self, doors: Doors, fields: dict[str, str]) -> None:
        self._doors = doors
        self._fields = fields
        # Changed by ask.
        self._connection = doors.connect()
        self._asked_s = time.monotonic()

    def close(self) -> None:
        self._connection.close()

    def ask(self, number: int) -> list[int]:
        asked_s, self._asked_s = self._asked_s, time.monotonic()
        try:
            response = self._request(number)
        except (
            http.client.RemoteDisconnected,
            ConnectionResetError,
            BrokenPipeError,
            ssl.SSLEOFError,
            ssl.SSLZeroReturnError,
        ):
            self._connection.close()
            if time.monotonic() - asked_s < LINGER_S:
                raise
            response = self._request(number)
        return _row_of(response)

    def _request(self, number: int) -> http.client.HTTPResponse:
        return _request(self._connection, number, self._fields)


@contextmanager
def kept_http(doors: Doors) -> Iterator[Ask]:
    """Requests over one connection, answered by a lane."""
    with closing(KeptConnection(doors, {})) as connection:
        yield connection.ask


@contextmanager
def road_http(doors: Doors) -> Iterator[Ask]:
    """Requests over one connection that a lane hands over to the road, which gives it back."""
    with closing(KeptConnection(doors, TO_ROAD)) as connection:
        yield connection.ask


@contextmanager
def fresh_http(doors: Doors) -> Iterator[Ask]:
    """Requests over a connection each."""

    def ask(number: int) -> list[int]:
        with closing(doors.connect()) as connection:
            return _row_of(_request(connection, number, {}))

    yield ask


def _request(connection: http.client.HTTPConnection, number: int, fields: dict[str, str]) -> http.client.HTTPResponse:
    tensor = {"name": "A", "shape": [1, 4], "datatype": "INT32", "data": row(number)}
    connection.request("POST", "/v2/models/m/infer", json.dumps({"inputs": [tensor]}), fields)
    return connection.getresponse()


def _row_of(response: http.client.HTTPResponse) -> list[int]:
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
    url, roots = f"127.0.0.1:{doors.grpc_port}", None
    if doors.certificates is not None:
        roots = str(doors.certificates.root)
    client = tritonclient.grpc.InferenceServerClient(
        url, ssl=roots is not None, root_certificates=roots, channel_args=options
    )
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


#: A client, as a context that yields how it asks.
Kind = Callable[[Doors], Any]
PLAIN: tuple[Kind, ...] = (
    kept_http, fresh_http, road_http, triton_http, triton_grpc, shared_memory, fresh_shared_memory,
)  # fmt: skip
TLS: tuple[Kind, ...] = (kept_http, fresh_http, road_http, triton_grpc)


class Load:
    """Clients of each kind, each in a thread, that ask one request after the other."""

    def __init__(self, doors: Doors, kinds: Sequence[Kind]) -> None:
        self._doors = doors
        self._kinds = kinds
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        # Changed by the threads: right answers by kind, and all that was not right.
        self.num_right: Counter[str] = Counter()
        self.faults: list[str] = []

    def __enter__(self) -> "Load":
        for number, kind in enumerate(self._kinds):
            thread = threading.Thread(target=self._run, args=(kind, number * 10_000_000))
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
        names = [kind.__name__ for kind in self._kinds]
        while any(self.num_right[name] < before[name] + each for name in names) and not self.faults:
            assert time.monotonic() < end, self.num_right
            self._is_over.wait(0.01)

    def _run(self, kind: Kind, number: int) -> None:
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

#: The command `shoal` as an installation has it, three that do not come up, and one that is
#: ended at the moment at which it has reported that it serves, and the old server has not agreed yet.
WORKS = """#!{python}
import sys
from shoal.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
BROKEN = "#!/bin/sh\necho 'the installation is broken' >&2\nexit 3\n"
HANGS = "#!/bin/sh\nexec sleep 3600\n"
DIES = "#!/bin/sh\nkill -9 $$\n"
IS_ENDED = """#!{python}
import os, signal, sys
from shoal.cli import main
from shoal.messages.upgrade import NewServerServes
from shoal.supervisor.upgrade.predecessor import Predecessor
send = Predecessor._send
def send_and_end(self, message, seq=0):
    send(self, message, seq)
    if isinstance(message, NewServerServes):
        os.kill(os.getpid(), signal.SIGTERM)
Predecessor._send = send_and_end
raise SystemExit(main(sys.argv[1:]))
"""


class Installation:
    """The command `shoal` in a directory, which an upgrade starts; it works at first."""

    def __init__(self, directory: Path) -> None:
        self._script = directory / "shoal"
        self.install(WORKS)

    def install(self, text: str) -> None:
        """Replace the command as an installation does: by another file, not by another text of the same one."""
        fresh = self._script.with_suffix(".fresh")
        fresh.write_text(text.format(python=sys.executable))
        fresh.chmod(0o755)
        fresh.rename(self._script)

    @contextmanager
    def serving(self, repository: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
        """A server that answers, started by the command; killed afterwards if it is still the one that was started."""
        command = [str(self._script), "serve", f"--model-repository={repository}", "--http-port=0", "--metrics-port=0"]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
        process = subprocess.Popen(
            [*command, *flags], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        with Server(process) as server:
            assert server.read_log(b"Started Metrics Service"), server.log.decode()
            server.http_port = server.port_of("HTTPService")
            if "--allow-grpc=false" not in flags:
                server.grpc_port = server.port_of("GRPCInferenceService")
            yield server


def doors_of(server: Server, certificates: Certificates | None = None) -> Doors:
    """Where clients find a server."""
    return Doors(server.http_port, server.grpc_port, server.client_socket, certificates)


def await_started(server: Server, start: int) -> int:
    """The pid of the new server that the log says is started, after `start`."""
    said = b"is started beside this server, as process "
    assert server.read_log(said, start=start)
    server.read_log(b"\n", start=server.log.index(said, start))
    (pid,) = re.findall(said + rb"(\d+)", server.log[start:])
    return int(pid)


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


def tls_flags(files: Certificates) -> list[str]:
    """Flags for a server whose HTTP and gRPC have TLS."""
    kinds = [f"--{door}-server-{kind}={path}" for door in ("http", "grpc") for kind, path in (
        ("cert", files.server_cert), ("key", files.server_key),
    )]  # fmt: skip
    return ["--http-use-ssl=true", "--grpc-use-ssl=true", *kinds]


def write_models(repository: Path) -> Path:
    """One model that answers with what it was asked."""
    add_model(repository, "m", MODEL)
    return repository

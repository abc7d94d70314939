"""A real server as a replica has it: its life and health, and requests that the relay passes on, without Ray.

The relay is driven as ASGI, as Serve does it, and compared with the server itself, asked over a socket.
"""

import asyncio
import gzip
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from shoal import AsyncClient, Client
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.ray.load_figures import figures_between, read_sample
from shoal.ray.relay import Relay
from shoal.ray.replica_server import ReplicaServer, ServerPlan, _make_folder, closed_to_all
from tests.end_to_end.server import DEADLINE_S, SAMPLES, descendants, only

DIGITS = (SAMPLES / "digits" / "request.json").read_bytes()
INFER = "/v2/models/digits/infer"
MODELS = ("digits", "simple", "simple_identity", "repeat")


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture(scope="module")
def server() -> Iterator[ReplicaServer]:
    plan = ServerPlan((str(SAMPLES),), ("--http-process-count=1", *only(*MODELS)), exit_timeout_s=20)
    running = ReplicaServer(plan)
    running.start()
    yield running
    folder = Path(running.client_socket).parent
    running.stop()
    assert running.wait(0)
    assert not folder.exists()


def asked(server: ReplicaServer, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
    """The server's own response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    connection.request(method, path, body or None, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    found = {name.lower(): value for name, value in response.getheaders()}
    body = response.read()
    connection.close()
    return Response(response.status, found, body)


def relayed(
    port: int,
    method: str,
    path: str,
    pieces: Sequence[bytes] = (b"",),
    root_path: str = "",
    seen: Callable[[bytes], None] = lambda _: None,
    **headers: str,
) -> Response:
    """The response of the relay to one request whose body comes in these pieces."""

    async def ask() -> Response:
        relay = Relay()
        relay.port = port
        messages = [
            {"type": "http.request", "body": piece, "more_body": more}
            for piece, more in zip(pieces, [*[True] * (len(pieces) - 1), False], strict=True)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)
            seen(message.get("body", b""))

        target, _, query = path.partition("?")
        if len(pieces) == 1 and pieces[0]:
            headers.setdefault("content_length", str(len(pieces[0])))
        scope = {
            "type": "http",
            "method": method,
            "path": root_path + target,
            "raw_path": (root_path + target).encode(),
            "root_path": root_path,
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }
        await relay(scope, receive, send)
        await relay.close()
        start, *rest = sent
        assert start["type"] == "http.response.start"
        assert not rest[-1]["more_body"]
        found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return Response(start["status"], found, b"".join(each["body"] for each in rest))

    return asyncio.run(asyncio.wait_for(ask(), DEADLINE_S))


def test_it_is_ready_and_says_what_it_does(server: ReplicaServer) -> None:
    server.check_health()
    sample = read_sample(server.metrics(), 0)
    assert {model for model, _, _ in sample.busy_s} == {*MODELS}
    asked(server, "POST", INFER, DIGITS)
    later = read_sample(server.metrics(), 10**9)
    assert 0 < figures_between(sample, later).utilisation <= 1


def test_ray_s_haproxy_finds_it_ready(server: ReplicaServer) -> None:
    assert asked(server, "GET", "/-/healthz").status == 200


def test_arrays_pass_through_shared_memory(server: ReplicaServer) -> None:
    ones = np.ones((1, 16), np.int32)
    with Client(server.client_socket) as client:
        assert (client.infer("simple", {"INPUT0": ones, "INPUT1": ones})["OUTPUT0"] == 2).all()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v2", b""),
        ("GET", "/v2/health/ready", b""),
        ("GET", "/v2/models/digits/versions/1", b""),
        ("POST", INFER, DIGITS),
        ("POST", INFER, b"{"),
        ("POST", INFER, b""),
        ("POST", "/v2/models/absent/infer", DIGITS),
        ("POST", "/v2/repository/index", b""),
        ("DELETE", "/v2", b""),
        ("HEAD", "/v2/health/live", b""),
        ("GET", "/v2/models/di%67its?a=%20b&c", b""),
    ],
)
def test_a_response_is_the_server_s(server: ReplicaServer, method: str, path: str, body: bytes) -> None:
    direct, passed = asked(server, method, path, body), relayed(server.http_port, method, path, [body])
    assert (passed.status, passed.body) == (direct.status, direct.body)
    connections = {"connection", "keep-alive", "date"}
    assert passed.headers.keys() - connections == direct.headers.keys() - connections - {"transfer-encoding"}


def test_binary_tensors_pass(server: ReplicaServer) -> None:
    numbers = np.arange(16, dtype=np.int32)
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + numbers.tobytes() * 2
    response = relayed(
        server.http_port, "POST", "/v2/models/simple/infer", [body], inference_header_content_length=str(len(head))
    )
    size = int(response.headers["inference-header-content-length"])
    assert [each["name"] for each in json.loads(response.body[:size])["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(np.frombuffer(response.body[size : size + 64], np.int32), numbers * 2)


def test_a_compressed_body_passes_as_it_is(server: ReplicaServer) -> None:
    response = relayed(server.http_port, "POST", INFER, [gzip.compress(DIGITS)], content_encoding="gzip")
    assert response.body == asked(server, "POST", INFER, DIGITS).body


def test_a_compressed_response_stays_compressed(server: ReplicaServer) -> None:
    texts = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 64], "data": ["fish " * 100] * 64}
    body = json.dumps({"inputs": [texts]}).encode()
    path = "/v2/models/simple_identity/infer"
    plain = asked(server, "POST", path, body).body  # the lane then knows that this model's responses are large
    response = relayed(server.http_port, "POST", path, [body], accept_encoding="gzip")
    assert response.headers["content-encoding"] == "gzip"
    assert gzip.decompress(response.body) == plain


def test_a_body_may_come_in_pieces(server: ReplicaServer) -> None:
    direct = asked(server, "POST", INFER, DIGITS).body
    pieces = [DIGITS[:7], b"", DIGITS[7:]]
    assert relayed(server.http_port, "POST", INFER, pieces).body == direct  # chunked
    assert relayed(server.http_port, "POST", INFER, pieces, content_length=str(len(DIGITS))).body == direct


def test_the_route_prefix_is_serve_s_own(server: ReplicaServer) -> None:
    response = relayed(server.http_port, "POST", INFER, [DIGITS], root_path="/models")
    assert response.body == asked(server, "POST", INFER, DIGITS).body


def test_a_stream_passes_piece_by_piece(server: ReplicaServer) -> None:
    answers = json.dumps({"IN": [1, 2, 3], "DELAY": [0, 0, 0], "WAIT": 0}).encode()
    pieces = list[bytes]()
    response = relayed(
        server.http_port, "POST", "/v2/models/repeat/generate_stream", [answers], seen=pieces.append,
        content_type="application/json",
    )  # fmt: skip
    assert (response.status, response.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    assert response.body.count(b"data: ") == 3
    assert max(piece.count(b"data: ") for piece in pieces) <= 3


def test_a_server_that_is_gone_is_answered_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    response = relayed(port, "GET", "/v2")
    assert response.status == 503
    assert "accepts no connections" in json.loads(response.body)["error"]


def test_a_server_that_ends_during_a_request_is_answered_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        response = relayed(listener.getsockname()[1], "POST", INFER, [DIGITS])
    assert response.status == 503
    assert "has ended while it had the request" in json.loads(response.body)["error"]


# -- starts that fail, and ends ----------------------------------------------------------------------------------------


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    failing = ReplicaServer(ServerPlan((str(tmp_path / "absent"),)))
    with pytest.raises(UnavailableError, match="did not start") as raised:
        failing.start()
    assert "absent" in str(raised.value)
    assert failing.wait(DEADLINE_S)
    with pytest.raises(UnavailableError, match="has ended"):
        failing.check_health()


def test_a_server_whose_port_was_in_use_starts_at_another() -> None:
    """Ray Serve tries ports until one is free, each by a start of the same server."""
    flags = ("--model-control-mode=explicit", "--load-model=simple")
    started = ReplicaServer(ServerPlan((str(SAMPLES),), flags))
    with socket.create_server(("127.0.0.1", 0)) as used, pytest.raises(UnavailableError, match="did not start"):
        started.start("127.0.0.1", used.getsockname()[1])
    try:
        started.start()
        started.check_health()
        assert Path(started.client_socket).exists()
    finally:
        started.stop()


def test_no_client_administers_a_server_behind_a_proxy_on_its_host_unless_the_flags_say_so() -> None:
    explicit = ("--model-control-mode=explicit", "--load-model=simple", "--http-process-count=1")
    server = ReplicaServer(ServerPlan((str(SAMPLES),), closed_to_all(explicit)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        grpc_port = free.getsockname()[1]
    try:
        server.start(grpc_port=grpc_port)
        assert asked(server, "POST", "/v2/repository/models/simple/unload").status == 403
        for path in ("/v2/debug/requests", "/v2/debug/log", "/v2/shadow", "/v2/recording"):
            assert asked(server, "GET", path).status == 403, path
        assert asked(server, "GET", "/v2/models/stats").status == 200
        with InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            with pytest.raises(InferenceServerException, match="restricted"):
                client.unload_model("simple")
            with pytest.raises(InferenceServerException, match="restricted"):
                client.update_log_settings({"log_verbose_level": 1})
            assert client.is_model_ready("simple")
    finally:
        server.stop()
    for flag in ("--allow-remote-admin", "--api-keys=keys.json"):
        assert closed_to_all((flag,)) == (flag,)
    for refusal in ("false", "0", "Off"):
        assert len(closed_to_all((f"--allow-remote-admin={refusal}",))) == 3, refusal
    own, *added = closed_to_all(("--http-restricted-api=health:x=y",))
    assert [each.partition("=")[0] for each in added] == ["--grpc-restricted-protocol"], own


def test_a_server_that_was_not_started_is_not_healthy() -> None:
    with pytest.raises(UnavailableError, match="has not been started"):
        ReplicaServer(ServerPlan((str(SAMPLES),))).check_health()


@pytest.mark.parametrize("flag", ["--http-port=1", "--model-repository=/x", "--client-socket="])
def test_a_flag_that_is_the_replica_s_is_refused(flag: str) -> None:
    with pytest.raises(InvalidArgumentError, match=flag.partition("=")[0]):
        ServerPlan((str(SAMPLES),), (flag,))


def test_a_repository_is_needed() -> None:
    with pytest.raises(InvalidArgumentError, match="model repository"):
        ServerPlan(())


REPLICA = """
import sys
from shoal.ray.replica_server import ReplicaServer, ServerPlan, closed_to_all
server = ReplicaServer(ServerPlan((sys.argv[1],), ("--model-control-mode=explicit",), cores=(int(sys.argv[2]),)))
server.start()
print(server._process.pid, server.client_socket, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a socket has 107 bytes at most; pytest's own folders take that many under xdist."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_all_of_it_ends_with_a_replica_that_is_killed_and_it_has_the_cores_that_it_was_given(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next replica removes the folder of its socket, and no other's: they are made in the test's own folder."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", REPLICA, str(SAMPLES), str(core)]
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as replica:
        assert replica.stdout is not None
        pid, client_socket = replica.stdout.readline().split()
        supervisor = int(pid)
        family = [supervisor, *descendants(supervisor)]
        assert len(family) > 3
        assert os.sched_getaffinity(supervisor) == {core}
        ends = [os.pidfd_open(each) for each in family]

        async def lose_the_server() -> None:
            client = AsyncClient(client_socket)
            assert await client.is_live()
            replica.send_signal(signal.SIGKILL)
            assert await asyncio.to_thread(lambda: all(map(has_ended, ends)))
            assert not await client.is_live()
            await client.close()  # the connection is closed already

        asyncio.run(asyncio.wait_for(lose_the_server(), DEADLINE_S * 2))
        replica.wait()
    for fd in ends:
        os.close(fd)
    (left,) = short_folder.glob("shoal-replica-*")
    assert left == Path(client_socket).parent
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    (short_folder / "shoal-replica-abcdefgh").mkdir()  # of a version that did not lock it
    first, lock = _make_folder()
    second, other_lock = _make_folder()
    found = {str(each) for each in short_folder.glob("shoal-replica-*")}
    assert found == {first.name, second.name, str(short_folder / "shoal-replica-abcdefgh")}
    for folder, fd in ((first, lock), (second, other_lock)):
        folder.cleanup()
        os.close(fd)


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], DEADLINE_S)[0])

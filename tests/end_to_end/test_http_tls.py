"""HTTP over mutual TLS with API keys, driven by real clients, and by clients that are not let in or break off: one
server with one lane, whose ledger balances in the end."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import requests
import tritonclient.http as client

from shoal.api_keys import entry_of, new_key
from shoal.cli import main
from tests.certificates import Certificates, make_certificates
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import (
    DEADLINE_S,
    LOOK_AGAIN_S,
    SAMPLES,
    Server,
    descendants,
    only,
    serving_to_the_end,
    title,
    wait_until,
)

ECHO = config_text("identity", "IN FP32 -1", "OUT FP32 -1")
PAIR = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for name in ("INPUT0", "INPUT1")]
SUM = list(range(0, 32, 2))
INFER = "/v2/models/simple/infer"
#: What the road answers, and not the lane.
INDEX = "/v2/repository/index"
LARGE = np.arange(10 * (1 << 20) // 4, dtype=np.float32)  # 10 MiB


class Keys(NamedTuple):
    path: Path
    everything: str
    infer: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The server's and its clients'; `root` names a second authority, too, whose certificates are `renewed`."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def renewed(files: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = make_certificates(tmp_path_factory.mktemp("renewed"))
    files.root.write_bytes(files.root.read_bytes() + made.root.read_bytes())
    return made


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    made = Keys(tmp_path_factory.mktemp("keys") / "keys.json", new_key(), new_key())
    entries = {
        "everything": entry_of(made.everything, ["infer", "admin", "metrics"], ["*"]),
        "infer": entry_of(made.infer, ["infer"], ["simple"]),
    }
    made.path.write_text(json.dumps(entries))
    return made


@pytest.fixture(scope="module")
def server(
    files: Certificates, renewed: Certificates, keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    del renewed  # the root file has both authorities
    models = tmp_path_factory.mktemp("models")
    add_model(models, "echo", ECHO)
    flags = [
        "--http-process-count=1", "--http-use-ssl-mutual=true", "--metrics-use-ssl=true",
        f"--http-server-cert={files.server_cert}", f"--http-server-key={files.server_key}",
        f"--http-root-cert={files.root}", f"--api-keys={keys.path}", *only("echo", "simple", "repeat"),
        "--openai-port=0",
    ]  # fmt: skip
    with serving_to_the_end([SAMPLES, models], *flags) as server:
        yield server
        server.ledger_at_rest()
        assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture
def context(files: Certificates) -> ssl.SSLContext:
    return context_of(files, files)


def context_of(trusts: Certificates, shows: Certificates | None) -> ssl.SSLContext:
    """A client's, who trusts an authority and shows a certificate."""
    made = ssl.create_default_context(cafile=trusts.root)
    if shows is not None:
        made.load_cert_chain(shows.client_cert, shows.client_key)
    return made


class Caller:
    """A client with one connection, which must never have to open another."""

    def __init__(self, server: Server, context: ssl.SSLContext, key: str, port: int = 0) -> None:
        port = port or server.http_port
        self._key = key
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
        self.connection.connect()
        self.connection.auto_open = 0

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, {"X-API-Key": self._key, **named})
        response = self.connection.getresponse()
        return response.status, response.read()

    def add(self) -> list[int]:
        """The sum of two tensors, by the model `simple`."""
        status, text = self.ask("POST", INFER, json.dumps({"inputs": PAIR}))
        assert status == 200, text
        data: list[int] = json.loads(text)["outputs"][0]["data"]
        return data


@pytest.fixture
def caller(server: Server, context: ssl.SSLContext, keys: Keys) -> Iterator[Caller]:
    with Caller(server, context, keys.everything) as opened:
        yield opened


def echo(data: np.ndarray[Any, Any]) -> tuple[bytes, dict[str, str]]:
    """The body of a request with a binary tensor, and its headers."""
    described = {
        "name": "IN",
        "datatype": "FP32",
        "shape": [data.size],
        "parameters": {"binary_data_size": data.nbytes},
    }
    wanted = {"name": "OUT", "parameters": {"binary_data": True}}
    text = json.dumps({"inputs": [described], "outputs": [wanted]}).encode()
    return text + data.tobytes(), {"Inference_Header_Content_Length": str(len(text))}


# --- real clients ---


def test_tritonclient(server: Server, files: Certificates, keys: Keys) -> None:
    options = {"ca_certs": str(files.root), "certfile": str(files.client_cert), "keyfile": str(files.client_key)}
    headers = {"X-API-Key": keys.everything}
    with client.InferenceServerClient(server.url, ssl=True, ssl_options=options, network_timeout=DEADLINE_S) as triton:
        inputs = [client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for each in inputs:
            each.set_data_from_numpy(np.arange(16, dtype=np.int32)[None])
        for compression in (None, "gzip"):  # by the lane, by the road
            result: Any = triton.infer("simple", inputs, headers=headers, request_compression_algorithm=compression)
            assert result.as_numpy("OUTPUT0").tolist() == [SUM]
        triton.unload_model("simple", headers=headers)
        wait_until(lambda: not triton.is_model_ready("simple", headers=headers))
        triton.load_model("simple", headers=headers)
        assert triton.is_model_ready("simple", headers=headers)


def test_requests(server: Server, files: Certificates, keys: Keys) -> None:
    with requests.Session() as session:
        session.verify, session.cert = str(files.root), (str(files.client_cert), str(files.client_key))
        session.headers["X-API-Key"] = keys.everything
        session.trust_env = False
        url = f"https://{server.url}"
        for _ in range(3):
            found = session.post(url + INFER, json={"inputs": PAIR}, timeout=DEADLINE_S)
            assert found.json()["outputs"][0]["data"] == SUM
            assert {"name": "simple", "version": "1", "state": "READY"} in session.post(url + INDEX).json()
        parts = (json.dumps({"inputs": PAIR}).encode()[i : i + 7] for i in range(0, 1000, 7))
        assert session.post(url + INFER, data=parts, timeout=DEADLINE_S).json()["outputs"][0]["data"] == SUM


def test_curl(server: Server, files: Certificates, keys: Keys) -> None:
    if shutil.which("curl") is None:
        pytest.skip("NOT CHECKED: curl over TLS, since it is not installed")
    command: list[str | Path] = [
        "curl", "-sS", "--noproxy", "*", "--max-time", str(DEADLINE_S), "--cacert", files.root, "--cert",
        files.client_cert, "--key", files.client_key, "-H", f"X-API-Key: {keys.everything}",
    ]  # fmt: skip
    urls = [f"https://{server.url}{path}" for path in ("/v2", "/v2/trace/setting", "/v2/models/simple")]
    answered = subprocess.run(
        [*command, "-w", "\n%{ssl_verify_result} %{num_connects}\n", *urls], capture_output=True, check=False
    )
    lines = answered.stdout.decode().splitlines()
    assert lines[1::2] == ["0 1", "0 0", "0 0"], (lines, answered.stderr)
    assert json.loads(lines[4])["name"] == "simple"


def metrics(server: Server, context: ssl.SSLContext, keys: Keys) -> bytes:
    with Caller(server, context, keys.everything, server.metrics_port) as scraper:
        return scraper.ask("GET", "/metrics")[1]


def test_metrics(server: Server, context: ssl.SSLContext, keys: Keys) -> None:
    with Caller(server, context, keys.everything, server.metrics_port) as scraper:
        for _ in range(2):
            status, text = scraper.ask("GET", "/metrics")
            assert status == 200
            assert b'nv_inference_count{model="simple",version="1"}' in text


def test_verbs_of_the_command_line(
    server: Server, files: Certificates, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["models", f"--url=https://{server.url}", f"--header=X-API-Key: {keys.everything}"]
    shown = [f"--cert={files.client_cert}", f"--key={files.client_key}"]
    for trusted in (f"--ca={files.root}", "--insecure"):
        assert main([*command, *shown, trusted]) == 0
        assert "simple" in capsys.readouterr().out
    assert main([*command, *shown]) == 3
    assert "--ca <file> names one" in capsys.readouterr().err
    assert main([*command, "--cert=a"]) == 1
    assert "--cert and --key come together" in capsys.readouterr().err


# --- one connection, the lane's and the road's requests ---


def test_a_connection_comes_back_from_the_road(caller: Caller) -> None:
    for _ in range(5):
        assert caller.add() == SUM
        assert caller.ask("POST", INDEX)[0] == 200
        assert caller.ask("POST", INFER, iter([b"[]"]))[0] >= 400  # chunked
        assert caller.ask("GET", "/v2")[0] == 200


def test_requests_that_follow_at_once_are_all_answered_in_their_order(
    server: Server, context: ssl.SSLContext, keys: Keys
) -> None:
    key = f"X-API-Key: {keys.everything}\r\nHost: a\r\n"
    asked = [f"POST {INDEX} HTTP/1.1\r\n{key}Content-Length: 0\r\n\r\n", f"GET /v2 HTTP/1.1\r\n{key}\r\n"] * 8
    asked.append(f"GET /v2 HTTP/1.1\r\n{key}Connection: close\r\n\r\n")
    with opened(server, context) as sock:
        sock.sendall("".join(asked).encode())
        found = b"".join(iter(lambda: sock.recv(65536), b""))
    answers = found.split(b"HTTP/1.1 ")[1:]
    assert [each[:3] for each in answers] == [b"200"] * 17
    assert [b'"state":"READY"' in each for each in answers] == [True, False] * 8 + [False]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["lane", "road"])
def test_large_bodies_both_ways(caller: Caller, *, is_chunked: bool) -> None:
    body, headers = echo(LARGE)
    for _ in range(2):
        pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
        status, answer = caller.ask("POST", "/v2/models/echo/infer", pieces if is_chunked else body, **headers)
        assert status == 200, answer[:200]
        assert answer.endswith(LARGE.tobytes())


def test_a_stream(caller: Caller) -> None:
    asked = {"IN": list(range(200)), "DELAY": [0] * 200, "WAIT": 0}
    for _ in range(2):
        status, text = caller.ask("POST", "/v2/models/repeat/generate_stream", json.dumps(asked))
        assert status == 200, text
        events = [json.loads(each.removeprefix(b"data: ")) for each in text.split(b"\n\n") if each]
        assert [each["OUT"] for each in events] == list(range(200))


# --- who is let in ---


def test_keys_are_as_in_the_clear(server: Server, context: ssl.SSLContext, keys: Keys) -> None:
    with Caller(server, context, keys.infer) as caller:
        assert caller.add() == SUM
        assert caller.ask("GET", "/v2/models/echo")[0] == 403
        assert caller.ask("POST", "/v2/repository/models/simple/load")[0] == 403
    for path in (INFER, INDEX):
        with Caller(server, context, "wrong") as caller:
            assert caller.ask("POST", path, "{}")[0] == 401


def test_the_port_of_openai_s_clients_has_the_same_tls(server: Server, context: ssl.SSLContext, keys: Keys) -> None:
    port = server.port_of("OpenAI HTTPService")
    with Caller(server, context, keys.everything, port) as caller:
        status, body = caller.ask("GET", "/v1/models")
        assert (status, json.loads(body)["object"]) == (200, "list")
        assert caller.ask("POST", "/v1/embeddings", b"{}")[0] == 400  # from the road, over the same connection
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    plain.request("GET", "/v1/models")
    assert plain.getresponse().status == 400
    plain.close()


def test_certificates_that_are_not_let_in(
    server: Server, context: ssl.SSLContext, files: Certificates, keys: Keys, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path)
    start = len(server.log)
    for shows in (None, others):
        sock = opened(server, context_of(files, shows))  # TLS 1.3: the client's part is over before the server's
        with sock, pytest.raises(ssl.SSLError, match="alert"):
            sock.recv(1)
    assert server.read_log(b"TLS handshakes of HTTP's clients that failed: ", start=start)
    failed = re.search(rb'shoal_tls_handshakes_failed_total\{protocol="http"\} (\d+)', metrics(server, context, keys))
    assert failed
    assert int(failed[1]) >= 1


def test_old_versions_are_refused(server: Server, context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        opened(server, context)


def test_clients_without_tls(server: Server, caller: Caller) -> None:
    """Those that stall in their handshakes hold up no other."""
    address = ("127.0.0.1", server.http_port)
    stalled = [socket.create_connection(address, DEADLINE_S) for _ in range(200)]
    for number, each in enumerate(stalled):
        each.sendall(b"\x16\x03\x01\x02\x00"[: number % 6])
    plain = http.client.HTTPConnection(*address, timeout=DEADLINE_S)
    plain.request("GET", "/v2")
    refusal = plain.getresponse()
    assert (refusal.status, b"https://" in refusal.read()) == (400, True)
    plain.close()
    for garbage in (bytes(1000), os.urandom(100_000)):
        with socket.create_connection(address, DEADLINE_S) as sock, suppress(ConnectionError):
            sock.sendall(garbage)
            while sock.recv(65536):
                pass
    assert caller.add() == SUM
    for each in stalled:
        each.close()


# --- clients that break off, or take their time ---


def opened(server: Server, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", server.http_port), DEADLINE_S)
    try:
        return context.wrap_socket(sock, server_hostname="127.0.0.1")
    except OSError:
        sock.close()
        raise


def head(keys: Keys, path: str, nbytes: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"X-API-Key: {keys.everything}", f"Content-Length: {nbytes}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("way", ["lane", "road"])
def test_a_client_that_reads_late_gets_all_and_holds_up_no_other(
    server: Server, context: ssl.SSLContext, keys: Keys, caller: Caller, way: str
) -> None:
    body, headers = echo(LARGE)
    length = f"Inference-Header-Content-Length: {headers['Inference_Header_Content_Length']}"
    more = [length, *["Expect: 100-continue"] * (way == "road")]
    with opened(server, context) as sock:
        sock.sendall(head(keys, "/v2/models/echo/infer", len(body), *more) + body)
        for _ in range(5):
            assert caller.add() == SUM
            assert caller.ask("POST", INDEX)[0] == 200
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert response.status == 200
        assert response.read().endswith(LARGE.tobytes())


@pytest.mark.parametrize("path", [INFER, INDEX])
def test_a_client_that_has_said_all_gets_its_answer(
    server: Server, context: ssl.SSLContext, keys: Keys, path: str
) -> None:
    """It ends its half of the connection, in TLS's words and in TCP's."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    body = json.dumps({"inputs": PAIR}).encode() if path == INFER else b""
    with socket.create_connection(("127.0.0.1", server.http_port), DEADLINE_S) as sock:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        tls.write(head(keys, path, len(body)) + body)
        with suppress(ssl.SSLWantReadError):
            tls.unwrap()
        sock.sendall(outgoing.read())
        sock.shutdown(socket.SHUT_WR)
        while data := sock.recv(65536):
            incoming.write(data)
    incoming.write_eof()
    received = b""
    with suppress(ssl.SSLZeroReturnError):
        while data := tls.read(65536):
            received += data
    assert b"200 OK" in received  # behind the interim response by which the server asks whether the client is there


@pytest.mark.parametrize("more", [[], ["Expect: 100-continue"]], ids=["lane", "road"])
def test_clients_that_reset_their_connections(
    server: Server, context: ssl.SSLContext, keys: Keys, caller: Caller, more: list[str]
) -> None:
    body, headers = echo(LARGE)
    length = f"Inference-Header-Content-Length: {headers['Inference_Header_Content_Length']}"
    for share in (0.0, 0.5, 1.0):
        with opened(server, context) as sock:
            sent = head(keys, "/v2/models/echo/infer", len(body), length, *more) + body[: int(len(body) * share)]
            sock.sendall(sent)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert caller.add() == SUM
    assert caller.ask("POST", INDEX)[0] == 200


# --- certificates are renewed ---


def serial(server: Server, context: ssl.SSLContext) -> str:
    with opened(server, context) as sock:
        found: Any = sock.getpeercert()
        return str(found["serialNumber"])


def test_certificates_are_renewed_while_clients_ask(
    server: Server, context: ssl.SSLContext, keys: Keys, files: Certificates, renewed: Certificates
) -> None:
    before = serial(server, context)
    stop, failures, asked = threading.Event(), [], count()

    def ask() -> None:
        try:
            with Caller(server, context, keys.everything) as kept:
                while not stop.wait(LOOK_AGAIN_S):
                    assert kept.add() == SUM
                    with Caller(server, context, keys.everything) as new:
                        assert new.add() == SUM
                        assert new.ask("POST", INDEX)[0] == 200
                    next(asked)
        except Exception as error:  # noqa: BLE001  shown below
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for each in threads:
        each.start()
    # Half of it first, which changes nothing.
    files.server_cert.write_bytes(renewed.server_cert.read_bytes())
    assert server.read_log(b"The certificates that were read before stay in force")
    assert serial(server, context) == before
    files.server_key.write_bytes(renewed.server_key.read_bytes())
    assert server.read_log(b"certificates for HTTP are read again")
    wait_until(lambda: serial(server, context) != before)
    num_asked = next(asked)
    wait_until(lambda: next(asked) > num_asked + 10 or bool(failures))
    stop.set()
    for each in threads:
        each.join(DEADLINE_S)
    assert not failures
    # A lane that starts later has them, too.
    now = serial(server, context)
    (lane,) = [pid for pid in descendants(server.process.pid) if title(pid) == "shoal http"]
    os.kill(lane, signal.SIGKILL)

    def is_answered() -> bool:
        try:
            return serial(server, context) == now
        except OSError:
            return False

    wait_until(is_answered)

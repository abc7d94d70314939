"""What an operator sets, on a real server: the log, its file and its settings, restricted APIs, forwarded headers."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http as triton

from tests.end_to_end.asking import fetch
from tests.end_to_end.raw_client import Client, post
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, descendants, launch, only, serving_to_the_end, title

PYTHON_MODELS = Path(__file__).parents[1] / "models" / "python"
KEY = {"Admin-Key": "secret"}
RESTRICTED = b'{"error":"This API is restricted, expecting header \'Admin-Key\'"}'
FLAGS = (
    "--http-restricted-api=logging,model-config:Admin-Key=secret",
    "--http-restricted-api=statistics:Other=x",
    # Its end is a pattern of Triton's own tests.
    "--http-header-forward-pattern=^x-|^priority$|(?-i)MY_HEADER_.*|HTTP_Header|(?i)any_.*",
    "--grpc-header-forward-pattern=(?-i)^my_|^(?i)OTHER",
    "--grpc-port=0",
)
DEFAULTS = {
    "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
    "log_format": "default",
}  # fmt: skip
SIMPLE = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":["a"]}]}'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_to_the_end(
        [SAMPLES, PYTHON_MODELS], *only("simple", "simple_identity", "parameters"), *FLAGS
    ) as running:
        yield running
    assert b"Traceback" not in running.log, running.log.decode()


def ask(
    server: Server, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """On a connection of its own, so that any lane may answer."""
    reply = fetch(server.http_port, path, body, method, headers)
    return reply.status, reply.body


# --- the log ---


def change(server: Server, **changes: Any) -> Any:
    status, body = ask(server, "POST", "/v2/logging", json.dumps(changes).encode(), KEY)
    assert status == 200, body
    return json.loads(body)


def test_a_change_is_read_back_at_once_from_every_process(server: Server) -> None:
    for level in range(1, 9):
        assert change(server, log_verbose_level=level) == DEFAULTS | {"log_verbose_level": level}
        for _ in range(4):
            told = json.loads(ask(server, "GET", "/v2/logging", headers=KEY)[1])
            assert told == DEFAULTS | {"log_verbose_level": level}
    assert change(server, log_verbose_level=0) == DEFAULTS


def worker(server: Server, model: str) -> int:
    return next(pid for pid in descendants(server.process.pid) if title(pid).startswith(f"shoal worker {model}"))


def test_running_and_new_processes_obey(server: Server) -> None:
    start = len(server.log)
    try:
        change(server, log_format="ISO8601", log_error=False)
        killed = worker(server, "simple_identity")
        os.kill(killed, signal.SIGKILL)
        # The new worker's own line; the supervisor's error about the death is not printed.
        assert server.read_log(b'"worker simple_identity_0_0 (', start=start)
        assert server.read_log(b"\n", start=server.log.index(b'"worker simple_identity_0_0 (', start))
    finally:
        change(server, log_format="default", log_error=True)
    lines = server.log[start:].decode().splitlines()
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ worker\.py:\d+\] \"worker simple_identity_0_0 .*"
    assert any(re.fullmatch(pattern, line) for line in lines), lines
    assert not any(re.search(rf"\b{killed}\b", line) for line in lines), lines


def test_what_the_batcher_s_successor_is_told(server: Server) -> None:
    start = len(server.log)
    change(server, log_format="ISO8601")
    batcher = next(pid for pid in descendants(server.process.pid) if title(pid) == "shoal batcher")
    os.kill(batcher, signal.SIGKILL)
    assert server.read_log(b"another takes its place", start=start)
    assert json.loads(ask(server, "GET", "/v2/logging", headers=KEY)[1])["log_format"] == "ISO8601"
    # The successor acknowledges changes as its predecessor did.
    assert change(server, log_format="default") == DEFAULTS
    assert ask(server, "POST", "/v2/models/simple_identity/infer", SIMPLE)[0] == 200


def test_triton_s_own_client(server: Server) -> None:
    client = triton.InferenceServerClient(server.url)
    assert client.update_log_settings({"log_verbose_level": 1, "log_warning": False}, headers=KEY) == DEFAULTS | {
        "log_verbose_level": 1, "log_warning": False,
    }  # fmt: skip
    assert client.get_log_settings(headers=KEY)["log_verbose_level"] == 1
    assert client.update_log_settings({"log_verbose_level": 0, "log_warning": True}, headers=KEY) == DEFAULTS
    with pytest.raises(triton.InferenceServerException, match="log file location can not be updated"):
        client.update_log_settings({"log_file": "x"}, headers=KEY)
    client.close()


def test_everything_goes_to_the_log_file(tmp_path: Path) -> None:
    """The server tells when it is ready as it tells systemd, since its stdout is silent."""
    path = tmp_path / "shoal.log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = f"shoal-{token_hex(8)}"
        manager.bind("\0" + address)
        manager.settimeout(DEADLINE_S)
        server = launch(SAMPLES, *only("digits"), f"--log-file={path}", environment={"NOTIFY_SOCKET": f"@{address}"})
        try:
            while b"READY=1" not in manager.recv(4096).split(b"\n"):
                """It says how far it is."""
            before = path.read_text()
            started = re.search(r"Started HTTPService at [^ ]*:([0-9]+)", before)
            assert started is not None
            server.http_port = int(started[1])
            told = json.loads(ask(server, "GET", "/v2/debug/log?lines=1000")[1])
            assert "\n".join(told["lines"]) in path.read_text()
            assert any("Started HTTPService at " in line for line in told["lines"])
            assert ask(server, "GET", "/v2/debug/log", headers={"X-Forwarded-For": "192.0.2.1"})[0] == 403
            os.truncate(path, 0)  # logrotate's copytruncate
            assert json.loads(ask(server, "GET", "/v2/logging")[1]) == DEFAULTS | {"log_file": str(path)}
        finally:
            server.process.terminate()
            code = server.wait()
    assert (code, server.log) == (0, b"")
    assert path.stat().st_mode & 0o137 == 0
    # Lines of the supervisor and of workers, before and, without a hole, after.
    assert re.search(r'worker\.py:\d+\] "worker digits_0_0 ', before)
    assert re.search(r"\| digits +\| 1 +\| READY +\|", before)
    after = path.read_text()
    assert after.startswith("Signal (15) received.\n")
    assert "All models are stopped, unloading models" in after


def test_a_log_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "none" / "shoal.log"
    server = launch(SAMPLES, f"--log-file={path}")
    assert server.wait() == 1
    assert (
        f"cannot write the log to '{path}': No such file or directory. Give another --log-file" in server.log.decode()
    )


# --- restricted APIs ---


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v2/logging", {}, 403),
        ("/v2/logging", {"Admin-Key": "Secret"}, 403),
        ("/v2/logging", {"Other": "x"}, 403),
        ("/v2/logging", {"aDMIN-kEY": "secret"}, 200),
        ("/v2/models/simple/config", {}, 403),
        ("/v2/models/simple/config", KEY, 200),
        ("/v2/models/nobody/config", {}, 403),
        ("/v2/models/nobody/config", KEY, 404),
        ("/v2/models/simple", {}, 200),
        ("/v2/health/live", {}, 200),
    ],
    ids=str,
)
@pytest.mark.parametrize("on_the_road", [False, True], ids=["lane", "road"])
def test_restrictions(server: Server, path: str, headers: dict[str, str], status: int, on_the_road: bool) -> None:
    fields = b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in headers.items())
    request = b"GET %s HTTP/1.1\r\nHost: x\r\n%s%s\r\n" % (path.encode(), fields, b"TE: trailers\r\n" * on_the_road)
    with Client(server) as client:
        for _ in range(3):
            reply = client.ask(request)
            assert (reply.status, reply.took_the_road) == (status, on_the_road or status == 403)
            assert (reply.body == RESTRICTED) == (status == 403)


def test_a_restriction_comes_before_the_method_and_the_body(server: Server) -> None:
    for method in ("PUT", "POST", "DELETE"):
        assert ask(server, method, "/v2/models/simple/config") == (403, RESTRICTED)
        assert ask(server, method, "/v2/models/simple/config", headers=KEY)[0] == 405
    assert ask(server, "POST", "/v2/logging", b'{"log_info":false}') == (403, RESTRICTED)
    assert json.loads(ask(server, "GET", "/v2/logging", headers=KEY)[1]) == DEFAULTS


def test_metrics_are_not_restricted(server: Server) -> None:
    assert ask(server, "GET", "/v2/models/stats")[0] == 403
    server_of_metrics = Server(server.process, http_port=server.metrics_port)
    status, body = ask(server_of_metrics, "GET", "/metrics")
    assert (status, b"nv_inference_request_success" in body) == (200, True)


# --- forwarded headers ---


def test_forwarded_headers(server: Server) -> None:
    """No backend repeats parameters, so it is the reserved one that shows what is forwarded, and how it is spelled."""
    refused = b'{"error":"Header \'priority\' is reserved for Triton usage and cannot be forwarded."}'
    with Client(server) as client:
        for field, status in [(b"X-A: 1", 200), (b"priority: 1", 400), (b"Priority: 1", 200), (b"timeout: 1", 200)] * 2:
            for detour in ([], [b"TE: trailers"], [b"Expect: 100-continue"]):
                reply = client.ask(post("simple_identity", SIMPLE, field, *detour))
                assert (reply.status, reply.took_the_road) == (status, bool(detour)), (field, detour)
                assert (reply.body == refused) == (status == 400)
            flat = post("simple_identity", b'{"INPUT0":"a"}', field).replace(b"/infer ", b"/generate ")
            assert client.ask(flat).status == status


def test_case_matters_over_http_where_the_pattern_says_so(server: Server) -> None:
    tensor = triton.InferInput("IN", [1], "INT32").set_data_from_numpy(np.zeros(1, np.int32))
    headers = {"MY_HEADER_1": "1", "my_header_2": "2", "HTTP_Header": "3", "http_headers": "4", "Any_case": "5"}
    with triton.InferenceServerClient(server.url) as client:
        parameters = client.infer("parameters", [tensor], headers=headers).get_response()["parameters"]
    forwarded = {name: parameters[name] for name in headers if name in parameters}
    assert forwarded == {"MY_HEADER_1": "1", "HTTP_Header": "3", "Any_case": "5"}


def test_flags_of_a_pattern_are_read_over_grpc(server: Server) -> None:
    tensor = tritonclient.grpc.InferInput("IN", [1], "INT32").set_data_from_numpy(np.zeros(1, np.int32))
    headers = {"my_a": "1", "other": "2", "no_my_b": "3"}
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        result = client.infer("parameters", [tensor], headers=headers)
    assert result is not None
    parameters = result.get_response().parameters
    forwarded = {name: parameters[name].string_param for name in headers if name in parameters}
    assert forwarded == {"my_a": "1", "other": "2"}


def test_a_head_that_comes_in_pieces_to_the_road(server: Server) -> None:
    sent = post("simple_identity", SIMPLE, b"TE: trailers", b"X-Long: " + b"x" * 8000, b"priority: 1")
    with Client(server) as client, Client(server) as other:
        for start in range(0, len(sent), 3000):
            client.send(sent[start : start + 3000])
            assert other.ask(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n").status == 200
        assert client.reply().status == 400

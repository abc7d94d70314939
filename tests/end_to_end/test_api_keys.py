"""API keys on a real server, by real clients: what opens which door, over HTTP, gRPC, metrics and TorchServe's port."""

import http.client
import json
import os
import queue
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.end_to_end.command_line import run_here
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, only, serving_to_the_end, wait_until

SIMPLE, OTHER = "/v2/models/simple", "/v2/models/simple_int8"
BODY = {
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for name in ("INPUT0", "INPUT1")
    ]
}


class Keys:
    """A file of keys, and the texts of the keys in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self.limited: dict[str, str] = {}

    def make(self, name: str, *arguments: str) -> str:
        """A key, made as an operator makes one."""
        made = run_here("key", name, f"--file={self.path}", *arguments)
        assert made.returncode == 0, made.stderr
        self.texts[name] = made.stdout.strip()
        return self.texts[name]

    def read(self) -> dict[str, Any]:
        """The entries of the file."""
        entries: dict[str, Any] = json.loads(self.path.read_bytes())
        return entries

    def write(self, entries: object) -> None:
        """Replace the file, as a mounted secret is."""
        part = self.path.with_suffix(".part")
        part.write_text(entries if isinstance(entries, str) else json.dumps(entries))
        part.replace(self.path)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    made = Keys(tmp_path_factory.mktemp("keys") / "keys.json")
    made.make("shop", "--model=simple")
    made.make("all")
    made.make("deploy", "--scope=admin")
    made.make("deploy-simple", "--scope=admin", "--model=simple")
    made.make("prometheus", "--scope=metrics")
    trial = ("--rate=0.001", "--burst=3")
    for name, limits in (("trial", trial), ("streaming", trial), ("narrow", ("--max-in-flight=1",))):
        made.limited[name] = made.make(name, *limits)
        del made.texts[name]
    return made


@pytest.fixture(scope="module")
def server(keys: Keys) -> Iterator[Server]:
    flags = [
        "--allow-torchserve",
        "--allow-torchserve-grpc=false",
        *(f"--torchserve-{api}-port=0" for api in ("inference", "management", "metrics")),
    ]
    flags += ["--grpc-port=0", f"--api-keys={keys.path}", *only("simple", "simple_int8")]
    with serving_to_the_end(SAMPLES, *flags) as serving:
        yield serving
        serving.read_on()
        for text in (*keys.texts.values(), *keys.limited.values()):
            assert text.encode() not in serving.log, "a key is in the log"


def ask(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """One request on a connection of its own: the status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), dict(headers or {}))
        response = connection.getresponse()
        text = response.read()
        if response.status == 401:
            assert response.headers["WWW-Authenticate"] == "Bearer"
        return response.status, text
    finally:
        connection.close()


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def statuses(server: Server, method: str, path: str, keys: Keys, body: object = None) -> dict[str, int]:
    """The status that each key gets, and none at all ("")."""
    found = {"": ask(server.http_port, method, path, body)[0]}
    for name, text in keys.texts.items():
        found[name] = ask(server.http_port, method, path, body, bearer(text))[0]
        assert ask(server.http_port, method, path, body, {"x-api-KEY": text})[0] == found[name]
    return found


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/v2/health/live", None, (200, 200, 200, 200, 200, 200)),
        ("GET", f"{SIMPLE}/ready", None, (200, 200, 200, 200, 200, 200)),
        ("GET", "/v2", None, (401, 200, 200, 200, 200, 200)),
        ("GET", SIMPLE, None, (401, 200, 200, 200, 200, 403)),
        ("GET", OTHER, None, (401, 403, 200, 200, 403, 403)),
        ("POST", f"{SIMPLE}/infer", BODY, (401, 200, 200, 403, 403, 403)),
        ("POST", f"{OTHER}/infer", {}, (401, 403, 500, 403, 403, 403)),
        ("GET", "/v2/models/stats", None, (401, 403, 200, 200, 403, 403)),
        ("POST", "/v2/repository/index", {}, (401, 403, 200, 200, 403, 403)),
        ("GET", "/v2/logging", None, (401, 403, 200, 200, 403, 403)),
        ("POST", "/v2/logging", {"log_verbose_level": 0}, (401, 403, 403, 200, 403, 403)),
        ("POST", "/v2/repository/models/none/load", {}, (401, 403, 403, 500, 403, 403)),
        ("PUT", "/models/simple?min_worker=3&max_worker=2", None, (401, 403, 403, 400, 400, 403)),
        ("POST", "/v2/systemsharedmemory/unregister", {}, (401, 403, 403, 501, 403, 403)),
        ("GET", "/v2/none", None, (404, 404, 404, 404, 404, 404)),
    ],
)
def test_http(server: Server, keys: Keys, method: str, path: str, body: object, expected: tuple[int, ...]) -> None:
    names = ("", "shop", "all", "deploy", "deploy-simple", "prometheus")
    assert statuses(server, method, path, keys, body) == dict(zip(names, expected, strict=True))


def test_metrics_and_torchserves_ports(server: Server, keys: Keys) -> None:
    shop, all_, deploy, prometheus = (bearer(keys.texts[each]) for each in ("shop", "all", "deploy", "prometheus"))
    assert ask(server.metrics_port, "GET", "/metrics")[0] == 401
    assert ask(server.metrics_port, "GET", "/metrics", headers=deploy)[0] == 403
    assert b"nv_inference" in ask(server.metrics_port, "GET", "/metrics", headers=prometheus)[1]
    port = server.port_of("TorchServe Inference")
    management, metrics = server.port_of("TorchServe Management"), server.port_of("TorchServe Metrics")
    assert ask(port, "GET", "/ping")[0] == 200
    assert ask(port, "POST", "/predictions/simple", {})[0] == 401
    assert ask(port, "POST", "/predictions/simple_int8", {}, shop)[0] == 403
    assert ask(port, "POST", "/predictions/simple", {}, shop)[0] not in (401, 403)
    # The model stands in a form, which is not read before the key is: only a key for all models will do.
    assert ask(port, "POST", "/invocations", {}, shop)[0] == 403
    assert ask(port, "POST", "/invocations", {}, all_)[0] not in (401, 403)
    assert ask(management, "GET", "/models")[0] == 401
    assert ask(management, "GET", "/models", headers=deploy)[0] == 200
    assert ask(management, "DELETE", "/models/simple", headers=all_)[0] == 403
    assert ask(metrics, "GET", "/metrics", headers=all_)[0] == 403
    assert ask(metrics, "GET", "/metrics", headers=prometheus)[0] == 200


def test_grpc(server: Server, keys: Keys) -> None:
    inputs = []
    for name in ("INPUT0", "INPUT1"):
        inputs.append(triton_grpc.InferInput(name, [1, 16], "INT32"))
        inputs[-1].set_data_from_numpy(np.arange(16, dtype=np.int32).reshape(1, 16))

    def code(call: Any, *arguments: Any, key: str = "", **more: Any) -> str:
        headers = {"authorization": f"Bearer {keys.texts[key]}"} if key else None
        try:
            call(*arguments, headers=headers, **more)
        except InferenceServerException as error:
            return str(error.status()).removeprefix("StatusCode.")
        return "OK"

    no, denied = "UNAUTHENTICATED", "PERMISSION_DENIED"
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert client.is_server_live()
        assert client.is_model_ready("simple")
        assert code(client.get_server_metadata) == no
        assert code(client.get_server_metadata, key="prometheus") == "OK"
        # The model is in the message: known calls, and those of another key with the same bytes, are told apart.
        for _ in range(4):
            assert code(client.infer, "simple", inputs, key="shop") == "OK"
            assert code(client.infer, "simple", inputs, key="all") == "OK"
            assert code(client.infer, "simple", inputs) == no
            assert code(client.infer, "simple", inputs, key="deploy") == denied
            assert code(client.infer, "simple_int8", inputs, key="shop") == denied
            assert code(client.infer, "none_such", inputs, key="shop") == denied
        assert code(client.get_model_metadata, "simple", key="shop") == "OK"
        assert code(client.get_model_config, "simple_int8", key="shop") == denied
        assert code(client.get_inference_statistics, "", key="shop") == denied
        assert code(client.get_inference_statistics, key="all") == "OK"
        assert code(client.get_log_settings, key="all") == "OK"
        assert code(client.update_log_settings, {"log_info": True}, key="all") == denied
        assert code(client.update_log_settings, {"log_info": True}, key="deploy") == "OK"
        assert code(client.load_model, "none", key="shop") == denied
        assert code(client.load_model, "none", key="deploy-simple") == denied
        assert code(client.load_model, "none", key="deploy") not in ("OK", no, denied)
        assert code(client.unregister_cuda_shared_memory, key="all") == denied
        assert code(client.unregister_cuda_shared_memory, key="deploy") == "UNIMPLEMENTED"


def test_a_message_that_names_two_models_is_for_the_last(server: Server, keys: Keys) -> None:
    """Of a field that comes twice the last counts: the check must see the name that is asked."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        metadata = [("x-api-key", keys.texts["shop"])]
        for names, expected in (
            ((b"simple", b"simple_int8"), grpc.StatusCode.PERMISSION_DENIED),
            ((b"simple_int8", b"simple"), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call(b"".join(field(1, name) for name in names), metadata=metadata, timeout=DEADLINE_S)
            assert refused.value.code() is expected


def raw(server: Server, *lines: str) -> int:
    """The status of a request with exactly these fields."""
    with socket.create_connection(("127.0.0.1", server.http_port), DEADLINE_S) as connection:
        head = "\r\n".join(["GET /v2 HTTP/1.1", "Host: h", *lines, "", ""])
        connection.sendall(head.encode("latin-1"))
        return int(connection.recv(4096).split()[1])


def test_forged_heads(server: Server, keys: Keys) -> None:
    key, other = keys.texts["all"], keys.texts["deploy"]
    assert raw(server, f"Authorization: Bearer {key}") == 200
    assert raw(server, f"AUTHORIZATION:   bEARER  {key} ") == 200
    assert raw(server, f"Authorization: Bearer {key}", f"X-API-Key: {key}") == 200
    assert raw(server, "Authorization: Basic dXNlcjpwYXNz", f"X-API-Key: {key}") == 200
    for lines in (
        [f"Authorization: Bearer {key}", f"Authorization: Bearer {other}"],
        [f"Authorization: Bearer {key}", f"Authorization: Bearer {key}"],
        [f"X-API-Key: {key}", f"X-API-Key: {key}"],
        [f"X-API-Key: {key}", f"Authorization: Bearer {other}"],
        [f"X_API_Key: {key}"],
        [f"Authorization: {key}"],
        [f"Authorization: Basic {key}"],
        [f"Authorization: Bearer {key[:-1]}"],
        [f"Authorization: Bearer {key}A"],
        [f"Authorization: Bearer {key.upper()}"],
        ["Authorization: Bearer "],
        ["Authorization: Bearer " + "A" * 7000],
        [f"X: y\tAuthorization: Bearer {key}"],
        [f"Authorization: Bearer {keys.read()['all']['sha256']}"],
    ):
        assert raw(server, *lines) == 401, lines
    for line in (
        f"Authorization: Bearer {key}\0",
        f"Authorization : Bearer {key}",
        f" Authorization: Bearer {key}",
        f"X: y\nAuthorization: Bearer {key}",
    ):
        assert raw(server, line) in (400, 401), line


def test_a_known_request_with_another_key(server: Server, keys: Keys) -> None:
    """Requests are recognised by their bytes: a key's are among them."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    body = json.dumps(BODY)

    def infer(text: str) -> int:
        connection.request("POST", f"{SIMPLE}/infer", body, bearer(text))
        response = connection.getresponse()
        response.read()
        return response.status

    known, wrong = keys.texts["shop"], keys.texts["shop"][:-4] + "AAAA"
    for _ in range(12):
        assert infer(known) == 200
    for text, status in ((wrong, 401), (known, 200), (keys.texts["deploy"], 403), (keys.texts["all"], 200)):
        for _ in range(3):
            assert infer(text) == status
    connection.close()


def test_keys_come_and_go_while_connections_are_open(server: Server, keys: Keys) -> None:
    text = keys.make("passing")
    body = json.dumps(BODY)
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)

    def infer() -> int:
        connection.request("POST", f"{SIMPLE}/infer", body, bearer(text))
        response = connection.getresponse()
        response.read()
        return response.status

    wait_until(lambda: infer() == 200)
    for _ in range(10):  # by now the request is known
        assert infer() == 200
    inputs = [triton_grpc.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(np.zeros([1, 16], np.int32))
    answers: list[object] = []
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        headers = {"x-api-key": text}
        for _ in range(5):
            client.infer("simple", inputs, headers=headers)
        client.start_stream(lambda result, error: answers.append(error), headers=headers)
        client.async_stream_infer("simple", inputs)
        wait_until(lambda: answers == [None])
        entries = keys.read()
        del entries["passing"]
        del keys.texts["passing"]
        # A broken file changes nothing, and the log says so.
        keys.write('{"passing": ')
        assert server.read_log(b"The keys that were read before stay in force")
        assert infer() == 200
        keys.write(entries)
        wait_until(lambda: infer() == 401)

        def refusal() -> str:
            try:
                client.infer("simple", inputs, headers=headers)
            except InferenceServerException as error:
                return str(error)
            return ""

        wait_until(lambda: "not known" in refusal())  # by the lane of gRPC, which is another process
        wait_until(lambda: len(answers) == 2)
        assert "not known" in str(answers[1])
        client.stop_stream()
    connection.close()
    assert ask(server.http_port, "GET", "/v2", headers=bearer(keys.texts["all"]))[0] == 200


def test_the_audit_log(server: Server, keys: Keys) -> None:
    start = len(server.log)
    assert ask(server.http_port, "POST", "/v2/logging", {}, bearer(keys.texts["deploy"]))[0] == 200
    assert server.read_log(b"admin: POST /v2/logging by key 'deploy' at 127.0.0.1: 200", start=start)
    assert ask(server.http_port, "POST", "/v2/repository/models/m%41/load", {})[0] == 401
    assert server.read_log(b"admin: POST /v2/repository/models/m%41/load by 127.0.0.1 refused: 401", start=start)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.unload_model("none", headers={"x-api-key": keys.texts["deploy"]})
    line = b"admin: RepositoryModelUnload of model 'none' by key 'deploy' at 127.0.0.1: 0"
    assert server.read_log(line, start=start)


def test_clients(server: Server, keys: Keys) -> None:
    """tritonclient over HTTP, and the command line, with a key."""
    inputs = [triton_http.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(np.ones([1, 16], np.int32))
    with triton_http.InferenceServerClient(server.url) as client:
        result = client.infer("simple", inputs, headers=bearer(keys.texts["shop"]))
        assert (result.as_numpy("OUTPUT0") == 2).all()
        with pytest.raises(InferenceServerException):
            client.infer("simple", inputs)
    listed = run_here("models", f"--url=http://{server.url}", f"--header=X-API-Key: {keys.texts['deploy']}")
    assert listed.returncode == 0, listed.stderr
    assert "simple_int8" in listed.stdout


def test_the_socket_of_this_host_needs_no_key(server: Server) -> None:
    """Its file admits the server's own user, who can read the file of keys, too; no verb on it changes the server."""
    from shoal import Client

    assert os.stat(server.client_socket).st_mode & 0o077 == 0
    with Client(server.client_socket) as client:
        given = {name: np.ones([1, 16], np.int32) for name in ("INPUT0", "INPUT1")}
        assert (client.infer("simple", given)["OUTPUT0"] == 2).all()


def grpc_infer(server: Server, text: str) -> int:
    """The number of gRPC's status code that an inference over gRPC ends with."""
    inputs = [
        triton_grpc.InferInput(each, [1, 16], "INT32").set_data_from_numpy(np.zeros((1, 16), np.int32))
        for each in ("INPUT0", "INPUT1")
    ]
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        try:
            client.infer("simple", inputs, headers={"authorization": f"Bearer {text}"}, client_timeout=DEADLINE_S)
        except InferenceServerException as error:
            return int(getattr(grpc.StatusCode, str(error.status()).partition(".")[2]).value[0])
    return 0


def key_figures(server: Server, keys: Keys, name: str) -> dict[str, float]:
    text = ask(server.metrics_port, "GET", "/metrics", headers=bearer(keys.texts["prometheus"]))[1].decode()
    found = re.findall(rf'^shoal_key_(\w+)\{{api_key="{name}"\}} (\S+)$', text, re.MULTILINE)
    return {figure: float(value) for figure, value in found}


def test_a_rate_holds_for_all_protocols_together_and_for_inference_alone(server: Server, keys: Keys) -> None:
    text = keys.limited["trial"]
    assert ask(server.http_port, "POST", f"{SIMPLE}/infer", BODY, bearer(text))[0] == 200
    assert grpc_infer(server, text) == 0
    assert ask(server.http_port, "POST", f"{SIMPLE}/infer", BODY, bearer(text))[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    connection.request("POST", f"{SIMPLE}/infer", json.dumps(BODY), bearer(text))
    response = connection.getresponse()
    assert response.status == 429
    assert 0 < int(response.headers["Retry-After"]) <= 1000
    assert "API key 'trial' may begin 0.001 requests in a second, 3 at once" in json.loads(response.read())["error"]
    connection.close()
    assert grpc_infer(server, text) == 8  # RESOURCE_EXHAUSTED
    assert ask(server.http_port, "GET", SIMPLE, headers=bearer(text))[0] == 200
    assert ask(server.http_port, "POST", f"{SIMPLE}/infer", BODY, bearer(keys.texts["all"]))[0] == 200
    port = server.port_of("TorchServe Inference")
    status, body = ask(port, "POST", "/predictions/simple", {}, bearer(text))
    assert (status, json.loads(body)["type"]) == (429, "ServiceUnavailableException")
    assert key_figures(server, keys, "trial") == {"requests_total": 3, "refused_total": 3, "in_flight": 0}
    assert not key_figures(server, keys, "all")


def streamed(server: Server, text: str, count: int) -> list[str]:
    """What each of so many requests in one stream is answered: "", or the error."""
    inputs = [
        triton_grpc.InferInput(each, [1, 16], "INT32").set_data_from_numpy(np.zeros((1, 16), np.int32))
        for each in ("INPUT0", "INPUT1")
    ]
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    found = []
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(
            lambda result, error: answers.put("" if result else str(error)), headers={"x-api-key": text}
        )
        for _ in range(count):
            client.async_stream_infer("simple", inputs)
            found.append(answers.get(timeout=DEADLINE_S))
        client.stop_stream()
    return found


def test_a_rate_counts_each_request_of_a_stream(server: Server, keys: Keys) -> None:
    """Beside those of other protocols; the stream goes on after a refusal."""
    text = keys.limited["streaming"]
    assert ask(server.http_port, "POST", f"{SIMPLE}/infer", BODY, bearer(text))[0] == 200
    first, second, *refused = streamed(server, text, 5)
    assert (first, second, len(refused)) == ("", "", 3)
    for error in refused:
        assert "API key 'streaming' may begin 0.001 requests in a second, 3 at once. Try again in" in error
    assert grpc_infer(server, text) == 8
    (again,) = streamed(server, text, 1)
    assert "API key 'streaming' may begin" in again
    figures = {"requests_total": 3, "refused_total": 5, "in_flight": 0}
    wait_until(
        lambda: key_figures(server, keys, "streaming") == figures, lambda: key_figures(server, keys, "streaming")
    )


def test_requests_of_a_stream_are_in_flight_until_they_are_answered(server: Server, keys: Keys) -> None:
    text = keys.limited["narrow"]
    before = key_figures(server, keys, "narrow").get("requests_total", 0)
    assert streamed(server, text, 20) == [""] * 20
    figures = {"requests_total": before + 20, "refused_total": 0, "in_flight": 0}
    wait_until(lambda: key_figures(server, keys, "narrow") == figures, lambda: key_figures(server, keys, "narrow"))


def test_requests_in_flight_end_with_their_answers(server: Server, keys: Keys) -> None:
    text = keys.limited["narrow"]
    before = key_figures(server, keys, "narrow").get("requests_total", 0)
    for _ in range(5):
        assert ask(server.http_port, "POST", f"{SIMPLE}/infer", BODY, bearer(text))[0] == 200
        assert ask(server.http_port, "POST", f"{SIMPLE}/infer", {"inputs": []}, bearer(text))[0] == 400
        assert grpc_infer(server, text) == 0
    assert key_figures(server, keys, "narrow") == {"requests_total": before + 15, "refused_total": 0, "in_flight": 0}

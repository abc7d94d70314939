"""frontend/clouds/sagemaker.py: paths, statuses and translation, asked of the handlers straight."""

import json
from typing import Any

import pytest

from shoal.errors import AlreadyExistsError, InternalError, NotFoundError, ShoalError, UnavailableError
from shoal.frontend.access.doors import Scope
from shoal.frontend.clouds.sagemaker import SAGEMAKER
from shoal.frontend.response import Response
from shoal.frontend.router import answer
from shoal.frontend.state import ServerState
from shoal.star.questions import NoAnswerError

MIME = "application/vnd.sagemaker-triton.binary+json;json-header-size="
LOADED = {"simple": "/opt/ml/models/simple/model", "asleep": "/a", "away": "/b"}
DATA = bytes(range(64)) * 2
ROW = {"datatype": "INT32", "shape": [1, 16]}
HEAD = json.dumps({
    "inputs": [{"name": f"INPUT{i}", **ROW, "parameters": {"binary_data_size": 64}} for i in (0, 1)],
    "parameters": {"binary_data_output": True},
}).encode()  # fmt: skip
PLAIN = json.dumps({"inputs": [{"name": f"INPUT{i}", **ROW, "data": [5] * 16} for i in (0, 1)]}).encode()


@pytest.fixture
def ask(state: ServerState, transport: Any) -> Any:
    transport.answers = {"registered": LOADED, "register": None, "unregister": None}
    state.model_control_mode = "explicit"
    state.max_request_bytes = 10000

    def ask(method: str, target: str, body: Any = b"", **headers: str) -> Response:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        lower = {name.replace("_", "-"): value for name, value in headers.items()}
        found = SAGEMAKER.admit(state, method, target, lower)
        return found if isinstance(found, Response) else answer(found, state, transport, lower, memoryview(sent))

    return ask


def sentence(response: Response) -> str:
    text: str = json.loads(b"".join(response.chunks))["error"]
    return text


def test_ping(ask: Any, state: ServerState) -> None:
    assert ask("GET", "/ping") == Response(400)  # `loading` is not ready
    state.sagemaker_ping_mode = "live"
    assert ask("GET", "/ping") == Response(200)
    state.exiting = True
    assert ask("GET", "/ping").status == 503


@pytest.mark.parametrize("path", ["/v2/health/live", "/", "/pings", "/models/a/b", "/models/a/invoke/", "/metrics"])
def test_other_paths(ask: Any, path: str) -> None:
    assert ask("GET", path) == Response(400)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/ping", "GET"), ("GET", "/invocations", "POST"), ("PUT", "/models", "GET, POST"),
        ("POST", "/models/a", "GET, DELETE"), ("GET", "/models/a/invoke", "POST"),
    ],
)  # fmt: skip
def test_other_methods(ask: Any, method: str, path: str, allowed: str) -> None:
    response = ask(method, path)
    assert (response.status, response.headers[-1]) == (405, ("Allow", allowed))


@pytest.mark.parametrize("path", ["/invocations", "/models/simple/invoke"])
def test_inference_as_json(ask: Any, path: str, transport: Any) -> None:
    # Nothing is compressed there, whatever anybody asks for.
    response = ask("POST", path, PLAIN, accept_encoding="gzip", content_encoding="gzip")
    assert (response.status, response.headers) == (200, (("Content-Type", "application/json"),))
    told = json.loads(response.chunks[0])
    assert (told["model_name"], told["outputs"][1]["data"]) == ("simple", [5] * 16)
    assert transport.num_asked == 1


def test_what_is_inferred_is_said_by_the_operator(ask: Any, state: ServerState) -> None:
    body = {"INPUT0": [5] * 16, "INPUT1": [6] * 16}
    state.sagemaker_inference_type = "generate"
    told = json.loads(ask("POST", "/invocations", body).chunks[0])
    assert told["OUTPUT1"] == [6] * 16
    state.sagemaker_inference_type = "generate_stream"
    assert next(ask("POST", "/invocations", body).stream).startswith(b"data: {")


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"{}", {}, "attempt to access non-existing object member 'inputs'"),
        (HEAD + DATA, {"content_type": MIME + "9999"}, "inference header size should be in range"),
        (HEAD + DATA, {"content_type": MIME + "some"}, "Unable to parse Inference-Header-Content-Length"),
        (HEAD + DATA, {"content_type": f"a;{MIME}1"}, "expect MIME type for binary data starts with"),
    ],
)
def test_what_is_wrong_is_400(ask: Any, body: bytes, headers: dict[str, str], words: str) -> None:
    response = ask("POST", "/invocations", body, **headers)
    assert (response.status, words in sentence(response)) == (400, True)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InternalError("CUDA out of memory. Tried to allocate 2 GiB"), 507),
        (InternalError("[ONNXRuntimeError] : Failed to allocate memory for requested buffer"), 507),
        (UnavailableError("the instances of model 'm' have no shared memory left for results"), 507),
        (UnavailableError("no room for it"), 400),
        (NotFoundError("no"), 400),
    ],
)
def test_a_failure_for_want_of_memory_has_its_own_status(
    ask: Any, transport: Any, error: ShoalError, status: int
) -> None:
    transport.error = error
    response = ask("POST", "/invocations", PLAIN)
    assert (response.status, sentence(response)) == (status, str(error))


def test_an_unnamed_default_model_is_refused(ask: Any, state: ServerState) -> None:
    state.sagemaker_default_model = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
    assert ask("POST", "/invocations", PLAIN).status == 400


@pytest.mark.parametrize("model", ["none", "gone", "loading"])
def test_a_model_that_is_not_loaded_is_404(ask: Any, transport: Any, model: str) -> None:
    assert ask("POST", f"/models/{model}/invoke", PLAIN) == Response(404)
    assert (transport.num_asked, transport.asked) == (0, [])


def test_the_models(ask: Any) -> None:
    row = {"modelName": "simple", "modelUrl": LOADED["simple"]}
    for path in ("/models", "/models/", "/models?next_page_token=1"):
        response = ask("GET", path)
        assert (response.status, json.loads(response.chunks[0])) == (200, {"models": [row]})
    assert json.loads(ask("GET", "/models/simple").chunks[0]) == row
    assert ask("GET", "/models/none") == Response(404)


@pytest.mark.parametrize("url", ["/opt/ml/models/H/model", "/opt//ml/../ml/models/H/./model/"])
def test_loading(ask: Any, transport: Any, url: str) -> None:
    assert ask("POST", "/models", {"model_name": "H", "url": url}).status == 200
    assert transport.asked == [("register", {"model": "H", "repository": "/opt/ml/models/H/model"})]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "The document is empty"),
        ({"url": "/a"}, "model_name"),
        ({"model_name": "H"}, "url"),
        ({"model_name": 1, "url": "/a"}, "non-string"),
        ({"model_name": "", "url": "/a"}, "invalid model name ''"),
        ({"model_name": "../H", "url": "/a"}, "invalid model name '../H'"),
        ({"model_name": "H", "url": "models"}, "absolute path"),
        ({"model_name": "H", "url": "s3://bucket/a"}, "absolute path"),
        ({"model_name": "H", "url": "/a\0b"}, "absolute path"),
        ({"model_name": "H", "url": "/a\x7f"}, "absolute path"),
        *(
            ({"model_name": "H", "url": url}, '"url" property value cannot start with /dev/, /proc/, or /sys/.')
            for url in ("/dev", "/proc/self/root", "//sys/x", "/opt/../proc/1")
        ),
    ],
)
def test_what_cannot_be_loaded(ask: Any, transport: Any, body: Any, words: str) -> None:
    response = ask("POST", "/models", body)
    assert (response.status, words in sentence(response), transport.asked) == (400, True, [])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AlreadyExistsError("registered"), 409),
        (InternalError("version 1 is at UNAVAILABLE state: Out of memory"), 507),
        (UnavailableError("explicit model load / unload is not allowed"), 400),
    ],
)
def test_what_the_supervisor_refuses(ask: Any, transport: Any, error: ShoalError, status: int) -> None:
    transport.answers["register"] = error
    response = ask("POST", "/models", {"model_name": "H", "url": "/a"})
    assert (response.status, sentence(response)) == (status, str(error))


@pytest.mark.parametrize(
    ("answered", "status"),
    [(None, 200), (NotFoundError("no"), 404), (NoAnswerError("late"), 200), (InternalError("is loading"), 400)],
)
def test_unloading(ask: Any, transport: Any, answered: Any, status: int) -> None:
    transport.answers["unregister"] = answered
    assert ask("DELETE", "/models/H").status == status
    assert transport.asked == [("unregister", {"model": "H"})]


def test_what_is_restricted(ask: Any, state: ServerState) -> None:
    state.restrictions = {"inference": ("Key", "x"), "model-repository": ("Key", "x"), "health": ("Key", "x")}
    for method, path in (
        ("GET", "/ping"), ("POST", "/invocations"), ("GET", "/models"), ("POST", "/models"), ("GET", "/models/simple"),
        ("DELETE", "/models/simple"), ("POST", "/models/simple/invoke"),
    ):  # fmt: skip
        assert ask(method, path).status == 403
        assert ask(method, path, PLAIN, key="x").status != 403


def test_who_loads_and_unloads_changes_what_is_served(state: ServerState) -> None:
    for method, path, changes in (("POST", "/models", True), ("DELETE", "/models/H", True), ("GET", "/models", False)):
        found = SAGEMAKER.admit(state, method, path, {})
        assert not isinstance(found, Response)
        assert (found.scope is Scope.ADMIN) is changes

"""frontend/router.py: every path, method and refusal, asked of the handlers straight and through Flask."""

import gzip
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.frontend.router import ROUTES, Found, decode_name, path_of, resolve
from shoal.frontend.state import ServerState
from shoal.options import RESTRICTED_APIS

JSON = [("Content-Type", "application/json")]


def allow(methods: str) -> list[tuple[str, str]]:
    return [*JSON, ("Allow", methods)]


def error(sentence: str) -> bytes:
    return b'{"error":"' + sentence.encode() + b'"}'


NOT_FOUND = error("Not Found")
NOT_ALLOWED = error("Method Not Allowed")
TRAVERSAL = "invalid model name '{}', model name must not contain path traversal characters"
UNKNOWN = "Request for unknown model: "
STOL = (
    "failed to get model version from specified version string '99999999999999999999' (details: stol), "
    "version should be an integral value > 0"
)
EMPTY: list[tuple[str, str]] = []


def later(endpoint: str) -> bytes:
    return error(f"{endpoint} is not available in this version of Shoal")


CASES: list[tuple[str, str, int, list[tuple[str, str]], bytes]] = [
    # health
    ("GET", "/v2/health/live", 200, EMPTY, b""),
    ("GET", "/v2/health/ready", 400, EMPTY, b""),
    ("GET", "/v2/models/simple/ready", 200, EMPTY, b""),
    ("GET", "/v2/models/simple/versions/1/ready", 200, EMPTY, b""),
    ("GET", "/v2/models/simple/versions/0001/ready", 200, EMPTY, b""),
    ("GET", "/v2/models/asleep/ready", 400, JSON, error("Model version not ready")),
    ("GET", "/v2/models/none/ready", 404, JSON, error(UNKNOWN + "'none' is not found")),
    ("GET", "/v2/models/simple/versions/9/ready", 404, JSON, error(UNKNOWN + "'simple' version 9 is not found")),
    ("GET", "/v2/models/simple/versions/0/ready", 404, JSON, error(UNKNOWN + "'simple' version 0 is not found")),
    (
        "GET",
        "/v2/models/simple/versions/2/ready",
        503,
        JSON,
        error(UNKNOWN + "'simple' version 2 is not at ready state"),
    ),
    ("GET", "/v2/models/gone/ready", 404, JSON, error(UNKNOWN + "'gone' has no available versions")),
    ("GET", "/v2/models/simple/versions/99999999999999999999/ready", 400, JSON, error(STOL)),
    # metadata, configuration, statistics
    (
        "GET",
        "/v2",
        200,
        JSON,
        b'{"name":"triton","version":"2.73.0",'
        b'"extensions":["classification","model_configuration","binary_tensor_data","parameters","statistics",'
        b'"logging"]}',
    ),
    (
        "GET",
        "/v2/models/%C3%A9cho%20b",
        200,
        JSON,
        '{"name":"écho b","versions":["1"],"platform":"identity",'
        '"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[-1,2]}],'
        '"outputs":[{"name":"TEXT","datatype":"BYTES","shape":[-1,2]}]}'.encode(),
    ),
    ("GET", "/v2/models/none", 404, JSON, error(UNKNOWN + "'none' is not found")),
    ("GET", "/v2/models/none/config", 404, JSON, error(UNKNOWN + "'none' is not found")),
    ("GET", "/v2/models/broken/config", 404, JSON, error(UNKNOWN + "'broken' is not found")),
    ("GET", "/v2/models/none/stats", 400, JSON, error("requested model 'none' is not available")),
    (
        "GET",
        "/v2/models/simple/versions/2/stats",
        400,
        JSON,
        error("requested model version is not available for model 'simple'"),
    ),
    # paths that are none
    ("GET", "/", 404, JSON, NOT_FOUND),
    ("GET", "", 404, JSON, NOT_FOUND),
    ("GET", "/v2/", 404, JSON, NOT_FOUND),
    ("GET", "/v1", 404, JSON, NOT_FOUND),
    ("GET", "/V2/health/live", 404, JSON, NOT_FOUND),
    ("GET", "/v2/health/live/", 404, JSON, NOT_FOUND),
    ("GET", "/v2/health%2Flive", 404, JSON, NOT_FOUND),
    ("GET", "//v2/health/live", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models/", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models//ready", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models/simple/", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models/simple/versions/one", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models/simple/versions/-1", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models/simple/versions/1/trace/setting", 404, JSON, NOT_FOUND),
    ("GET", "/v2/models/simple/metrics", 404, JSON, NOT_FOUND),
    ("GET", "/metrics", 404, JSON, NOT_FOUND),
    ("DELETE", "/v2/nothing", 404, JSON, NOT_FOUND),
    # wrong methods, before anything about the model is said
    ("POST", "/v2/health/live", 405, allow("GET"), NOT_ALLOWED),
    ("PUT", "/v2", 405, allow("GET"), NOT_ALLOWED),
    ("OPTIONS", "/v2/health/ready", 405, allow("GET"), NOT_ALLOWED),
    ("BREW", "/v2/models/simple/config", 405, allow("GET"), NOT_ALLOWED),
    ("GET", "/v2/models/simple/infer", 405, allow("POST"), NOT_ALLOWED),
    ("GET", "/v2/models/none/versions/1/infer", 405, allow("POST"), NOT_ALLOWED),
    ("GET", "/v2/models/%00/infer", 405, allow("POST"), NOT_ALLOWED),
    ("POST", "/v2/models/stats", 405, allow("GET"), NOT_ALLOWED),
    ("DELETE", "/v2/logging", 405, allow("GET, POST"), NOT_ALLOWED),
    ("GET", "/v2/repository/index", 405, allow("POST"), NOT_ALLOWED),
    ("POST", "/v2/cudasharedmemory/status", 405, allow("GET"), NOT_ALLOWED),
    # names
    ("POST", "/v2/models/../infer", 400, JSON, error(TRAVERSAL.format(".."))),
    ("POST", "/v2/models/%2e%2e/infer", 400, JSON, error(TRAVERSAL.format(".."))),
    ("POST", "/v2/models/./infer", 400, JSON, error(TRAVERSAL.format("."))),
    (
        "POST",
        "/v2/models/..%2f..%2fetc%2fpasswd/infer",
        400,
        JSON,
        error(TRAVERSAL.format("../../etc/passwd")),
    ),
    ("GET", "/v2/models/%252e%252e", 404, JSON, error(UNKNOWN + "'%2e%2e' is not found")),
    ("GET", "/v2/models/simple%31", 404, JSON, error(UNKNOWN + "'simple1' is not found")),
    ("GET", "/v2/models/a+b", 404, JSON, error(UNKNOWN + "'a+b' is not found")),
    ("GET", "/v2/models/versions", 404, JSON, error(UNKNOWN + "'versions' is not found")),
    # logging, generate
    (
        "GET",
        "/v2/logging",
        200,
        JSON,
        b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,'
        b'"log_format":"default"}',
    ),
    ("GET", "/v2/models/simple/generate", 405, allow("POST"), NOT_ALLOWED),
    ("POST", "/v2/models/none/generate", 404, JSON, error(UNKNOWN + "'none' is not found")),
    (
        "POST",
        "/v2/models/stream/generate_stream",
        501,
        JSON,
        later("generating with a decoupled model"),
    ),
    # infer, as far as it comes without a body
    ("POST", "/v2/models/none/infer", 404, JSON, error(UNKNOWN + "'none' is not found")),
    (
        "POST",
        "/v2/models/simple/versions/2/infer",
        503,
        JSON,
        error(UNKNOWN + "'simple' version 2 is not at ready state"),
    ),
    (
        "POST",
        "/v2/models/stream/infer",
        501,
        JSON,
        error("HTTP end point doesn't support models with decoupled transaction policy"),
    ),
    # endpoints that are not there yet
    ("GET", "/v2/models/simple/trace/setting", 501, JSON, later("the trace setting endpoint")),
    ("POST", "/v2/trace/setting", 501, JSON, later("the trace setting endpoint")),
    ("POST", "/v2/repository/index", 501, JSON, later("the repository index")),
    ("POST", "/v2/repository/mine/index", 501, JSON, later("the repository index")),
    (
        "POST",
        "/v2/repository/models/simple/load",
        501,
        JSON,
        later("loading a model through the repository endpoint"),
    ),
    (
        "POST",
        "/v2/repository/mine/models/simple/unload",
        501,
        JSON,
        later("unloading a model through the repository endpoint"),
    ),
    ("GET", "/v2/systemsharedmemory/region/r/status", 501, JSON, later("system shared memory status")),
    ("POST", "/v2/systemsharedmemory/unregister", 501, JSON, later("system shared memory registration")),
    ("GET", "/v2/cudasharedmemory/status", 501, JSON, later("CUDA shared memory status")),
    ("POST", "/v2/cudasharedmemory/region/r/register", 501, JSON, later("CUDA shared memory registration")),
]


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_table(
    client: Any, transport: Any, method: str, path: str, status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    assert client.ask(method, path) == (status, headers, body)
    assert transport.num_asked == 0


@pytest.mark.parametrize(
    "name", ["%00", "a%0ab", "%7f", "%c0%ae", "%ff", "x" * 300, "%C3%A9" * 128], ids=lambda name: name[:12]
)
def test_names_that_no_directory_has(client: Any, name: str) -> None:
    status, headers, body = client.ask("POST", f"/v2/models/{name}/infer")
    assert (status, headers) == (400, JSON)
    assert body.startswith(b'{"error":"invalid model name ')


def test_statistics_of_all_models_come_before_a_model_called_stats(client: Any) -> None:
    status, _, body = client.ask("GET", "/v2/models/stats")
    assert (status, body[:16]) == (200, b'{"model_stats":[')


def test_head_is_refused_without_a_body_over_http(client: Any) -> None:
    status, headers, body = client.ask("HEAD", "/v2/health/live")
    assert (status, headers) == (405, allow("GET"))
    assert body == (NOT_ALLOWED if client.way == "dispatch" else b"")


def test_while_exiting(client: Any, state: ServerState) -> None:
    state.exiting = True
    for path, sentence in (
        ("/v2/health/live", "Server exiting"),
        ("/v2/health/ready", "Server exiting"),
        ("/v2/models/simple/ready", "Server not ready"),
        ("/v2/models/stats", "Server not ready"),
    ):
        assert client.ask("GET", path) == (503, JSON, error(sentence))
    assert client.ask("GET", "/v2")[0] == 200
    # What a running sequence still needs is let through; the scheduler decides.
    assert client.ask("POST", "/v2/models/simple/infer", INFER)[0] == 200


def _input(name: str, first: int) -> bytes:
    data = ",".join(str(first + index) for index in range(16))
    return f'{{"name":"{name}","datatype":"INT32","shape":[1,16],"data":[{data}]}}'.encode()


INFER = b'{"id":"q","inputs":[' + _input("INPUT0", 0) + b"," + _input("INPUT1", 100) + b"]}"
INFERRED = (
    b'{"id":"q","model_name":"simple","model_version":"3","outputs":['
    b'{"name":"OUTPUT0","datatype":"INT32","shape":[1,16],"data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]},'
    b'{"name":"OUTPUT1","datatype":"INT32","shape":[1,16],'
    b'"data":[100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115]}]}'
)


def test_infer_answers_and_releases_the_block_once(client: Any, transport: Any) -> None:
    assert client.ask("POST", "/v2/models/simple/infer", INFER) == (200, JSON, INFERRED)
    assert (transport.num_asked, transport.num_released) == (1, 1)


def test_infer_in_binary(client: Any, transport: Any) -> None:
    text = (
        b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"parameters":{"binary_data_size":64}},'
        + _input("INPUT1", 0)
        + b'],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
    )
    tensor = bytes(range(64))
    status, headers, body = client.ask(
        "POST", "/v2/models/simple/infer", text + tensor, {"Inference-Header-Content-Length": str(len(text))}
    )
    sent = dict(headers)
    assert (status, sent["Content-Type"]) == (200, "application/octet-stream")
    assert body[int(sent["Inference-Header-Content-Length"]) :] == tensor
    assert transport.num_released == 1


def test_bodies_are_inflated_and_deflated_on_request(client: Any, transport: Any) -> None:
    status, headers, body = client.ask(
        "POST",
        "/v2/models/simple/infer",
        gzip.compress(INFER),
        {"Content-Encoding": "gzip", "Accept-Encoding": "deflate;q=0.5, gzip"},
    )
    assert (status, dict(headers)["Content-Encoding"]) == (200, "gzip")
    assert gzip.decompress(body) == INFERRED
    assert transport.num_released == 1


def test_an_encoding_nobody_reads_is_refused_before_the_body_is_parsed(client: Any, transport: Any) -> None:
    refused = client.ask("POST", "/v2/models/simple/infer", b"not json", {"Content-Encoding": "br"})
    assert refused == (501, [*JSON, ("Accept-Encoding", "gzip, deflate")], error("Unsupported compression type"))
    assert transport.num_asked == 0


def test_the_model_is_looked_up_before_the_body_is_parsed(client: Any) -> None:
    headers = {"Content-Encoding": "br", "Inference-Header-Content-Length": "x"}
    assert client.ask("POST", "/v2/models/none/infer", b"not json", headers)[0] == 404
    assert client.ask("POST", "/v2/models/stream/infer", b"not json", headers)[2].startswith(b'{"error":"HTTP end')


def test_an_invalid_request_is_never_submitted(client: Any, transport: Any) -> None:
    status, _, body = client.ask("POST", "/v2/models/simple/infer", b"{}")
    assert (status, body) == (
        500,
        error("Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    )
    assert transport.num_asked == 0


def test_what_the_batcher_refuses_is_the_answer(client: Any, transport: Any) -> None:
    transport.error = UnavailableError("[request id: q] Exceeds maximum queue size")
    assert client.ask("POST", "/v2/models/simple/infer", INFER) == (
        503,
        JSON,
        error("[request id: q] Exceeds maximum queue size"),
    )


def test_an_answer_that_cannot_be_shown_is_released_too(
    client: Any, transport: Any, state: ServerState, make_message: Any
) -> None:
    half = {"name": "X", "data_type": "TYPE_FP16", "dims": [2]}
    config = {"name": "half", "max_batch_size": 0, "input": [half], "output": [half]}
    state.models.apply(make_message("half", 1, 1, config))
    text = b'{"inputs":[{"name":"X","datatype":"FP16","shape":[2],"parameters":{"binary_data_size":4}}]}'
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, _, body = client.ask("POST", "/v2/models/half/infer", text + b"1234", headers)
    assert (status, body[:50]) == (400, b'{"error":"sending FP16 data via JSON is not suppor')
    assert (transport.num_asked, transport.num_released) == (1, 1)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v2/health/live?a=/v2", "/v2/health/live"),
        ("/v2?", "/v2"),
        ("http://host:8000/v2/health/live?x", "/v2/health/live"),
        ("http://host", "/"),
        ("*", "*"),
        ("", ""),
    ],
)
def test_the_path_of_a_target(target: str, path: str) -> None:
    assert path_of(target) == path


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("simple", "simple"),
        ("a_b-1.0", "a_b-1.0"),
        ("a%20b", "a b"),
        ("\xc3\xa9", "é"),
        ("a%zz", "a%zz"),
        ("...", "..."),
    ],
)
def test_a_name_is_decoded_once(raw: str, name: str) -> None:
    assert decode_name(raw) == name


def test_a_long_name_is_measured_in_bytes() -> None:
    assert decode_name("%C3%A9" * 127) == "é" * 127
    with pytest.raises(InvalidArgumentError, match=r"\(256 bytes\)"):
        decode_name("%C3%A9" * 128)


def test_every_route_has_a_group_by_which_it_can_be_restricted() -> None:
    assert {route.group for route in ROUTES} == set(RESTRICTED_APIS)


def test_who_waits_takes_the_road() -> None:
    waits = [("POST", "/v2/logging"), ("POST", "/v2/models/m/generate"), ("POST", "/v2/models/m/generate_stream")]
    for method, path in [*waits, ("GET", "/v2/logging"), ("POST", "/v2/models/m/infer")]:
        found = resolve(method, path)
        assert isinstance(found, Found)
        assert found.is_blocking == ((method, path) in waits)

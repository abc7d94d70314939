"""frontend/road/app.py: what Flask and the body add to the handlers. wsgi.input is a stream of bytes."""

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder, run_wsgi_app

from shoal.errors import InvalidArgumentError
from shoal.frontend.response import Response
from shoal.frontend.road.app import create_app
from shoal.frontend.road.endpoints import Endpoints
from shoal.frontend.state import ServerState
from shoal.torchserve_errors import torchserve_error

Reply = tuple[int, dict[str, str], bytes]
INFER = "/v2/models/simple/infer"


class Stream:
    """A wsgi.input that counts what is asked of it, gives at most `piece` bytes at once, and breaks where told."""

    def __init__(self, data: bytes, piece: int = 1 << 30, error: Exception | None = None) -> None:
        self._data = io.BytesIO(data)
        self._piece = piece
        self._error = error
        self.num_asked = 0

    def read(self, nbytes: int) -> bytes:
        self.num_asked += nbytes
        data = self._data.read(min(nbytes, self._piece))
        if not data and self._error is not None:
            raise self._error
        return data


class ChunkError(Exception):
    """As a server's parser has one, without a base in common with others."""


@pytest.fixture
def post(state: ServerState, transport: Any) -> Callable[..., Reply]:
    transport.answers |= {"registered": {}, "scale": {}, "instances": {}, "index": []}
    app = create_app(Endpoints(state, transport, body_errors=(ChunkError,)))

    def call(path: str = INFER, stream: Stream | None = None, method: str = "POST", **environ: Any) -> Reply:
        base = EnvironBuilder(method=method, path=path).get_environ()
        base.pop("CONTENT_LENGTH", None)
        base.update({"wsgi.input": stream or Stream(b""), "RAW_URI": path, **environ})
        chunks, status, headers = run_wsgi_app(app, base)
        return int(status[:3]), dict(headers), b"".join(chunks)

    return call


def refused(sentence: str) -> Reply:
    body = b'{"error":"' + sentence.encode() + b'"}'
    headers = {"Content-Type": "application/json", "Connection": "close", "Content-Length": str(len(body))}
    return 400, headers, body


HTTP, METRICS, SAGEMAKER, VERTEX_AI = (
    {"SERVER_NAME": "10.0.0.1", "SERVER_PORT": port} for port in ("8000", "8002", "8080", "8081")
)
CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}


def test_a_short_body_is_refused_and_nothing_asked(post: Any, transport: Any) -> None:
    assert post(stream=Stream(b'{"inputs":[]}'), CONTENT_LENGTH="1000") == refused(
        "the request body ended after 13 of the 1000 bytes that Content-Length announced"
    )
    assert transport.num_asked == 0


@pytest.mark.parametrize("length", ["1001", "1180591620717411303424", "0" * 30 + "1001"])
def test_a_body_over_the_limit_is_refused_before_it_is_read(post: Any, length: str) -> None:
    stream = Stream(b"x" * 2000)
    number = length.lstrip("0")[:20]
    assert post(stream=stream, CONTENT_LENGTH=length) == refused(
        f"the request body has a byte_size ({number} bytes) that exceeds the maximum allowed value of 1000 bytes. "
        "Use --max-request-bytes to increase the limit."
    )
    assert stream.num_asked == 0


@pytest.mark.parametrize("length", ["-1", "+13", "0x0d", "1e1", "13, 13", "٣", "1_0"])
def test_a_length_that_is_no_number(post: Any, length: str) -> None:
    stream = Stream(b"x" * 20)
    assert post(stream=stream, CONTENT_LENGTH=length) == refused(
        f"Content-Length must be a number of bytes, got: {length}"
    )
    assert stream.num_asked == 0


def test_the_largest_body_is_read_whole_and_not_a_byte_more(post: Any) -> None:
    stream = Stream(b" " * 1000 + b"GET / HTTP/1.1", piece=300)
    status, headers, body = post(stream=stream, CONTENT_LENGTH="1000")
    assert (status, "Connection" in headers) == (500, False)
    assert b"parse the request JSON buffer" in body
    assert stream.read(99) == b"GET / HTTP/1.1"


def test_a_chunked_body_is_read_to_its_end(post: Any) -> None:
    status, headers, body = post(stream=Stream(b"{}", piece=1), **CHUNKED)
    assert (status, "Connection" in headers) == (500, False)
    assert b"attempt to access non-existing object member 'inputs'" in body


def test_a_chunked_body_stops_one_byte_past_the_limit(post: Any) -> None:
    stream = Stream(b" " * 5000)
    assert post(stream=stream, **CHUNKED) == refused(
        "the request body has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. "
        "Use --max-request-bytes to increase the limit."
    )
    assert stream.num_asked == 1001


@pytest.mark.parametrize("error", [ChunkError("Invalid chunk size: b'zz'"), OSError("gone"), ValueError("bad")])
def test_a_broken_body_is_refused(post: Any, transport: Any, error: Exception) -> None:
    reply = post(stream=Stream(b"{}", error=error), **CHUNKED)
    assert reply == refused(f"the request body cannot be read: {error}")
    assert transport.num_asked == 0


def test_a_server_s_own_refusal_of_a_body_keeps_its_sentence(post: Any) -> None:
    error = InvalidArgumentError("Chunked request body exceeds maximum of 65536 non-empty chunks.")
    assert post(stream=Stream(b"{}", error=error), **CHUNKED) == refused(str(error))


def test_both_framings_at_once_are_refused(post: Any) -> None:
    stream = Stream(b"{}")
    assert post(stream=stream, CONTENT_LENGTH="2", **CHUNKED) == refused(
        "the request has both Content-Length and Transfer-Encoding; send one of them"
    )
    assert stream.num_asked == 0


def test_a_server_that_does_not_end_its_input_gets_no_chunks_read(post: Any) -> None:
    stream = Stream(b"{}")
    assert post(stream=stream, HTTP_TRANSFER_ENCODING="chunked")[0] == 400
    assert stream.num_asked == 0


@pytest.mark.parametrize(("path", "method"), [("/v2/none", "POST"), (INFER, "PUT")])
def test_an_unwanted_body_is_not_read_and_the_connection_ends(post: Any, path: str, method: str) -> None:
    stream = Stream(b"{}")
    status, headers, _ = post(path, stream, method, CONTENT_LENGTH="2")
    assert (status in {404, 405}, headers["Connection"], stream.num_asked) == (True, "close", 0)


def test_a_get_with_a_body_keeps_the_connection_in_step(post: Any) -> None:
    stream = Stream(b"{}")
    status, headers, _ = post("/v2/health/live", stream, "GET", CONTENT_LENGTH="2")
    assert (status, headers, stream.num_asked) == (200, {"Content-Length": "0"}, 2)


def test_the_metrics_port_has_its_own_paths(post: Any) -> None:
    text = "text/plain; charset=utf-8"
    status, headers, body = post("/metrics", method="GET", **METRICS)
    assert (status, headers["Content-Type"]) == (200, text)
    assert b'nv_inference_count{model="simple",version="1"} 0\n' in body
    assert post("/v2/health/live", method="GET", **METRICS) == (
        200,
        {"Content-Type": text, "Content-Length": "0"},
        b"",
    )
    assert post("/metrics", **METRICS)[0] == 405
    assert post("/metrics", method="GET", **HTTP)[0] == 404


def test_every_port_has_the_paths_of_its_endpoint(post: Any) -> None:
    for environ, path, statuses in (
        (HTTP, "/v2/health/live", (200, 404)),
        (HTTP | {"SERVER_NAME": "10.0.0.9"}, "/v2/health/live", (200, 404)),  # a lane's, by a socket for all addresses
        (HTTP | {"SERVER_NAME": "10.0.0.2"}, "/metrics", (200, 200)),
        (SAGEMAKER, "/models", (200, 400)),
        (VERTEX_AI, "/health", (400, 400)),  # `loading` is not ready
    ):
        found = post(path, method="GET", **environ)[0], post("/nowhere", method="GET", **environ)[0]
        assert found == statuses, (environ, path)


def test_who_is_not_local_loads_no_model_for_sagemaker(post: Any, transport: Any) -> None:
    for method, path in (("POST", "/models"), ("DELETE", "/models/H")):
        status, _, body = post(path, method=method, REMOTE_ADDR="192.0.2.1", **SAGEMAKER)
        assert (status, body) == (403, REMOTE)
    assert transport.asked == []


SCALE = "/v2/repository/models/simple/instances"
REMOTE = (
    b'{"error":"models, log settings, trace settings and shared-memory regions are changed by callers on '
    b"the server's own machine only. "
    b"Start the server with '--allow-remote-admin=true' to let in others\"}"
)


@pytest.mark.parametrize("caller", [{"REMOTE_ADDR": "192.0.2.1"}, {"HTTP_X_FORWARDED_FOR": "192.0.2.1"}, {}])
def test_who_is_not_local_changes_nothing_and_its_body_is_not_read(
    post: Any, transport: Any, caller: dict[str, str]
) -> None:
    stream = Stream(b'{"count":2}')
    status, headers, body = post(SCALE, stream, CONTENT_LENGTH="11", **({"REMOTE_ADDR": "127.0.0.1"} | caller))
    if caller:
        assert (status, headers["Connection"], body, stream.num_asked) == (403, "close", REMOTE, 0)
        assert transport.asked == []
    else:
        assert (status, transport.asked[0][0]) == (200, "scale")


def test_a_refusal_without_a_body_keeps_the_connection(post: Any) -> None:
    for environ in ({"REMOTE_ADDR": "192.0.2.1"}, {}):
        status, headers, body = post("/models/simple?min_worker=2", method="PUT", **environ)
        assert (status, "Connection" in headers, body) == (403, False, REMOTE)


def test_all_callers_may_read_and_change_where_the_operator_says_so(
    post: Any, transport: Any, state: ServerState
) -> None:
    remote = {"REMOTE_ADDR": "192.0.2.1"}
    assert post(SCALE, method="GET", **remote)[0] == 200
    assert post("/v2/repository/index", **remote)[0] == 200
    state.allow_remote_admin = True
    transport.answers["ts_scale"] = torchserve_error(404, "ModelNotFoundException", "Model not found: simple")
    assert (
        post("/models/simple", method="PUT", QUERY_STRING="min_worker=3", RAW_URI="", REQUEST_URI="", **remote)[0]
        == 202
    )
    assert [verb for verb, _ in transport.asked] == ["instances", "index", "ts_scale", "scale"]
    assert transport.asked[-1][1]["count"] == 3


@pytest.mark.parametrize("key", ["RAW_URI", "REQUEST_URI"])
def test_the_raw_path_counts_where_the_server_tells_it(post: Any, key: str) -> None:
    environ = {"RAW_URI": "", "REQUEST_URI": "", "PATH_INFO": "/v2/health/live", key: "/v2/health%2Flive?x"}
    assert post(method="GET", **environ)[0] == 404
    environ[key] = ""
    assert post(method="GET", **environ)[0] == 200


def test_headers_are_forwarded_as_the_server_says_they_were_spelled(post: Any, state: ServerState) -> None:
    state.header_forward_pattern = "user|priority"
    head = b"POST / HTTP/1.1\r\nX-User: 1\r\n%s: 2\r\n\r\n"
    body = b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,2],"data":["a","b"]}]}'
    for kind, text in (("infer", body), ("generate", b'{"TEXT":["a","b"]}')):
        environ = {"stream": Stream(text), "CONTENT_LENGTH": str(len(text)), "HTTP_PRIORITY": "2"}
        for name, sentence in ((b"priority", b"Header 'priority' is reserved"), (b"Priority", b"TEXT")):
            environ |= {"stream": Stream(text), "shoal.head": head % name}
            assert sentence in post(f"/v2/models/%C3%A9cho%20b/{kind}", **environ)[2]


def test_what_is_restricted_is_not_read_and_the_connection_ends(post: Any, state: ServerState) -> None:
    state.restrictions = {"inference": ("Key", "sécret")}
    stream = Stream(b"{}")
    sentence = b'{"error":"This API is restricted, expecting header \'Key\'"}'
    status, headers, body = post(stream=stream, CONTENT_LENGTH="2", HTTP_KEY="wrong")
    assert (status, headers["Connection"], body, stream.num_asked) == (403, "close", sentence, 0)
    sent = "sécret".encode().decode("latin-1")  # as WSGI has it
    assert post(stream=stream, CONTENT_LENGTH="2", HTTP_KEY=sent)[0] == 500
    assert stream.num_asked == 2
    # The metrics port is not restricted.
    state.restrictions = {"statistics": ("Key", "sécret"), "health": ("Key", "sécret")}
    assert post("/metrics", method="GET", **METRICS)[0] == 200


def test_a_fault_of_ours_is_logged_and_told_as_json(
    state: ServerState, transport: Any, caplog: pytest.LogCaptureFixture
) -> None:
    transport.infer = None  # what is called next is not callable
    body = b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,2],"data":["a","b"]}]}'
    with caplog.at_level(logging.ERROR, "shoal"):
        reply = create_app(Endpoints(state, transport)).test_client().post("/v2/models/%C3%A9cho%20b/infer", data=body)
    assert (reply.status_code, reply.headers["Connection"]) == (500, "close")
    assert reply.data == b'{"error":"the front end failed with TypeError; the server\'s log has the details"}'
    assert [record.message for record in caplog.records] == ["no answer to POST '/v2/models/%C3%A9cho%20b/infer'"]


def test_a_stream_is_closed_after_its_last_piece(
    state: ServerState, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    response = Response(200, (), (), lambda: closed.append("closed"), iter([b"he", b"llo"]))
    monkeypatch.setattr("shoal.frontend.road.endpoints.answer", lambda *_: response)
    reply = create_app(Endpoints(state, transport)).wsgi_app(
        EnvironBuilder(path="/v2").get_environ(), lambda *_: lambda _: None
    )
    assert (list(reply), closed) == ([b"he", b"llo"], [])
    reply.close()  # type: ignore[attr-defined]
    assert closed == ["closed"]


@pytest.mark.parametrize(
    "path", ["/v2/logging", "/v2/repository/index", "/v2/trace/setting", "/v2/models/m/trace/setting"]
)
def test_a_body_that_is_for_no_model_is_small(post: Any, state: ServerState, path: str) -> None:
    state.max_control_bytes = 100
    sentence = "the request body has a byte_size (101 bytes) that exceeds the maximum allowed value of 100 bytes. "
    _, *others = refused(sentence + "Use --max-control-bytes to increase the limit.")
    stream = Stream(b" " * 5000)
    assert post(path, stream, REMOTE_ADDR="127.0.0.1", **CHUNKED) == (413, *others)
    assert stream.num_asked == 101
    assert post(path, Stream(b""), REMOTE_ADDR="127.0.0.1", CONTENT_LENGTH="101") == (413, *others)


@pytest.mark.parametrize("path", [INFER, "/v2/repository/models/m/load"])
def test_a_body_for_a_model_and_a_load_may_be_large(post: Any, state: ServerState, path: str) -> None:
    state.max_control_bytes = 100
    status, _, _ = post(path, Stream(b" " * 900), CONTENT_LENGTH="900")
    assert status != 413

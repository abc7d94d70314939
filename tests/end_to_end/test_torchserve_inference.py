"""TorchServe's inference API on a real server: every path, every form of a body, every error of the API's page."""

import http.client
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.server import DEADLINE_S
from tests.end_to_end.torchserve_listeners import TorchServe, torchserve, write_echo

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NO_WORKER = (
    " has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence "
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
NOT_FOUND = "Requested resource is not found, please refer to API document."


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    repository = tmp_path_factory.mktemp("models")
    write_echo(repository / "echo")
    with torchserve(repository, "--http-process-count=1") as served:
        yield served


#: Method, path → explain, url_path, as the handler sees them.
PATHS: list[tuple[str, str, str | None, str | None]] = [
    ("POST", "/predictions/echo", "False", ""),
    ("PUT", "/predictions/echo", "False", ""),
    ("GET", "/predictions/echo", "False", ""),
    ("DELETE", "/predictions/echo", "False", ""),
    ("POST", "/predictions/echo?x=1", "False", ""),
    ("POST", "/predictions/echo/1.0", "False", ""),
    ("POST", "/predictions/echo/1.0/v1/chat/completions", "False", "v1/chat/completions"),
    ("POST", "/explanations/echo", "True", ""),
    ("POST", "/explanations/echo/1.0", "True", ""),
    ("POST", "/v1/models/echo:predict", "False", None),
    ("POST", "/v1/models/echo:explain", "True", None),
    ("POST", "/v2/models/echo/infer", "False", None),
    ("POST", "/v2/models/echo/explain", "True", None),
    ("POST", "/invocations", None, None),
    ("POST", "/models/echo/invoke", None, None),
    ("POST", "/echo/predict", None, None),
    ("POST", "/echo/1.0/predict", None, None),
]


@pytest.mark.parametrize(("method", "path", "explain", "url_path"), PATHS)
def test_every_path_of_a_prediction(
    served: TorchServe, method: str, path: str, explain: str | None, url_path: str | None
) -> None:
    reply = served.ask(method, path, b"told", {"X-Mode": "Fast", "ts_request_sequence_id": "7", "Content-Type": "a/b"})
    assert (reply.status, reply.phrase) == (200, "")
    told = json.loads(reply.body)
    assert (told.get("explain"), told.get("url_path")) == (explain, url_path)
    assert (told["body"], told["content_type"], told.get("fields")) == ("told", "a/b", None)
    assert told["headers"]["X-Mode"] == "Fast"
    assert told["headers"]["ts_request_sequence_id"] == "7"
    assert UUID.fullmatch(told["request_id"])
    assert reply.headers["x-request-id"] == told["request_id"]
    assert reply.headers["Content-Type"] is None
    assert reply.headers["Pragma"] == "no-cache"
    assert reply.headers["Cache-Control"] == "no-cache; no-store, must-revalidate, private"
    assert reply.headers["Expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, 50_000, 3_000_000])
def test_bodies_of_every_size(served: TorchServe, nbytes: int, chunked: bool) -> None:
    body = bytes(range(256)) * (nbytes // 256 + 1)
    body = body[:nbytes]
    sent: Any = iter([body] if body else []) if chunked else body
    reply = served.ask("POST", "/predictions/echo", sent, {"Content-Type": "a/b"})
    assert (reply.status, reply.body) == (200, body)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long(served: TorchServe, chunked: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.inference_port, timeout=DEADLINE_S)
    connection.putrequest("POST", "/predictions/nope")
    if chunked:
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        connection.send(b"63ff9d\r\n" + bytes(6_553_501) + b"\r\n0\r\n\r\n")
    else:
        connection.putheader("Content-Length", "6553501")
        connection.endheaders()
    response = connection.getresponse()
    assert (response.status, response.read(), response.getheader("x-request-id")) == (413, b"", None)
    assert response.will_close
    connection.close()


MULTIPART = (
    b'--B\r\nContent-Disposition: form-data; name="plain"\r\nContent-Type: application/json\r\n\r\n{}\r\n'
    b'--B\r\nContent-Disposition: form-data; name="data"; filename="a.json"\r\nContent-Type: application/json\r\n\r\n'
    b"told\r\n"
    b'--B\r\nContent-Disposition: form-data; name="twice"; filename="a"\r\n\r\nfirst\r\n'
    b'--B\r\nContent-Disposition: form-data; name="twice"; filename="b"\r\n\r\nlast\r\n--B--\r\n'
)


@pytest.mark.parametrize(
    ("path", "content_type", "body", "fields", "joined"),
    [
        (
            "/predictions/echo",
            "multipart/form-data; boundary=B",
            MULTIPART,
            [["plain", "", 2], ["data", "application/json", 4], ["twice", "application/octet-stream", 4]],
            "{}toldlast",
        ),
        (
            "/predictions/echo",
            "application/x-www-form-urlencoded",
            b"a=1&b=to%6cd&a=3",
            [["a", "", 1], ["b", "", 4]],
            "3told",
        ),
        ("/models/echo/invoke?q=7", "a/b", b"told", [["q", "", 1], ["body", "a/b", 4]], "7told"),
    ],
)  # fmt: skip
def test_forms_and_queries_are_fields(
    served: TorchServe, path: str, content_type: str, body: bytes, fields: list[Any], joined: str
) -> None:
    reply = served.ask("POST", path, body, {"Content-Type": content_type})
    assert reply.status == 200, reply.body
    told = json.loads(reply.body)
    assert (told["fields"], told["body"]) == (fields, joined)


#: Method, path, content type, body → code, type, message. A row that kills the worker comes last.
ERRORS: list[tuple[str, str, str, bytes, int, str, str]] = [
    ("POST", "/predictions/nope", "a/b", b"x", 404, "ModelNotFoundException", "Model not found: nope"),
    ("POST", "/predictions/echo/2.0", "a/b", b"x", 404, "ModelVersionNotFoundException",
     "Model version: 2.0 does not exist for model: echo"),
    ("POST", "/predictions", "a/b", b"x", 404, "ResourceNotFoundException", NOT_FOUND),
    ("GET", "/nope", "a/b", b"", 404, "ResourceNotFoundException", NOT_FOUND),
    ("GET", "/models", "a/b", b"", 404, "ResourceNotFoundException", NOT_FOUND),
    ("OPTIONS", "/predictions/nope", "a/b", b"", 404, "ModelNotFoundException", "Model not found: nope"),
    ("OPTIONS", "/explanations/echo", "a/b", b"", 405, "MethodNotAllowedException",
     "Requested method is not allowed, please refer to API document."),
    ("POST", "/predictions/echo", "multipart/form-data", b"x", 400, "BadRequestException",
     "the multipart body cannot be read: its Content-Type names no boundary"),
    ("POST", "/predictions/echo", "multipart/form-data; boundary=B", b"--C", 400, "BadRequestException",
     "the multipart body cannot be read: a part is malformed, or its end is missing"),
    ("POST", "/predictions/echo", "multipart/form-data; boundary=B",
     b"--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n--B--", 400, "BadRequestException",
     "the multipart body cannot be read: a part has no name; its Content-Disposition must have one"),
    ("POST", "/predictions/echo", "a/b", b"ts:503:InternalServerException:Prediction failed", 503,
     "InternalServerException", "Prediction failed"),
    ("POST", "/predictions/echo", "a/b", b"ts:507:InternalServerException:Out of resources", 507,
     "InternalServerException", "Out of resources"),
    ("POST", "/predictions/echo", "a/b", b"ts:404:InternalServerException:no: such", 404,
     "InternalServerException", "no: such"),
    ("POST", "/predictions/echo", "a/b", b"exit", 500, "InternalServerException", "Worker died."),
    ("POST", "/predictions/echo", "a/b", b"kill", 507, "InternalServerException", "Worker died."),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "content_type", "body", "code", "kind", "message"), ERRORS)
def test_errors(
    served: TorchServe, method: str, path: str, content_type: str, body: bytes, code: int, kind: str, message: str
) -> None:
    reply = served.ask(method, path, body, {"Content-Type": content_type})
    assert (reply.status, reply.json) == (code, {"code": code, "type": kind, "message": message})
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["Connection"] == "close"
    assert UUID.fullmatch(reply.headers["x-request-id"])


@pytest.mark.parametrize("raw", [b"NONSENSE\r\n\r\n", b"GET /ping HTTP/1.1\r\nno field\r\n\r\n"])
def test_a_message_that_is_no_http(served: TorchServe, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.inference_port), DEADLINE_S) as connection:
        connection.sendall(raw)
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = json.loads(response.read())
    assert (response.status, body) == (400, {
        "code": 400, "type": "BadRequestException", "message": "Invalid HTTP message.",
    })  # fmt: skip
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Connection"] == "close"
    assert UUID.fullmatch(response.headers["x-request-id"])


def test_a_handler_sets_status_phrase_and_headers(served: TorchServe) -> None:
    reply = served.ask("POST", "/predictions/echo", b"teapot")
    assert (reply.status, reply.phrase, reply.body) == (418, "short and stout", b"teapot")
    assert (reply.headers["Content-Type"], reply.headers["X-A"]) == ("text/plain", "b")
    assert reply.headers["Connection"] == "close"


@pytest.mark.parametrize("road", [b"", b"TE: trailers\r\n"], ids=["lane", "road"])
@pytest.mark.parametrize("status", [204, 304])
def test_nothing_follows_the_head_of_a_status_without_a_body(served: TorchServe, status: int, road: bytes) -> None:
    asked = [b'as {"status": %d}' % status, b"hi"]
    with socket.create_connection(("127.0.0.1", served.inference_port), DEADLINE_S) as connection:
        for body, more in zip(asked, (b"", b"Connection: close\r\n"), strict=True):
            head = b"POST /predictions/echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
            connection.sendall(head + road + more + b"\r\n" + body)
        first, second, body = b"".join(iter(lambda: connection.recv(65536), b"")).split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-length" not in first.lower()
    assert second.startswith(b"HTTP/1.1 200 ")
    assert body == b"hi"


@pytest.mark.parametrize("fields", [{}, {"TE": "trailers"}], ids=["lane", "road"])
@pytest.mark.parametrize("name", ["X Y", "X:", "", "\u00e9"])
def test_the_name_of_a_header_of_a_handler_is_one_of_http(
    served: TorchServe, name: str, fields: dict[str, str]
) -> None:
    body = f"as {json.dumps({'headers': {name: '1'}})}".encode()
    reply = served.ask("POST", "/predictions/echo", body, fields)
    assert (reply.status, reply.json["type"]) == (500, "InternalServerException")
    assert reply.json["message"] == f"the model has set the response header {name!r}, a name that HTTP does not have"


@pytest.mark.parametrize("fields", [{}, {"TE": "trailers"}], ids=["lane", "road"])
def test_what_no_line_of_a_head_may_have_is_left_out(served: TorchServe, fields: dict[str, str]) -> None:
    """The lane sent it, and the road's gunicorn refused the response, and answered with an error of its own."""
    said = {"status": 299, "phrase": "so\x00so", "headers": {"X-A": "a\x01\tb\x7fc\r\nX-B: d\n"}}
    reply = served.ask("POST", "/predictions/echo", f"as {json.dumps(said)}".encode(), fields)
    assert (reply.status, reply.phrase, reply.headers["X-A"]) == (299, "so so", "a \tb c  X-B: d")


def test_a_connection_is_kept_between_lane_and_road(served: TorchServe) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.inference_port, timeout=DEADLINE_S)
    connection.connect()
    socket = connection.sock
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for body, headers, answer in ((b"a", {}, b"a"), (b"a=b", form, b"b"), (b"c", {}, b"c")):
        connection.request("POST", "/predictions/echo", body, headers)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, answer)
        assert connection.sock is socket
    connection.close()


@pytest.mark.parametrize(
    ("method", "path", "title"),
    [
        ("OPTIONS", "/", "TorchServe APIs"),
        ("GET", "/api-description", "TorchServe APIs"),
        ("OPTIONS", "/predictions/echo", "RESTful API for: echo"),
    ],
)
def test_the_api_describes_itself(served: TorchServe, method: str, path: str, title: str) -> None:
    reply = served.ask(method, path)
    assert (reply.status, reply.json["openapi"], reply.json["info"]["title"]) == (200, "3.0.1", title)


@pytest.mark.parametrize(
    ("method", "path"),
    [*((method, "/ping") for method in ("GET", "POST", "PUT", "DELETE")), ("GET", "/ping/"), ("GET", "/ping//")],
)
def test_ping(served: TorchServe, method: str, path: str) -> None:
    reply = served.ask(method, path)
    assert (reply.status, reply.phrase, reply.json) == (200, "OK", {"status": "Healthy"})


def test_no_request_of_tritons_is_taken_for_one_of_torchserves(served: TorchServe) -> None:
    tensors = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1, 1], "data": ["told"]}]}
    body = json.dumps(tensors).encode()
    for _ in range(3):  # known by its first bytes from the second time on
        reply = served.ask("POST", "/v2/models/echo/infer", body.replace(b"told", b"tolD"), {"Content-Type": "a/b"})
        assert reply.body == body.replace(b"told", b"tolD")

"""Which threads of the road a request is for, by its head."""

import pytest

from shoal.frontend.road.work import Work, work_of

READING, ADMINISTRATION, REQUEST = Work


def post(path: str, body: bytes = b"{}", *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in (b"Host: x", *fields, b"content-length:  %d" % len(body)))
    return f"POST {path} HTTP/1.1\r\n".encode() + lines + b"\r\n" + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


CHUNKED = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "work"),
    [
        (get("/metrics"), READING),
        (get("/v2/health/ready"), READING),
        (get("/v2/trace/setting"), READING),
        (get("/v2/repository/models/m/instances"), READING),
        (get("/ping"), READING),
        (get("/metrics").replace(b"GET", b"HEAD"), READING),
        (get("/v2/models/m/ready"), REQUEST),  # the model may have a word in it
        (post("/v2/repository/index"), ADMINISTRATION),
        (post("/v2/repository/models/m/load"), ADMINISTRATION),
        (post("/v2/trace/setting"), ADMINISTRATION),
        (post("/v2/models/m/infer"), REQUEST),
        (post("/v2/models/m/versions/2/generate_stream"), REQUEST),
        (post("/invocations"), REQUEST),
        (get("/predictions/m"), REQUEST),  # of TorchServe's API any method asks the model, which may answer in parts
        (CHUNKED, ADMINISTRATION),
        (b"", REQUEST),
        (b"\0" * 100, REQUEST),
        (b"\r\n\r\n", REQUEST),
    ],
)
def test_over_http(data: bytes, work: Work) -> None:
    assert work_of(data, is_tunnel=False) is work


def test_calls_of_grpc() -> None:
    load = post("/inference.GRPCInferenceService/RepositoryModelLoad", bytes(1000))
    assert work_of(load, is_tunnel=True) is ADMINISTRATION
    assert work_of(post("/inference.GRPCInferenceService/ModelInfer"), is_tunnel=True) is REQUEST
    assert work_of(post("/inference.GRPCInferenceService/ModelReady"), is_tunnel=True) is REQUEST  # as over HTTP

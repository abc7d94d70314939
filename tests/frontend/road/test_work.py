"""Which threads of the road a request is for, and with what it shares them, by its head."""

import gc

import pytest

from shoal.frontend.grpc.tunnel import pack_head
from shoal.frontend.road.work import Work, kind_of

READING, ADMINISTRATION, LOADING, REQUEST = Work


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
        (post("/v2/repository/models/m/load"), LOADING),
        (post("/v2/repository/models/m/instances"), LOADING),
        (post("/v2/repository/models/m/unload"), ADMINISTRATION),
        (post("/models?url=m.mar&initial_workers=1"), LOADING),
        (post("/models/m?min_worker=2").replace(b"POST", b"PUT"), LOADING),
        (post("/models/m").replace(b"POST", b"DELETE"), ADMINISTRATION),
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
    assert kind_of(data, is_tunnel=False).work is work


@pytest.mark.parametrize(
    ("data", "group"),
    [
        (post("/v2/models/m%31/infer"), "m1"),
        (post("/v2/models/m1/versions/2/generate_stream?x=1"), "m1"),
        (post("/v2/repository/models/m1/load"), "m1"),
        (post("/v2/repository/index?x=1"), "/v2/repository/index"),
        (post("/v1/chat/completions"), "/v1/chat/completions"),
        (post("/predictions/m1/1.0"), "m1"),
        (post("/models?url=m.mar"), "/models"),
        (post("/models/m1").replace(b"POST", b"DELETE"), "m1"),
        (post("/invocations"), "/invocations"),
        (b"", ""),
    ],
)
def test_what_requests_share_threads_with(data: bytes, group: str) -> None:
    assert kind_of(data, is_tunnel=False).group == group


def test_calls_of_grpc() -> None:
    rpc = "/inference.GRPCInferenceService/"
    load = post(f"{rpc}RepositoryModelLoad", bytes(1000))
    assert kind_of(load, is_tunnel=True) == (LOADING, f"{rpc}RepositoryModelLoad")
    assert kind_of(post(f"{rpc}RepositoryIndex"), is_tunnel=True) == (ADMINISTRATION, f"{rpc}RepositoryIndex")
    assert kind_of(post(f"{rpc}ModelInfer"), is_tunnel=True) == (REQUEST, f"{rpc}ModelInfer")
    assert kind_of(post(f"{rpc}ModelReady"), is_tunnel=True).work is REQUEST  # as over HTTP
    predict = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
    assert kind_of(post(predict), is_tunnel=True).work is REQUEST


def test_a_lane_says_which_model_a_call_is_for() -> None:
    head = pack_head("/inference.GRPCInferenceService/ModelInfer", "10.0.0.1", {}, 5, model="a \u00e9\r\n".encode())
    assert kind_of(head, is_tunnel=True) == (REQUEST, "a \u00e9\r\n")


@pytest.mark.parametrize("body", [b'{"model":"m","x":[%b[]]}' % (b"[]," * 10_000), b"[" * 3], ids=["lists", "no JSON"])
def test_no_body_has_the_collector_look_at_its_lists_while_it_is_searched_for_its_model(body: bytes) -> None:
    collected: list[object] = []
    note = lambda *seen: collected.append(seen)  # noqa: E731
    gc.collect()
    gc.callbacks.append(note)
    gc.enable()
    try:
        kind = kind_of(post("/v1/embeddings"), is_tunnel=False, body=lambda: body)
        is_collecting = gc.isenabled()
    finally:
        gc.disable()
        gc.callbacks.remove(note)
    assert (kind.group, len(collected), is_collecting) == ("m" if b"m" in body else "/v1/embeddings", 0, True)

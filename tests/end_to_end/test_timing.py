"""Where the time of a request went, as real clients are told it: HTTP on lane and road, gRPC, shared memory; and the
slowest and failed requests of the last minutes. Times themselves are never compared but with each other."""

import gzip
import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from shoal import Client
from shoal.errors import UnsupportedError
from shoal.timing import PHASES, Timing
from tests.end_to_end.asking import fetch
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import (
    DEADLINE_S,
    SAMPLES,
    Ledger,
    Server,
    await_standby,
    only,
    serving_to_the_end,
    signal_worker,
    title,
)
from tests.server_timing import from_header

MESSAGES: Any = service_pb2  # made by protobuf, whose classes no type checker sees
CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASKS = {"X-Shoal-Timing": "1"}
ROW = np.arange(4, dtype=np.int32).reshape(1, 4)
#: Of the sample `text_ensemble`.
STEPS = ["tokenizer", "encoder", "postprocessing"]
WORKED = ("queue", "gather", "compute", "write", "send")
IDENTITY = config_text("identity", "INPUT0 INT32 4", "OUTPUT0 INT32 4", rows=8, count=1)
FAILING = python_model("""
    def execute(self, requests):
        if pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy().min() < 0:
            raise ValueError("the picture is upside down")
        error = pb_utils.TritonError("the picture has no pixels", pb_utils.TritonError.INVALID_ARG)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
""")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "alone", IDENTITY)
    add_model(repository, "punctual", IDENTITY + "dynamic_batching { max_queue_delay_microseconds: 50000 }")
    failing = IDENTITY.replace('"identity"', '"python"').replace("max_batch_size: 8", "")
    add_model(repository, "failing", failing, FAILING)
    flags = "--grpc-port=0", "--timing-percent=0", *only("alone", "punctual", "failing", "text_ensemble", *STEPS)
    with serving_to_the_end([SAMPLES, repository], *flags) as running:
        yield running


def body(request_id: str = "", row: np.ndarray[Any, Any] = ROW) -> dict[str, Any]:
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": list(row.shape), "data": row.ravel().tolist()}
    return {"id": request_id, "inputs": [tensor]}


def over_http(server: Server, model: str, asked: dict[str, Any], **headers: str) -> Timing:
    reply = fetch(server.http_port, f"/v2/models/{model}/infer", asked, headers={**ASKS, **headers})
    return from_header(reply.headers["Server-Timing"])


def message(model: str, row: np.ndarray[Any, Any] = ROW) -> Any:
    asked = MESSAGES.ModelInferRequest(model_name=model, id="g")
    tensor = asked.inputs.add()
    tensor.name, tensor.datatype = "INPUT0", "INT32"
    tensor.shape.extend(row.shape)
    asked.raw_input_contents.append(row.tobytes())
    return asked


@pytest.fixture(scope="module")
def stub(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def over_grpc(stub: Any, asked: Any) -> Timing:
    _, call = stub.ModelInfer.with_call(asked, metadata=(("x-shoal-timing", "1"),), timeout=DEADLINE_S)
    return from_header(dict(call.trailing_metadata())["server-timing"])


def check(told: Timing, *front: str) -> None:
    """All phases are told, which add up; the batch was one request's, and its instance lives."""
    assert list(told.phases) == [*front, *WORKED]
    assert sum(told.phases.values()) == told.total_ns
    assert sum(told.queue.values()) == told.phases["queue"]
    assert (told.batch_requests, told.batch_rows, told.version) == (1, 1, "1")
    assert told.instance.endswith("_0_0")
    os.kill(told.pid, 0)


def test_http_on_the_lane_says_it_to_those_who_ask(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    for number in range(6):  # on one connection: the later ones are known by their bytes
        for asks in ({}, ASKS, {"X-Shoal-Timing": "0"}):
            sent = json.dumps(body(f"n{number}"))
            context = {"traceparent": f"00-{number + 1:032x}-b7ad6b7169203331-01"}
            connection.request("POST", "/v2/models/alone/infer", sent, {**asks, **context})
            reply = connection.getresponse()
            told = json.loads(reply.read())
            assert (reply.status, told["id"], told["outputs"][0]["data"]) == (200, f"n{number}", ROW.ravel().tolist())
            header = reply.headers.get("Server-Timing")
            assert (header is not None) == (asks == ASKS)
            if header is not None:
                check(from_header(header), "receive", "parse")
    connection.close()
    listed = requests_of(server, "alone")["slowest"]
    traces = {each["trace_id"] for each in listed if each["trace_id"]}
    assert traces <= {f"{number + 1:032x}" for number in range(6)}
    assert traces


def test_http_on_the_road_says_it(server: Server) -> None:
    sent = gzip.compress(json.dumps(body()).encode())
    reply = fetch(server.http_port, "/v2/models/alone/infer", sent, headers={**ASKS, "Content-Encoding": "gzip"})
    assert reply.status == 200
    check(from_header(reply.headers["Server-Timing"]), "receive", "parse")
    reply = fetch(server.http_port, "/v2/models/alone/infer", sent, headers={"Content-Encoding": "gzip"})
    assert "Server-Timing" not in reply.headers


def test_grpc_says_it_in_trailing_metadata(server: Server, stub: Any) -> None:
    for _ in range(4):
        check(over_grpc(stub, message("alone")), "receive", "parse")
        _, call = stub.ModelInfer.with_call(message("alone"), timeout=DEADLINE_S)
        assert "server-timing" not in dict(call.trailing_metadata())
    wrong = message("failing", ROW[0])
    with pytest.raises(grpc.RpcError) as refused:
        over_grpc(stub, wrong)
    error: Any = refused.value
    trailers = dict(error.trailing_metadata())
    assert "compute" in from_header(trailers["server-timing"]).phases
    assert "the picture has no pixels" in str(refused.value)


def test_a_client_on_this_machine_finds_it_in_the_result(server: Server) -> None:
    with Client(server.client_socket) as client:
        for _ in range(3):
            told = client.infer("alone", {"INPUT0": ROW}, timing=True).timing
            assert told is not None
            check(told, "parse")
            assert client.infer("alone", {"INPUT0": ROW}).timing is None
    with Client(f"http://{server.url}") as remote, pytest.raises(UnsupportedError, match="keeps no headers"):
        remote.infer("alone", {"INPUT0": ROW}, timing=True)


def test_an_ensemble_tells_its_steps(server: Server) -> None:
    asked = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["school of fish"]}]}
    told = over_http(server, "text_ensemble", asked)
    assert list(told.phases) == ["receive", "parse", "steps"]
    assert [name for name, _ in told.steps] == STEPS


def test_a_request_that_waits_for_a_batch_to_form_is_told_so(server: Server) -> None:
    told = over_http(server, "punctual", body())
    assert told.queue["forming"] >= 50_000_000  # the delay that its model allows
    assert told.ahead_requests == 0


def num_open(ledger: Ledger) -> int:
    """The number of requests that the batcher has accepted and not answered."""
    return sum(each["requests_open"] for each in ledger["processes"] if each["title"] == "shoal batcher")


def test_a_request_behind_others_is_told_what_was_ahead(server: Server, stub: Any) -> None:
    """The instance stands still while all come, in any order: those of one connection may overtake each other."""
    rows = np.tile(ROW, (3, 1))
    signal_worker(server, "alone", signal.SIGSTOP)
    try:
        waiting = [
            stub.ModelInfer.future(message("alone", rows), metadata=(("x-shoal-timing", "1"),), timeout=DEADLINE_S)
            for _ in range(3)
        ]
        server.ledger_once(lambda ledger: num_open(ledger) == len(waiting), len(waiting))
    finally:
        signal_worker(server, "alone", signal.SIGCONT)
    trailers = [dict(call.trailing_metadata()) for call in waiting]
    all_told = [from_header(each["server-timing"]) for each in trailers]
    first, second, third = sorted(all_told, key=lambda told: told.ahead_requests)
    assert first.ahead_requests == 0
    for told in (second, third):
        assert (told.ahead_requests, told.ahead_rows, told.batch_rows) == (1, 3, 3)
        assert told.queue["busy"] > told.queue.get("wake", 0)
        assert told.phases["queue"] >= told.ahead_ns > 0


def requests_of(server: Server, model: str = "", limit: int = 100) -> dict[str, Any]:
    reply = fetch(server.http_port, f"/v2/debug/requests?model={model}&limit={limit}")
    assert reply.status == 200
    told: dict[str, Any] = reply.json
    return told


def test_failures_are_listed_with_what_was_said(server: Server) -> None:
    for number in range(2):
        over_http(server, "failing", body(f"bad {number}", ROW[0]), traceparent=CONTEXT)
    told = requests_of(server, "failing")
    assert told["slowest"] == []
    last, before = told["failed"][:2]
    assert (last["id"], before["id"]) == ("bad 1", "bad 0")
    assert last["trace_id"] == CONTEXT.split("-")[1]
    assert last["error"] == "the picture has no pixels"
    assert (last["code"], last["model"], last["instance"]) == ("InvalidArgument", "failing", "failing_0_0")
    assert set(last["phases"]) <= set(PHASES)


def test_a_failure_has_a_line_in_the_log_with_what_connects_it(server: Server) -> None:
    start = len(server.log)
    over_http(server, "failing", body("upside down", -1 - ROW[0]), traceparent=CONTEXT)
    assert server.read_log(b"a request to model 'failing'", start=start)
    last = requests_of(server, "failing")["failed"][0]
    line = next(each for each in server.log[start:].decode().splitlines() if "a request to model 'failing'" in each)
    assert re.search(
        f"version 1 failed \\(stage execute, request_id upside down, trace_id {CONTEXT.split('-')[1]}, "
        f"instance failing_0_0, worker_pid {last['pid']}, batch [0-9]+\\): .*the picture is upside down",
        line,
    ), line


def test_the_slowest_come_first_and_can_be_limited(server: Server, stub: Any) -> None:
    over_grpc(stub, message("punctual"))
    over_http(server, "alone", body("x"))
    listed = requests_of(server)["slowest"]
    times = [each["total_ns"] for each in listed]
    assert times == sorted(times, reverse=True)
    assert {each["model"] for each in listed} >= {"alone", "punctual"}
    assert {each["asker"] for each in listed} >= {"front end"}
    assert len(requests_of(server, limit=1)["slowest"]) == 1
    assert [each["model"] for each in requests_of(server, "punctual")["slowest"]].count("punctual") > 0


@pytest.mark.parametrize(
    ("query", "status"), [("limit=0", 400), ("limit=1e3", 400), ("limit=%D9%A3", 400), ("model=nobody", 404)]
)
def test_wrong_questions_are_refused(server: Server, query: str, status: int) -> None:
    assert fetch(server.http_port, f"/v2/debug/requests?{query}").status == status


def test_only_administrators_see_requests_of_others(server: Server) -> None:
    reply = fetch(server.http_port, "/v2/debug/requests", headers={"X-Forwarded-For": "192.0.2.1"})
    assert reply.status == 403


def test_a_successor_of_the_batcher_begins_anew(server: Server) -> None:
    for request_id in ("long before", "before"):
        over_http(server, "alone", body(request_id))
    (batcher,) = [pid for pid in await_standby(server) if title(pid) == "shoal batcher"]
    os.kill(batcher, signal.SIGKILL)
    over_http(server, "alone", body("between"))  # the successor is not told that this one wants its times
    check(over_http(server, "alone", body("after")), "receive", "parse")
    ids = {each["id"] for each in requests_of(server, "alone")["slowest"]}
    assert "after" in ids
    assert ids <= {"between", "after"}

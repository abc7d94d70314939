"""`--log-format json`, as the unit and the image have it: every line is an object, those of models' prints, too; and
`--log-access`, a line for each request that a front end has answered."""

import http.client
import json
import os
import signal
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import fetch, tensors
from tests.end_to_end.lifecycle import write_model
from tests.end_to_end.server import DEADLINE_S, Server, serving, worker_of
from tests.end_to_end.traffic import MODEL

TALKER = """
import sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        if pb_utils.get_input_tensor_by_name(requests[0], "A").as_numpy()[0, 0] == 0:
            open({fifo!r}).read()
        print("printed \\x1b[2J by a model")
        print("complained", file=sys.stderr)
        pb_utils.Logger.log_warn("by Triton's logger")
        raise ValueError("as it was told")
"""
BAD = b"GET /what HTTP/1.1\r\nHost: a\r\nBad\x1b[31mHeader: 1\r\n\r\n"
#: Refused by gunicorn with the request as far as it was read, which gunicorn hands to its access log.
BAD_LENGTH = b"POST /what HTTP/1.1\r\nHost: a\r\nContent-Length: many\r\n\r\n"
#: Each path has its place in the log, in which no other request is.
INFER, GENERATE, READY = [f"/v2/models/steady/{verb}" for verb in ("infer", "generate", "ready")]
TRACED = "/v2/models/steady/versions/1/infer"
#: A client's trace, W3C's example.
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE_PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


class Log(NamedTuple):
    """What a server has written, and the pid of its worker that has died."""

    lines: list[dict[str, Any]]
    worker: int

    def of(self, path: str) -> list[tuple[Any, ...]]:
        """Process, method, status and bytes of the requests for a path, in their order."""
        keys = ("process", "method", "status", "bytes")
        return [tuple(line[key] for key in keys) for line in self.lines if line.get("path") == path]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    repository = tmp_path_factory.mktemp("repository")
    fifo = tmp_path_factory.mktemp("fifo") / "fifo"
    os.mkfifo(fifo)
    write_model(repository, "steady", 1)
    talker = write_model(repository, "talker", 1, config=MODEL.replace("identity", "python"))
    (talker / "1" / "model.py").write_text(TALKER.format(fifo=str(fifo)))
    flags = ("--log-verbose=1", "--log-access", "--grpc-port=0", "--http-process-count=1", "--grpc-process-count=1")
    with serving(repository, *flags, environment={"SHOAL_LOG_FORMAT": "json"}) as server:
        speak_http(server)
        speak_grpc(server)
        hang_up(server, fifo)
        hang_up(server, fifo, b"TE: trailers\r\n")
        assert fetch(server.http_port, "/v2/models/talker/infer", {**asking(1, 2, 3, 4), "id": "six"}).status == 500
        for refused in (BAD, BAD_LENGTH) * 10:
            with socket.create_connection(("127.0.0.1", server.http_port), DEADLINE_S) as connection:
                connection.sendall(refused)
                assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
        assert server.read_log(b"of which there is no line")
        worker = worker_of(server, "talker_0_0")
        kill_while_it_executes(server, worker, fifo)
        assert server.read_log(b"is up again")
        assert server.stop() == 0
    assert b"\x1b" not in server.log
    return Log([json.loads(line) for line in server.log.splitlines()], worker)


def asking(*values: int) -> dict[str, Any]:
    return {"inputs": [{"name": "A", "shape": [1, 4], "datatype": "INT32", "data": list(values)}]}


def speak_http(server: Server) -> None:
    """Requests that a lane parses, recognises, renders, streams and refuses, and some that take the road."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    body = json.dumps(asking(1, 2, 3, 4))
    for path, sent, fields in (
        *[(INFER, body, {})] * 4,
        (INFER, body, {"TE": "trailers"}),
        (GENERATE, '{"A": [1, 2, 3, 4]}', {}),
        (f"{GENERATE}_stream", '{"A": [1, 2, 3, 4]}', {}),
        ("/v2/models/none/infer?key=secret", body, {}),
        ("/v2/repository/index", "", {}),
        ("/v2/health/live", None, {}),
        ("/v2/models/%1b[2J/infer" + "x" * 300, None, {}),
        (READY, None, {"TraceParent": TRACE_PARENT}),
        (READY, None, {"traceparent": TRACE_PARENT, "TE": "trailers"}),
        (READY, None, {"traceparent": f"ff{TRACE_PARENT[2:]}"}),
        *[(TRACED, body, {"traceparent": TRACE_PARENT})] * 4,
    ):
        connection.request("GET" if sent is None else "POST", path, sent, fields)
        connection.getresponse().read()
    connection.close()


def speak_grpc(server: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        inputs = tensors({"A": np.ones((1, 4), np.int32)}, api=tritonclient.grpc)
        for _ in range(4):
            client.infer("steady", inputs)
        with pytest.raises(InferenceServerException):
            client.infer("none", inputs)
        client.get_model_repository_index()
        for _ in range(4):
            client.is_model_ready("steady", headers={"traceparent": TRACE_PARENT})
        client.start_stream(lambda result, error: None, headers={"traceparent": TRACE_PARENT})
        client.async_stream_infer("steady", inputs)
        client.stop_stream()


def hang_up(server: Server, fifo: Path, fields: bytes = b"") -> None:
    """A client that resets its connection while its model executes."""
    start, body = len(server.log), json.dumps(asking(0, 0, 0, 0)).encode()
    connection = socket.create_connection(("127.0.0.1", server.http_port), DEADLINE_S)
    connection.sendall(b"POST /v2/models/talker/infer HTTP/1.1\r\nHost: x\r\n" + fields)
    connection.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    released = os.open(fifo, os.O_WRONLY)  # returns once the model has the request, which reads until this is closed
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    assert server.read_log(b"/v2/models/talker/infer by 127.0.0.1: ", start=start)
    os.close(released)
    assert server.read_log(b"complained", start=start)  # the model has closed its end


def kill_while_it_executes(server: Server, worker: int, fifo: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        body = {**asking(0, 0, 0, 0), "id": "seven"}
        answer = threads.submit(fetch, server.http_port, "/v2/models/talker/infer", body)
        released = os.open(fifo, os.O_WRONLY)
        os.kill(worker, signal.SIGKILL)
        assert answer.result(DEADLINE_S).status == 500
        os.close(released)


def test_every_line_is_an_object(log: Log) -> None:
    for line in log.lines:
        assert {"time", "level", "process", "pid", "message"} <= line.keys()
    of = {line["message"]: line for line in log.lines}
    printed = of["printed \x1b[2J by a model"]
    assert (printed["model"], printed["version"], printed["instance"]) == ("talker", "1", "talker_0_0")
    assert (printed["pid"], printed["stream"], printed["process"]) == (log.worker, "stdout", "worker")
    assert of["complained"]["stream"] == "stderr"
    assert of["by Triton's logger"]["instance"] == "talker_0_0"
    assert {"supervisor", "worker", "road"} <= {line["process"] for line in log.lines}
    refused = [line for line in log.lines if line["message"].startswith("Invalid request")]
    assert 0 < len(refused) < 20
    assert log.of("/what") == [], "a message that is no HTTP has no line of the access log"


def test_a_request_on_a_lane_has_a_line(log: Log) -> None:
    *lane, road = log.of(INFER)
    assert [each[:3] for each in lane] == [("http", "POST", 200)] * 4
    assert len({each[3] for each in lane}) == 1, "recognised or not, an answer has the same bytes"
    assert road[:3] == ("road", "POST", 200)
    assert [each[:3] for each in log.of(GENERATE)] == [("http", "POST", 200)]
    [(process, _, status, nbytes)] = log.of(f"{GENERATE}_stream")
    assert (process, status) == ("http", 200)
    assert nbytes > len('data: {"B":[1,2,3,4]}')
    assert [each[:3] for each in log.of("/v2/repository/index")] == [("road", "POST", 200)]
    assert [each[:3] for each in log.of("/v2/health/live")] == [("http", "GET", 200)]
    left = [each[:3] for each in log.of("/v2/models/talker/infer")]
    assert left == [("http", "POST", 499), ("road", "POST", 499), ("http", "POST", 500), ("http", "POST", 500)]


def test_a_line_has_no_query_and_no_bytes_of_a_client(log: Log) -> None:
    assert [each[2] for each in log.of("/v2/models/none/infer")] == [404]
    assert "secret" not in json.dumps(log.lines)
    [long] = [line for line in log.lines if line.get("path", "").startswith("/v2/models/%1b[2J/infer")]
    assert len(long["path"]) == 200
    line = next(line for line in log.lines if line.get("path") == INFER)
    assert line["client"] == "127.0.0.1"
    assert line["ms"] > 0
    assert line["message"].startswith(
        f"access: POST {INFER} by 127.0.0.1: 200, {line['bytes']} bytes, {line['ms']:.1f}"
    )


def test_a_call_of_grpc_has_a_line(log: Log) -> None:
    service = "/inference.GRPCInferenceService"
    *answered, refused = log.of(f"{service}/ModelInfer")
    assert [each[:3] for each in answered] == [("grpc", "gRPC", 0)] * 4
    assert all(nbytes > 0 for *_, nbytes in answered)
    assert refused == ("grpc", "gRPC", 5, None)
    [(*index, nbytes)] = log.of(f"{service}/RepositoryIndex")  # which the road answers
    assert (index, nbytes > len("steady" + "talker")) == (["grpc", "gRPC", 0], True)
    assert log.of(f"{service}/ModelStreamInfer") == [("grpc", "gRPC", 0, None)]


def test_a_request_of_a_trace_has_its_id(log: Log) -> None:
    def traces(path: str) -> list[tuple[str, str | None]]:
        lines = [line for line in log.lines if line.get("path") == path]
        assert all(line["message"].endswith(f", trace_id {line['trace_id']}") for line in lines if "trace_id" in line)
        return [(line["process"], line.get("trace_id")) for line in lines]

    assert traces(READY) == [("http", TRACE_ID), ("road", TRACE_ID), ("http", None)]
    assert traces(TRACED) == [("http", TRACE_ID)] * 4
    assert {trace for _, trace in traces(INFER)} == {None}
    service = "/inference.GRPCInferenceService"
    assert traces(f"{service}/ModelReady") == [("grpc", TRACE_ID)] * 4
    assert traces(f"{service}/ModelStreamInfer") == [("grpc", TRACE_ID)]
    assert {trace for _, trace in traces(f"{service}/ModelInfer")} == {None}


def test_an_error_names_stage_model_instance_process_signal_and_request(log: Log) -> None:
    found = {each["process"]: each for each in log.lines if each["level"] == "error" and "stage" in each}
    instance = {"stage": "execute", "model": "talker", "version": "1", "instance": "talker_0_0"}
    died = {**instance, "worker_pid": log.worker, "signal": "SIGKILL"}
    assert found["worker"].items() >= {**instance, "pid": log.worker, "request_id": "six"}.items()
    assert "as it was told" in found["worker"]["message"]
    assert found["batcher"].items() >= {**died, "request_id": "seven"}.items()
    assert "was killed by signal 9 (SIGKILL) while executing" in found["batcher"]["message"]
    assert found["supervisor"].items() >= died.items()

"""Traces of a real server: on the lane and on the road, in files and as spans, set by Triton's own client."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http as triton

from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.raw_client import Client, post
from tests.end_to_end.repositories import config_text, python_model
from tests.end_to_end.server import (
    DEADLINE_S,
    SAMPLES,
    Server,
    descendants,
    only,
    serving_to_the_end,
    title,
    wait_until,
)
from tests.tracer.receiver import receiving

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()
NAMES = [
    "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END",
]  # fmt: skip
ROW = np.arange(16, dtype=np.int32).reshape(1, 16)
#: Compressed requests take the road.
WAYS: dict[str, dict[str, Any]] = {"lane": {}, "road": {"request_compression_algorithm": "gzip"}}
ON, OFF = {"trace_level": ["TIMESTAMPS"]}, {"trace_level": ["OFF"]}
#: Models of the server of most tests; `slow` and `large` stand still at a gate until a test opens it.
MODELS = "simple", "mlp", "slow", "large"
GATED_CONFIG = config_text("python", "IN INT32 -1", "OUT INT32 -1", count=1)
GATED = python_model("""
    def initialize(self, args):
        self.path = args["model_repository"]

    def execute(self, requests):
        open(f"{self.path}/begun", "w").close()
        open(f"{self.path}/gate").close()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
""")


def ask(client: triton.InferenceServerClient, request_id: str, *, binary: bool = True, **more: Any) -> None:
    tensors = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(ROW, binary_data=binary)
    result = client.infer("simple", tensors, request_id=request_id, **more)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROW + ROW)


def client_of(server: Server) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S)


def traces(path: Path) -> dict[str, list[dict[str, Any]]]:
    """What is said of each request, by its id; heads are not."""
    found = json.loads(path.read_text())
    ids = {each["id"]: each["request_id"] for each in found if "model_name" in each}
    by_request: dict[str, list[dict[str, Any]]] = {request_id: [] for request_id in ids.values()}
    for each in found:
        if "model_name" not in each:
            by_request[ids[each["id"]]].append(each)
    return by_request


def check_points(said: list[dict[str, Any]]) -> None:
    points = [each["timestamps"][0] for each in said if "timestamps" in each]
    assert [point["name"] for point in points] == NAMES
    times = [point["ns"] for point in points]
    assert times == sorted(times)
    assert times[0] < times[4] < times[-1]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server writes; with an index behind the name, where it is told to."""
    return tmp_path_factory.mktemp("traces") / "t"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of the models that have gates."""
    repository = tmp_path_factory.mktemp("models")
    for name in ("slow", "large"):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(GATED_CONFIG)
        (repository / name / "1" / "model.py").write_text(GATED)
        Gate(repository / name / "gate")
    return repository


@pytest.fixture(scope="module")
def running(file: Path, gated: Path) -> Iterator[Server]:
    """Every request would be traced, if something were."""
    flags = f"--trace-config=triton,file={file}", "--trace-config=rate=1", "--grpc-port=0"
    with serving_to_the_end([SAMPLES, gated], *only(*MODELS), *flags) as server:
        yield server
    assert b"Traceback" not in server.log


@pytest.fixture
def server(running: Server, file: Path) -> Iterator[Server]:
    """It is set as at its start again when the test is over, and has written nothing."""
    yield running
    client = client_of(running)
    for model in (*MODELS, ""):
        client.update_trace_settings(
            model, dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
        )
    wait_until(lambda: not tracers(running))  # the last one ends soon
    for each in file.parent.iterdir():
        each.unlink()


@pytest.mark.parametrize("way", WAYS)
def test_every_request_has_all_points_in_order(server: Server, file: Path, way: str) -> None:
    client = client_of(server)
    ask(client, "before", **WAYS[way])
    client.update_trace_settings(settings=ON)
    for number in range(20):
        ask(client, f"{number}", binary=number % 3 > 0, **WAYS[way])
    with pytest.raises(triton.InferenceServerException):
        client.infer("simple", [triton.InferInput("INPUT0", [1, 16], "INT32").set_data_from_numpy(ROW)])
    client.update_trace_settings(settings=OFF)
    ask(client, "after", **WAYS[way])
    found = traces(file)
    assert list(found) == [f"{number}" for number in range(20)]
    for said in found.values():
        check_points(said)


@pytest.mark.parametrize("way", WAYS)
def test_tensors(server: Server, file: Path, way: str) -> None:
    client = client_of(server)
    client.update_trace_settings(settings={"trace_level": ["TENSORS", "TIMESTAMPS"]})
    for request_id in "ab":  # the second one's form is known
        ask(client, request_id, **WAYS[way])
    client.update_trace_settings(settings=OFF)
    row = ",".join(map(str, range(16)))
    for said in traces(file).values():
        check_points(said)
        tensors = [(each["activity"], each["tensor"]) for each in said if "tensor" in each]
        described = {"shape": "1,16", "dtype": "INT32"}
        assert tensors[:3] == [
            ("TENSOR_QUEUE_INPUT", {"name": "INPUT0", "data": row, **described}),
            ("TENSOR_QUEUE_INPUT", {"name": "INPUT1", "data": row, **described}),
            ("TENSOR_BACKEND_OUTPUT", {"name": "OUTPUT0", "data": ",".join(map(str, range(0, 32, 2))), **described}),
        ]


def test_settings_by_tritons_client(server: Server, file: Path) -> None:
    client = client_of(server)
    default = {
        "trace_level": ["OFF"], "trace_rate": "1", "trace_count": "-1", "log_frequency": "0",
        "trace_file": str(file), "trace_mode": "triton",
    }  # fmt: skip
    assert client.get_trace_settings() == client.get_trace_settings("simple") == default
    of_simple = ON | {"trace_count": "3", "log_frequency": "2"}
    assert client.update_trace_settings("simple", of_simple) == default | of_simple
    assert client.get_trace_settings() == client.get_trace_settings("mlp") == default
    assert client.update_trace_settings(settings={"trace_rate": "2"}) == default | {"trace_rate": "2"}
    assert client.get_trace_settings("simple") == default | of_simple | {"trace_rate": "2"}
    client.update_trace_settings("simple", {"trace_rate": "1"})
    for number in range(5):
        ask(client, f"{number}")
    left = dict.fromkeys(("trace_level", "trace_count", "log_frequency"))
    assert client.update_trace_settings("simple", left | {"trace_rate": None}) == default | {"trace_rate": "2"}
    assert list(traces(file.with_suffix(".0"))) == ["0", "1"]
    assert list(traces(file.with_suffix(".1"))) == ["2"]
    assert not file.exists()
    with pytest.raises(triton.InferenceServerException, match="Request for unknown model : nobody"):
        client.update_trace_settings("nobody", ON)


def test_a_trace_count_that_is_reached_is_0_for_all_front_ends(server: Server, file: Path) -> None:
    client = client_of(server)
    client.update_trace_settings(settings=ON | {"trace_count": "2"})
    for number in range(4):
        ask(client, f"{number}", **WAYS["road" if number % 2 else "lane"])
    # The tracer tells the supervisor a moment after the last response.
    wait_until(lambda: client.get_trace_settings()["trace_count"] == "0")
    assert len(traces(file.with_suffix(".0"))) == 2


def tracers(server: Server) -> list[int]:
    return [pid for pid in descendants(server.process.pid) if title(pid) == "shoal tracer"]


def test_the_tracer_comes_goes_and_is_replaced_and_no_request_notices(server: Server, file: Path) -> None:
    client = client_of(server)
    assert tracers(server) == []
    client.update_trace_settings(settings=ON)
    (first,) = tracers(server)
    ask(client, "a")
    os.kill(first, signal.SIGKILL)
    for number in range(50):
        ask(client, f"{number}")
    assert server.read_log(b"the tracer (pid %d) was killed by signal 9 (SIGKILL); it is started again" % first)
    while not tracers(server):
        ask(client, "meanwhile")
    (second,) = tracers(server)
    client.update_trace_settings("mlp", OFF)
    gone = os.pidfd_open(second)
    client.update_trace_settings(settings=OFF)
    assert select.select([gone], [], [], DEADLINE_S)[0]
    os.close(gone)
    assert tracers(server) == []
    found = traces(file)
    for number in range(50):
        check_points(found[f"{number}"])


def test_a_client_that_vanishes_leaves_what_was_seen_of_its_request(server: Server, file: Path, gated: Path) -> None:
    """The first request is executed, the second one's client goes while it waits."""
    tensor = {"name": "IN", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4]}
    request = post("slow", json.dumps({"inputs": [tensor]}).encode())
    client_of(server).update_trace_settings(settings=ON | {"log_frequency": "1"})
    with Client(server) as first, Client(server) as second:
        first.send(request)
        wait_until((gated / "slow" / "begun").exists)
        second.send(request)
        wait_for_pending(server, "slow", 1)
        second.reset()
        wait_until(file.with_suffix(".0").exists)
        with Gate(gated / "slow" / "gate").opened():
            assert first.reply().status == 200
    client_of(server).update_trace_settings(settings=OFF)
    points = [
        [each["timestamps"][0]["name"] for each in json.loads(file.with_suffix(number).read_text())[1:]]
        for number in (".0", ".1")
    ]
    assert points == [NAMES[:3], NAMES]


def test_large_requests_outlive_the_tracing_that_they_began_under(server: Server, gated: Path) -> None:
    array = np.arange(16384, dtype=np.int32)

    def asked(module: Any, port: int) -> Any:
        with module.InferenceServerClient(f"localhost:{port}") as client:
            tensor = module.InferInput("IN", [len(array)], "INT32")
            tensor.set_data_from_numpy(array)
            return client.infer("large", [tensor]).as_numpy("OUT")

    with triton.InferenceServerClient(server.url) as client, ThreadPoolExecutor(2) as pool:
        client.update_trace_settings(settings={"trace_level": ["TENSORS"]})

        def asked_by_both() -> list[Future[Any]]:
            return [
                pool.submit(asked, *each)
                for each in ((triton, server.http_port), (tritonclient.grpc, server.grpc_port))
            ]

        under_way = asked_by_both()
        wait_until((gated / "large" / "begun").exists)
        wait_for_pending(server, "large", 1)
        client.update_trace_settings(settings=OFF)
        with Gate(gated / "large" / "gate").opened():
            for answer in (*under_way, *asked_by_both()):
                np.testing.assert_array_equal(answer.result(DEADLINE_S), array)


def test_spans_reach_a_receiver_and_a_context_forces_them(tmp_path: Path) -> None:
    with receiving() as receiver:
        said = [
            "mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={receiver.url}",
            "opentelemetry,bsp_schedule_delay=50", "opentelemetry,resource=team=b",
        ]  # fmt: skip
        flags = "--grpc-port=0", *only("simple"), *[f"--trace-config={each}" for each in said]
        with serving_to_the_end(SAMPLES, *flags) as server:
            client = client_of(server)
            for number, way in enumerate(WAYS.values(), 1):
                ask(client, "untraced", **way)
                context = f"00-4bf92f3577b34da6a3ce929d0e0e473{number}-00f067aa0ba902b7-01"
                ask(client, f"{number}", headers={"traceparent": context}, **way)
                # Each is waited for, so that the next one's are behind.
                root, model, compute = receiver.spans(3 * number)[-3:]
                assert (root.name, root.parent_id) == ("InferRequest", "00f067aa0ba902b7")
                assert {span.trace_id for span in (root, model, compute)} == {context[3:35]}
                assert (model.name, model.attributes["triton.request_id"]) == ("simple", f"{number}")
                events = {name: time_ns for span in (root, model, compute) for name, time_ns in span.events}
                assert [events[name] for name in NAMES] == sorted(events.values())
                assert root.resource["team"] == "b"
            # Calls of one connection that are known by their bytes have their own contexts, too.
            trace_ids = [f"{number:032x}" for number in range(1, 9)]
            with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as of_grpc:
                inputs = [tritonclient.grpc.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in (0, 1)]
                for each in inputs:
                    each.set_data_from_numpy(np.ones((1, 16), np.int32))
                for trace_id in trace_ids:
                    of_grpc.infer("simple", inputs, headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"})
            spans = receiver.spans(3 * (len(WAYS) + len(trace_ids)))[3 * len(WAYS) :]
            assert Counter(span.trace_id for span in spans) == dict.fromkeys(trace_ids, 3)
            assert client.get_trace_settings() == {
                "trace_level": ["TIMESTAMPS"], "trace_rate": "0", "trace_count": "-1", "trace_mode": "opentelemetry",
                "url": receiver.url, "resource": "team=b", "bsp_max_queue_size": "2048", "bsp_schedule_delay": "50",
                "bsp_max_export_batch_size": "512",
            }  # fmt: skip


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    command, code, output = re.findall(r"```(?:sh|python|text)\n(.*?)```", DOCUMENT, re.DOTALL)[:3]
    words = shlex.split(command.replace("\\\n", " ").replace("trace.json", str(tmp_path / "trace.json")))
    assert words[:4] == ["shoal", "serve", "--model-repository", "model_repository"]
    with serving_to_the_end(SAMPLES, *words[4:], *only("simple_identity")) as server:
        code = code.replace("localhost:8000", server.url)
        printed = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert printed.stdout == output

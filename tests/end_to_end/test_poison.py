"""A model that ends its process on a certain input and takes long to load, among clients of every kind: how many
instances one client's poison costs, and that all others are answered."""

import http.client
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from shoal import Client
from shoal.errors import ShoalError
from tests.end_to_end.asking import infer
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, samples, serving_to_the_end, title
from tests.end_to_end.torchserve_models import add_handler

POISON = -7
MODEL = python_model("""
    def initialize(self, args):
        open({gate!r}).close()  # a load that takes as long as the test says

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x[0, 0] == {poison}:
                os._exit(3)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return responses
""")
CONFIG = config_text("python", "X INT32 2000", "Y INT32 2000", "dynamic_batching { }", rows=8, count=1)
HANDLER = """
import os


def handle(data, context):
    if data is not None and any(bytes(row["body"]) == b"poison" for row in data):
        os._exit(3)
    return None if data is None else ["right"] * len(data)
"""
RESTARTS = 'shoal_instance_restarts_total{device="CPU",model="brittle",model_instance="brittle_0_0",version="1"}'
LABELS = '{model="brittle",version="1"}'


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """The gate in front of the model's loads."""
    return Gate(tmp_path_factory.mktemp("gates") / "load")


@pytest.fixture(scope="module")
def server(gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "brittle", CONFIG, MODEL.format(gate=str(gate.path), poison=POISON))
    add_handler(repository, "frail", HANDLER)
    socket = tmp_path_factory.mktemp("socket") / "shoal"
    gate.open()
    with serving_to_the_end(
        repository,
        f"--client-socket={socket}",
        "--allow-grpc=true",
        "--poison-refusal-secs=86400",
        "--allow-torchserve",
        "--allow-torchserve-grpc=false",
        *[f"--torchserve-{api}-port=0" for api in ("inference", "management", "metrics")],
    ) as server:
        yield server


def tensor(number: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
    return np.full((1, 2000), number, np.int32)


def ask(server: Server, number: int) -> str:
    """What came of a request over HTTP: "right", or its status."""
    try:
        output = infer(server, "brittle", {"X": tensor(number)})["Y"]
    except InferenceServerException as error:
        return str(error.status())
    return "right" if (output == number).all() else "wrong"


def test_one_client_with_poison_costs_two_instances_and_no_other_client_an_answer(server: Server, gate: Gate) -> None:
    assert ask(server, 1) == "right"
    with ThreadPoolExecutor(20) as pool:
        with gate.closed():
            assert ask(server, POISON) == "500"
            others = [pool.submit(ask, server, number) for number in range(10)]
            poison = [pool.submit(ask, server, POISON) for _ in range(6)]
            wait_for_pending(server, "brittle", 16)
        assert [each.result() for each in others] == ["right"] * 10
        assert sorted(each.result() for each in poison) == ["422"] * 5 + ["500"]
        outcomes = list(pool.map(lambda number: ask(server, number % 2 or POISON), range(60)))
    assert outcomes == ["422", "right"] * 30
    figures = samples(server.metrics_port)
    assert figures[RESTARTS] == 2
    assert figures[f"shoal_poison_found_total{LABELS}"] == 1
    assert figures[f"shoal_poison_refused_total{LABELS}"] == 35
    assert figures['nv_inference_request_failure{model="brittle",reason="REJECTED",version="1"}'] == 35
    said = rb"model 'brittle' version 1: a request has ended 2 instances \(X INT32 \[1,2000\]; digest [0-9a-f]{32}\)"
    assert server.read_log(b"a request has ended 2 instances")
    assert re.search(said, server.log)


def test_the_refusal_says_what_is_wrong_over_http_and_grpc(server: Server) -> None:
    with pytest.raises(InferenceServerException) as refused:
        infer(server, "brittle", {"X": tensor(POISON)}, request_id="mine")
    assert re.fullmatch(
        r"\[request id: mine\] model 'brittle' version 1 does not execute this request: equal ones have ended 2 of its "
        r"instances\. It is refused for another [0-9.]+ s\. The server's log has its shapes; change the request, or "
        r"mend the model and load it again",
        str(refused.value.message()),
    )
    with pytest.raises(InferenceServerException) as refused:
        infer(server, "brittle", {"X": tensor(POISON)}, api=tritonclient.grpc)
    assert refused.value.status() == "StatusCode.FAILED_PRECONDITION"
    assert samples(server.metrics_port)[RESTARTS] == 2


def test_a_successor_of_the_batcher_refuses_it_too(server: Server) -> None:
    batcher = next(pid for pid in descendants(server.process.pid) if title(pid) == "shoal batcher")
    os.kill(batcher, signal.SIGKILL)
    assert server.read_log(b"the batcher (pid %d) was killed by signal 9" % batcher)
    assert [ask(server, number) for number in (2, POISON, 3)] == ["right", "422", "right"]
    assert samples(server.metrics_port)[RESTARTS] == 2


def test_a_client_in_shared_memory_costs_two_instances_of_its_own(server: Server) -> None:
    with Client(server.client_socket) as client:
        outcomes = []
        for _ in range(6):
            with pytest.raises(ShoalError) as refused:
                client.infer("brittle", {"X": tensor(POISON)})
            outcomes.append(refused.value.http_status)
        assert (client.infer("brittle", {"X": tensor(5)})["Y"] == 5).all()
    assert outcomes == [500, 500, 422, 422, 422, 422]
    assert samples(server.metrics_port)[RESTARTS] == 4


def predict(server: Server, body: bytes, number: int) -> int:
    """The status of a prediction by TorchServe's protocol, with headers that no other has."""
    port = server.port_of("TorchServe Inference")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    headers = {
        "Content-Type": "application/octet-stream",
        "X-Request-Id": f"mine-{number}",
        "Traceparent": f"00-{number:032x}-{number:016x}-01",
        "User-Agent": f"client/{number}",
    }
    connection.request("POST", "/predictions/frail", body, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_a_handler_of_torchserves_costs_two_workers(server: Server) -> None:
    """Each request has an id, a trace and a caller of its own."""
    restarts = 'shoal_instance_restarts_total{device="CPU",model="frail",model_instance="frail_0_0",version="1"}'
    outcomes = [predict(server, b"poison", number) for number in range(1, 7)]
    assert outcomes[2:] == [422] * 4, outcomes
    assert all(status >= 500 for status in outcomes[:2]), outcomes
    assert [predict(server, b"other", 7), predict(server, b"poison", 8)] == [200, 422]
    figures = samples(server.metrics_port)
    assert figures[restarts] == 2
    assert figures['shoal_poison_found_total{model="frail",version="1"}'] == 1
    assert figures['shoal_poison_refused_total{model="frail",version="1"}'] == 5

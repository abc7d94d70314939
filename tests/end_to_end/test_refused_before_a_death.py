"""A worker dies, and the batcher right after it has refused the worker's request: its successor is told of the worker's
death, too, while the client has had its answer, and has another request in the same memory."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.fault import VARIABLE
from tests.end_to_end.asking import fetch
from tests.end_to_end.gate import Gate
from tests.end_to_end.patient import Patient
from tests.end_to_end.raw_client import Client as RawClient
from tests.end_to_end.raw_client import post
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import serving_to_the_end, wait_until

#: A negative number ends the instance, as soon as the test says.
MODEL = python_model("""
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        if x[0] < 0:
            open("{path}/begun", "w").close()
            open("{path}/gate").close()
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
""")
CONFIG = config_text("python", "X INT32 1", "Y INT32 1", count=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the model says that it has begun, and waits."""
    return tmp_path


@pytest.fixture
def patient(path: Path) -> Iterator[Patient]:
    repository, faults = path / "models", path / "faults"
    faults.mkdir()
    add_model(repository, "brittle", CONFIG, MODEL.format(path=path))
    flags = "--http-process-count=1", "--poison-refusal-secs=3600"
    with serving_to_the_end(repository, *flags, environment={VARIABLE: str(faults)}) as server:
        yield Patient(server, faults, "")


def request(id_: str, number: int) -> bytes:
    data = f'{{"id":"{id_}","inputs":[{{"name":"X","shape":[1],"datatype":"INT32","data":[{number}]}}]}}'
    return post("brittle", data.encode())


def test_the_successor_does_not_take_the_next_request_for_the_refused_one(patient: Patient, path: Path) -> None:
    gate = Gate(path / "gate")
    with RawClient(patient.server) as client, ThreadPoolExecutor(1) as pool:
        refused = pool.submit(client.ask, request("refused", -1))
        wait_until((path / "begun").exists, patient.server.log.decode)
        patient.stop_at("batcher.rung")
        with gate.opened():
            assert refused.result().status == 500
        batcher = patient.stopped("shoal batcher")
        client.send(request("another", 1))
        for _ in range(2):  # the lane has read the request by then, and put it where the refused one was
            patient.get_live()
        os.kill(batcher, signal.SIGKILL)
        assert client.reply().status == 200
    failed = fetch(patient.server.http_port, "/v2/debug/requests?model=brittle").json["failed"]
    assert [each["id"] for each in failed] == []
    assert b"request_id another" not in patient.server.log

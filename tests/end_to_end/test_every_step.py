"""A process is killed right after each step of a request's life, once: what the client gets is what was promised.

One server; before each case a file is put where the fault points look for it (shoal/fault.py), so that exactly one
process dies, exactly there, while exactly one request is on its way.
"""

import http.client
import json
import os
import signal
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

import pytest

from shoal import Client, errors
from shoal.fault import STEPS, VARIABLE
from tests.end_to_end.gate import Gate
from tests.end_to_end.server import DEADLINE_S, Server, descendants, serving, title

#: Executed twice if need be, or once and never again. Two instances each: the other one goes on.
MODELS = {"again": "true", "once": "false"}
#: Steps of a worker at which the request is being executed: it fails where it must not be executed a second time.
EXECUTING = {"begun", "opened", "written", "pushed"}
ROW = [[7, 2, 3, 4]]
#: Steps that only a batcher that takes a dead one's place goes through.
TAKE_OVER = {"introduced", "resumed"}
#: Steps of a batcher before a worker has its batch.
BEFORE_EXECUTION = {"accepted", "dispatched"}
#: A decoupled model that answers the requests of its batch one after the other while it executes them, and writes down
#: which it executes. Behind the second answer it stands still until its gate is opened.
PARTS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for position, request in enumerate(requests):
            if position == 2:
                open("{path}/gate").close()
            values = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            with open("{path}/executed", "a") as file:
                file.write(f"{{values[0, 0]}}\\n")
            response = pb_utils.InferenceResponse([pb_utils.Tensor("B", values)])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PARTS_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "A" data_type: TYPE_INT32 dims: [ 4 ] }
output { name: "B" data_type: TYPE_INT32 dims: [ 4 ] }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 600000000 }
model_transaction_policy { decoupled: true }
"""


class Patient:
    """A server whose processes look for faults in a directory."""

    def __init__(self, server: Server, faults: Path, socket: str) -> None:
        self.server = server
        self.faults = faults
        self.socket = socket
        self.number = 0
        # Of those that shall have died: how many; up to where the log has told of them.
        self.num_armed = self.told = 0

    def arm(self, step: str) -> None:
        """The next process that comes to this step dies there."""
        self.num_armed += 1
        self._lay(step, "kill")

    def stop_at(self, step: str) -> None:
        """The next process that comes to this step stands still there, until it is killed."""
        self.num_armed += 1
        self._lay(step, "stop")

    def _lay(self, step: str, action: str) -> None:
        self.get_live()  # the lane is past what the last request left it to do
        # Complete before it has its name: a process may look at any moment.
        (self.faults / "next").write_text(action)
        (self.faults / "next").rename(self.faults / step)

    def stopped(self, kind: str) -> int:
        """The process whose title begins so and that stands still, as soon as there is one."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            for pid in descendants(self.server.process.pid):
                if title(pid).startswith(kind) and Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] == "T":
                    return pid
        raise AssertionError(f"no {kind} stands still")

    def get_live(self) -> None:
        """One request that goes no further than the lane."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=DEADLINE_S)
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().status == 200
        connection.close()

    def await_deaths(self) -> None:
        """Return when the log, ours or gunicorn's in it, has said of each process that it died; no fault is left."""
        for _ in range(self.num_armed):
            assert self.server.read_log(b"SIGKILL", start=self.told)
            self.told = self.server.log.index(b"SIGKILL", self.told) + 1
        self.num_armed = 0
        assert not list(self.faults.iterdir())

    def ask(self, model: str, *, by_road: bool = False) -> tuple[int, bytes]:
        """One request over a connection of its own; the status and the body, which for a 200 has been verified."""
        self.number += 1
        tensor = struct.pack("<4i", self.number, 2, 3, 4)
        request = {"inputs": [{"name": "A", "shape": [1, 4], "datatype": "INT32", "data": [self.number, 2, 3, 4]}]}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=DEADLINE_S)
        try:
            # The lane hands over whatever comes in chunks.
            body = json.dumps(request).encode()
            connection.request("POST", f"/v2/models/{model}/infer", iter([body]) if by_road else body)
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        if answer.status == 200:
            (output,) = json.loads(said)["outputs"]
            assert struct.pack("<4i", *output["data"]) == tensor
        return answer.status, said


class Parts:
    """The model whose batches are answered one request after the other, and clients that make up a batch of four."""

    def __init__(self, patient: Patient, path: Path) -> None:
        self._patient = patient
        self._gate, self._executed = Gate(path / "gate"), path / "executed"
        self._number = 0

    def ask_four(self, *steps: str, at_once: bool = False) -> None:
        """All get the right answer, once executed, though a process dies at each of these steps: at once, or when two
        have been answered and two have not."""
        self._executed.unlink(missing_ok=True)
        if at_once:
            self._arm(*steps)
        first = self._number + 1
        self._number += 4
        numbers = range(first, first + 4)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(self._ask, number) for number in numbers]
            answered = as_completed(asked)
            told = [next(answered).result() for _ in range(2)]
            if not at_once:
                self._arm(*steps)
            with self._gate.opened():
                told += [each.result() for each in answered]
        right = [[number, 2, 3, 4] for number in numbers]
        assert sorted(told) == [(200, each) for each in right]
        assert sorted(map(int, self._executed.read_text().split())) == list(numbers)

    def _arm(self, *steps: str) -> None:
        for step in steps:
            self._patient.arm(step)

    def _ask(self, number: int) -> tuple[int, object]:
        connection = http.client.HTTPConnection("127.0.0.1", self._patient.server.http_port, timeout=DEADLINE_S)
        try:
            connection.request("POST", "/v2/models/parts/generate", json.dumps({"A": [number, 2, 3, 4]}))
            answer = connection.getresponse()
            body = json.loads(answer.read())
        finally:
            connection.close()
        return answer.status, body.get("B", body)


@pytest.fixture(scope="module")
def parts(patient: Patient) -> Parts:
    return Parts(patient, patient.faults.parent / "parts")


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    repository = tmp_path_factory.mktemp("models")
    for name, idempotent in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(
            f"""
            backend: "identity"
            max_batch_size: 8
            input {{ name: "A" data_type: TYPE_INT32 dims: [ 4 ] }}
            output {{ name: "B" data_type: TYPE_INT32 dims: [ 4 ] }}
            instance_group {{ count: 2 kind: KIND_CPU }}
            parameters {{ key: "idempotent" value {{ string_value: "{idempotent}" }} }}
            """
        )
    faults = tmp_path_factory.mktemp("faults")
    told = faults.parent / "parts"
    told.mkdir()
    (repository / "parts" / "1").mkdir(parents=True)
    (repository / "parts" / "1" / "model.py").write_text(PARTS.format(path=told))
    (repository / "parts" / "config.pbtxt").write_text(PARTS_CONFIG)
    socket = str(faults.parent / "socket")
    flags = "--http-process-count=1", f"--client-socket={socket}"
    with serving(repository, *flags, environment={VARIABLE: str(faults)}) as server:
        patient = Patient(server, faults, socket)
        yield patient
        assert server.stop() == 0
    assert b"Traceback" not in server.log, server.log.decode()


def test_without_a_fault_requests_are_answered(patient: Patient) -> None:
    assert [patient.ask(model, by_road=road)[0] for model in MODELS for road in (False, True)] == [200] * 4


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("step", STEPS["worker"])
def test_a_worker_dies(patient: Patient, step: str, model: str) -> None:
    patient.arm(f"worker.{step}")
    status, said = patient.ask(model)
    if model == "once" and step in EXECUTING:
        assert status == 500
        assert "was killed by signal 9 (SIGKILL) while executing them" in json.loads(said)["error"]
    else:
        assert status == 200, said
    patient.await_deaths()
    assert patient.ask(model)[0] == 200


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("step", STEPS["worker"])
def test_a_worker_dies_whose_memory_its_client_does_not_know(patient: Patient, step: str, model: str) -> None:
    """A client in the server's memory asks for a worker's when the first answer names it."""
    with Client(patient.socket) as client:
        patient.arm(f"worker.{step}")
        if model == "once" and step in EXECUTING:
            with pytest.raises(errors.InternalError, match=r"was killed by signal 9 \(SIGKILL\) while executing them"):
                client.infer(model, {"A": ROW})
        else:
            assert client.infer(model, {"A": ROW})["B"].tolist() == ROW
        patient.await_deaths()
        assert client.infer(model, {"A": ROW})["B"].tolist() == ROW


@pytest.mark.parametrize("step", sorted(STEPS["batcher"].keys() - TAKE_OVER))
def test_the_batcher_dies(patient: Patient, step: str) -> None:
    patient.arm(f"batcher.{step}")
    assert patient.ask("once")[0] == 200
    patient.await_deaths()
    assert patient.ask("once")[0] == 200


@pytest.mark.parametrize("step", sorted(TAKE_OVER))
def test_the_batcher_dies_and_so_does_the_one_that_takes_its_place(patient: Patient, step: str) -> None:
    patient.arm(f"batcher.{step}")
    patient.arm("batcher.accepted")
    assert patient.ask("once")[0] == 200
    patient.await_deaths()


@pytest.mark.parametrize("step", sorted(STEPS["batcher"].keys() - TAKE_OVER))
def test_the_batcher_dies_when_a_batch_is_partly_answered(patient: Patient, parts: Parts, step: str) -> None:
    parts.ask_four(f"batcher.{step}", at_once=step in BEFORE_EXECUTION)
    patient.await_deaths()
    parts.ask_four()


@pytest.mark.parametrize("step", sorted(TAKE_OVER))
def test_two_batchers_die_when_a_batch_is_partly_answered(patient: Patient, parts: Parts, step: str) -> None:
    parts.ask_four(f"batcher.{step}", "batcher.answered")
    patient.await_deaths()
    parts.ask_four()


def test_a_worker_dies_and_the_batcher_before_it_has_been_told(patient: Patient) -> None:
    """What the worker was executing must not be executed a second time, by a successor that has not known it."""
    patient.stop_at("worker.begun")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(patient.ask, "once")
        worker = patient.stopped("shoal worker once")
        batcher = next(pid for pid in descendants(patient.server.process.pid) if title(pid) == "shoal batcher")
        os.kill(batcher, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        patient.await_deaths()
        patient.num_armed += 1
        with suppress(ProcessLookupError):  # it was found to stand still, and was killed for that
            os.kill(batcher, signal.SIGKILL)
        status, said = asked.result()
    assert (status, b"was killed by signal 9 (SIGKILL) while executing" in said) == (500, True), said
    patient.await_deaths()
    assert patient.ask("once")[0] == 200


@pytest.mark.parametrize("step", STEPS["lane"])
@pytest.mark.parametrize("kind", ["lane", "road"])
def test_a_front_end_dies(patient: Patient, kind: str, step: str) -> None:
    patient.arm(f"{kind}.{step}")
    with pytest.raises((ConnectionError, http.client.IncompleteRead)):  # a small block is released before it is sent
        patient.ask("once", by_road=kind == "road")
    patient.await_deaths()
    assert patient.ask("once")[0] == 200

"""A process is killed right after each step of a request's life, once: what the client gets is what was promised.

One server; before each case a file is put where the fault points look for it (shoal/fault.py), so that exactly one
process dies, exactly there, while exactly one request is on its way.
"""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

import pytest

from shoal import Client, errors
from shoal.fault import STEPS, VARIABLE
from tests.end_to_end.asking import fetch
from tests.end_to_end.gate import Gate
from tests.end_to_end.patient import EXECUTING, FEW_DESCRIPTORS, SMALL_MEMORY, TAKE_OVER, Patient
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import descendants, serving_to_the_end, title

#: Executed twice if need be, or once and never again. Two instances each: the other one goes on.
MODELS = {"again": "true", "once": "false"}
ROW = [[7, 2, 3, 4]]
#: Steps that only a large payload goes through (test_every_step_under_strain.py).
LARGE_ONLY = {"mapped"}
#: Steps of a batcher before a worker has its batch.
BEFORE_EXECUTION = {"accepted", "dispatched"}
#: A decoupled model that answers the requests of its batch one after the other while it executes them, and writes down
#: which it executes. Behind the second answer it stands still until its gate is opened.
PARTS = python_model("""
    def execute(self, requests):
        for position, request in enumerate(requests):
            if position == 2:
                open("{path}/gate").close()
            values = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            with open("{path}/executed", "a") as file:
                file.write(f"{{values[0, 0]}}\\n")
            response = pb_utils.InferenceResponse([pb_utils.Tensor("B", values)])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""")
#: A model that says what PyTorch would say if the GPU had memory for two requests only: its batches of four are
#: executed in two parts, and between the two it stands still.
SPLIT = python_model("""
    def initialize(self, args):
        self.num_parts = 0

    def execute(self, requests):
        if len(requests) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.num_parts += 1
        if self.num_parts % 2 == 0:
            open("{path}/gate").close()
        tensors = [pb_utils.get_input_tensor_by_name(each, "A").as_numpy() for each in requests]
        with open("{path}/executed", "a") as file:
            file.writelines(f"{{each[0, 0]}}\\n" for each in tensors)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", each)]) for each in tensors]
""")
#: What they execute, and what their configurations have beside.
IN_PARTS = {
    "parts": (PARTS, "model_transaction_policy { decoupled: true }"),
    "split": (SPLIT, 'parameters { key: "idempotent" value { string_value: "true" } }'),
}
IN_PARTS_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "A" data_type: TYPE_INT32 dims: [ 4 ] }
output { name: "B" data_type: TYPE_INT32 dims: [ 4 ] }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 600000000 }
"""


class Parts:
    """A model whose batches are answered part by part, and clients that make up a batch of four."""

    def __init__(self, patient: Patient, path: Path) -> None:
        self._patient, self._model = patient, path.name
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
        reply = fetch(self._patient.server.http_port, f"/v2/models/{self._model}/generate", {"A": [number, 2, 3, 4]})
        return reply.status, reply.json.get("B", reply.json)


@pytest.fixture(scope="module", params=IN_PARTS)
def parts(patient: Patient, request: pytest.FixtureRequest) -> Parts:
    return Parts(patient, patient.faults.parent / request.param)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    repository = tmp_path_factory.mktemp("models")
    for name, idempotent in MODELS.items():
        add_model(
            repository, name, config_text("identity", "A INT32 4", "B INT32 4", rows=8, count=2, idempotent=idempotent)
        )
    faults = tmp_path_factory.mktemp("faults")
    for name, (code, more) in IN_PARTS.items():
        told = faults.parent / name
        told.mkdir()
        add_model(repository, name, IN_PARTS_CONFIG + more, code.format(path=told))
    socket = str(faults.parent / "socket")
    flags = "--http-process-count=1", f"--client-socket={socket}", *SMALL_MEMORY
    with serving_to_the_end(
        repository, *flags, environment={VARIABLE: str(faults)}, descriptors=FEW_DESCRIPTORS
    ) as server:
        patient = Patient(server, faults, socket)
        yield patient
    assert b"Traceback" not in server.log, server.log.decode()


def test_without_a_fault_requests_are_answered(patient: Patient) -> None:
    assert [patient.ask(model, by_road=road)[0] for model in MODELS for road in (False, True)] == [200] * 4


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("step", sorted(set(STEPS["worker"]) - LARGE_ONLY))
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
@pytest.mark.parametrize("step", sorted(set(STEPS["worker"]) - LARGE_ONLY))
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


@pytest.mark.parametrize("step", sorted(set(STEPS["batcher"]) - TAKE_OVER))
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


@pytest.mark.parametrize("step", sorted(set(STEPS["batcher"]) - TAKE_OVER))
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


@pytest.mark.parametrize("step", sorted(set(STEPS["lane"]) - LARGE_ONLY))
@pytest.mark.parametrize("kind", ["lane", "road"])
def test_a_front_end_dies(patient: Patient, kind: str, step: str) -> None:
    patient.arm(f"{kind}.{step}")
    with pytest.raises((ConnectionError, http.client.IncompleteRead)):  # a small block is released before it is sent
        patient.ask("once", by_road=kind == "road")
    patient.await_deaths()
    assert patient.ask("once")[0] == 200

"""A process is killed right after each step of a request that is more than an ordinary one, with little memory and few
descriptors: payloads with segments of their own, beside a client that has stopped reading, and calls of other models,
beside a model that keeps its interpreter's lock in native code. And a lane is stopped instead of killed.

As in test_every_step.py exactly one process dies, exactly there.
"""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shoal import Client
from shoal.fault import STEPS, VARIABLE
from tests.end_to_end.gate import Gate
from tests.end_to_end.patient import EXECUTING, FEW_DESCRIPTORS, SMALL_MEMORY, TAKE_OVER, Patient
from tests.end_to_end.raw_client import Client as RawClient
from tests.end_to_end.raw_client import Reply, post
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, await_standby, imbalances, serving_to_the_end, title, wait_until

#: 6 MB: more than the sockets take of an answer that is not read. Each request has a page more than the one before, so
#: that no segment which was kept takes it.
NUM_INTEGERS, PAGE_INTEGERS = 1_500_000, 1024
#: Backend, sizes of tensors, and how many instances. None executes a request twice.
MODELS = {
    "large": ("identity", -1, 2),
    "once": ("identity", 4, 2),
    "inner": ("identity", 4, 2),
    "caller": ("python", 4, 1),
}
#: Stands still at its gate in C, and keeps the interpreter's lock, so that no other thread of its process can run; then
#: it asks another model.
CALLER = """
import ctypes
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "A")) for each in requests]

    def answer(self, tensor):
        open("{path}/begun", "w").close()
        os.close(ctypes.PyDLL(None).open(b"{path}/gate", os.O_RDONLY))
        asked = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["B"], inputs=[tensor])
        answered = asked.exec()
        if answered.has_error():
            return pb_utils.InferenceResponse(error=answered.error())
        return pb_utils.InferenceResponse(answered.output_tensors())
"""
#: Steps of a worker that is called which its caller does not go through as a client.
OF_CALLED = ("taken", "begun", "opened", "written", "ended")
BATCHER_STEPS = sorted(set(STEPS["batcher"]) - TAKE_OVER)
#: Of a lane: the batcher knows nothing of the request; has it; has answered it.
STOPPED_AT = ("allocated", "submitted", "replied")


class Caller:
    """The model that calls another one."""

    def __init__(self, patient: Patient, path: Path) -> None:
        self._patient, self._begun, self._gate = patient, path / "begun", Gate(path / "gate")

    @contextmanager
    def asked(self) -> "Iterator[Future[tuple[int, bytes]]]":
        """It stands still in native code within, and has been answered afterwards."""
        self._begun.unlink(missing_ok=True)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self._patient.ask, "caller")
            try:
                wait_until(self._begun.exists, self._patient.server.log.decode)
                yield answer
                assert not answer.done()
            finally:
                with self._gate.opened():
                    answer.exception(DEADLINE_S)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    repository = tmp_path_factory.mktemp("models")
    for name, (backend, dims, count) in MODELS.items():
        config = config_text(backend, f"A INT32 {dims}", f"B INT32 {dims}", rows=8, count=count, idempotent="false")
        add_model(repository, name, config)
    faults = tmp_path_factory.mktemp("faults")
    (faults.parent / "caller").mkdir()
    (repository / "caller" / "1" / "model.py").write_text(CALLER.format(path=faults.parent / "caller"))
    socket = str(faults.parent / "socket")
    flags = "--http-process-count=1", f"--client-socket={socket}", *SMALL_MEMORY
    with serving_to_the_end(
        repository, *flags, environment={VARIABLE: str(faults)}, descriptors=FEW_DESCRIPTORS
    ) as server:
        yield Patient(server, faults, socket)
        server.ledger_once(lambda ledger: not imbalances(ledger))
    assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture(scope="module")
def caller(patient: Patient) -> Caller:
    made = Caller(patient, patient.faults.parent / "caller")
    with made.asked() as answer:  # from now on it is a client, too
        pass
    assert answer.result()[0] == 200
    return made


def request(number: int) -> bytes:
    """A large one, with a large answer."""
    data = data_of(number)
    binary = {"binary_data_size": len(data)}
    tensor = {"name": "A", "shape": [1, len(data) // 4], "datatype": "INT32", "parameters": binary}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return post("large", head + data, b"Inference-Header-Content-Length: %d" % len(head))


def data_of(number: int) -> bytes:
    return number.to_bytes(4, "little") * (NUM_INTEGERS + PAGE_INTEGERS * number)


def is_right(reply: Reply, number: int) -> bool:
    return reply.status == 200 and reply.body.endswith(data_of(number))


def ask_large(patient: Patient) -> tuple[int, bytes]:
    """The status and the body; that of a 200 is right."""
    patient.number = number = patient.number + 1
    with RawClient(patient.server) as client:
        reply = client.ask(request(number))
    assert reply.status != 200 or is_right(reply, number)
    return reply.status, reply.body


@contextmanager
def unread(patient: Patient) -> Iterator[None]:
    """A client reads nothing of a large answer within, and then all of it."""
    patient.number = number = patient.number + 1
    with RawClient(patient.server, receive_buffer=65536) as reader:
        reader.data = reader.send(request(number)).socket.recv(8)
        yield
        assert is_right(reader.reply(), number)


@pytest.mark.parametrize("step", STEPS["worker"])
def test_a_worker_dies(patient: Patient, step: str) -> None:
    with unread(patient):
        patient.arm(f"worker.{step}")
        status, said = ask_large(patient)
        patient.await_deaths()
        if step in EXECUTING:
            assert status == 500
            assert b"was killed by signal 9 (SIGKILL) while executing them" in said
        else:
            assert status == 200, said
        assert ask_large(patient)[0] == 200


@pytest.mark.parametrize("step", BATCHER_STEPS)
def test_the_batcher_dies(patient: Patient, step: str) -> None:
    with unread(patient):
        patient.arm(f"batcher.{step}")
        assert ask_large(patient)[0] == 200
        patient.await_deaths()
        assert ask_large(patient)[0] == 200


@pytest.mark.parametrize("step", sorted(TAKE_OVER))
def test_two_batchers_die(patient: Patient, step: str) -> None:
    with unread(patient):
        patient.arm(f"batcher.{step}")
        patient.arm("batcher.answered")
        assert ask_large(patient)[0] == 200
        patient.await_deaths()
        assert ask_large(patient)[0] == 200


@pytest.mark.parametrize("step", sorted(set(STEPS["road"]) - {"allocated"}))
def test_the_road_dies(patient: Patient, step: str) -> None:
    patient.arm(f"road.{step}")
    with suppress(ConnectionError, EOFError):  # an answer may be whole when its memory is released
        assert (ask_large(patient)[0], step) == (200, "released")
    patient.await_deaths()
    assert ask_large(patient)[0] == 200


def kill_batcher(patient: Patient) -> None:
    (batcher,) = [pid for pid in await_standby(patient.server) if title(pid) == "shoal batcher"]
    patient.num_armed += 1
    os.kill(batcher, signal.SIGKILL)


@pytest.mark.parametrize("step", BATCHER_STEPS)
def test_the_batcher_dies_beside_a_caller_in_native_code(patient: Patient, caller: Caller, step: str) -> None:
    with caller.asked() as answer:
        patient.arm(f"batcher.{step}")
        assert patient.ask("once")[0] == 200
        patient.await_deaths()
    assert answer.result()[0] == 200


@pytest.mark.parametrize("step", sorted(set(STEPS["worker"]) - {"mapped"}))
def test_a_worker_dies_beside_a_caller_in_native_code(patient: Patient, caller: Caller, step: str) -> None:
    with caller.asked() as answer:
        patient.arm(f"worker.{step}")
        assert patient.ask("once")[0] == (500 if step in EXECUTING else 200)
        patient.await_deaths()
        assert patient.ask("once")[0] == 200
    assert answer.result()[0] == 200


@pytest.mark.parametrize("step", BATCHER_STEPS)
def test_the_batcher_dies_in_a_call(patient: Patient, caller: Caller, step: str) -> None:
    with caller.asked() as answer:
        patient.arm(f"batcher.{step}")
    assert answer.result()[0] == 200
    patient.await_deaths()


@pytest.mark.parametrize("step", OF_CALLED)
def test_a_called_worker_dies(patient: Patient, caller: Caller, step: str) -> None:
    with caller.asked() as answer:
        patient.arm(f"worker.{step}")
    status, said = answer.result()
    if step in EXECUTING:
        assert (status, b"was killed by signal 9 (SIGKILL) while executing" in said) == (500, True), said
    else:
        assert status == 200, said
    patient.await_deaths()


@pytest.mark.parametrize("step", STOPPED_AT)
def test_a_lane_is_stopped_and_the_batcher_dies(patient: Patient, step: str) -> None:
    """The successor waits for no word of the lane, which is killed and replaced."""
    with Client(patient.socket) as guest, ThreadPoolExecutor(1) as pool:
        patient.stop_at(f"lane.{step}")
        asked = pool.submit(patient.ask, "once")
        patient.stopped("shoal http")
        kill_batcher(patient)
        assert guest.infer("once", {"A": [[7, 2, 3, 4]]})["B"].tolist() == [[7, 2, 3, 4]]
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            asked.result(DEADLINE_S)
    patient.await_deaths()
    assert patient.ask("once")[0] == 200

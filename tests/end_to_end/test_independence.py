"""No process waits for one that runs users' code: a model is held in the middle of an execution, and all others go on.

Each test holds the model until the end, so that what it sees cannot have waited for it.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.end_to_end.asking import infer
from tests.end_to_end.payloads import MIB, SMALL_SLABS, ask, pattern, write_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, only, serving_to_the_end, title, wait_until

#: A request that begins with 1 is executed until the test writes to the pipe `gate`. A Python model waits there as any
#: Python code does; with HOLD, in C and with the interpreter's lock, so that no other thread of the process can run.
HELD = """
import ctypes
import os

import numpy as np
import triton_python_backend_utils as pb_utils

HOLD = {hold}


class TritonPythonModel:
    def initialize(self, args):
        self.path = args["model_repository"]
        self.gate = os.open(f"{{self.path}}/gate", os.O_RDWR)

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if tensor[0] == 1:
                byte = ctypes.create_string_buffer(1)
                read = ctypes.PyDLL(None).read if HOLD else lambda fd, _buffer, size: os.read(fd, size)
                open(f"{{self.path}}/begun", "w").close()
                read(self.gate, byte, 1)
            if HOLD:
                asked = pb_utils.InferenceRequest(
                    model_name="fast",
                    requested_output_names=["OUTPUT0"],
                    inputs=[pb_utils.Tensor("INPUT0", tensor)],
                )
                tensor = pb_utils.get_output_tensor_by_name(asked.exec(), "OUTPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]))
        return responses
"""
MODELS = {"held": (2, False), "caller": (1, True)}
SMALL, LARGE = pattern(1000, 1), pattern(16 * MIB, 2)
FIRST, SMALL[0], LARGE[0] = np.ones(1000, np.uint8), 0, 0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    for name, (num_instances, hold) in MODELS.items():
        write_model(models, name, num_instances, backend="python")
        (models / name / "1" / "model.py").write_text(HELD.format(hold=hold))
        os.mkfifo(models / name / "gate")
    write_model(models, "fast")
    write_model(models, "other")
    return models


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = "--allow-grpc=true", "--http-process-count=1", "--grpc-process-count=1"
    with serving_to_the_end(repository, *SMALL_SLABS, *only(*MODELS, "fast", "other"), *flags) as server:
        assert np.array_equal(ask(server, SMALL, "caller"), SMALL)  # from now on it is a client, too
        yield server
    assert b"Traceback" not in server.log, server.log.decode()


@contextmanager
def executing(server: Server, model: Path) -> Iterator[None]:
    """An instance of the model executes a request meanwhile, which is answered in the end."""
    (model / "begun").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, FIRST, model.name)
        try:
            wait_until((model / "begun").exists, server.log.decode)
            yield
            assert not answer.done()
        finally:
            with open(model / "gate", "wb", buffering=0) as gate:
                gate.write(b".")
        assert np.array_equal(answer.result(DEADLINE_S), FIRST)


def pid_of(server: Server, start: str) -> int:
    return next(pid for pid in descendants(server.process.pid) if title(pid).startswith(start))


def kill(server: Server, name: str, then: bytes) -> None:
    """Kill a process, and wait until the log says `then`."""
    start = len(server.log)
    os.kill(pid_of(server, name), signal.SIGKILL)
    assert server.read_log(then, start=start)


def ask_grpc(server: Server, model: str = "fast") -> None:
    assert np.array_equal(infer(server, model, {"INPUT0": SMALL}, triton_grpc)["OUTPUT0"], SMALL)


def is_live_over_grpc(server: Server) -> bool:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        return bool(client.is_server_live(client_timeout=DEADLINE_S))


@pytest.mark.parametrize("model", MODELS)
def test_a_front_end_comes_back(server: Server, repository: Path, model: str) -> None:
    with executing(server, repository / model):
        dead = pid_of(server, "shoal grpc")
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: title(dead) == "", server.log.decode)
        assert is_live_over_grpc(server)
        ask_grpc(server)


def test_a_large_request_is_answered_by_the_instance_that_is_idle(server: Server, repository: Path) -> None:
    with executing(server, repository / "held"):
        for _ in range(2):
            assert np.array_equal(ask(server, LARGE, "held"), LARGE)


def test_a_large_result_is_answered(server: Server, repository: Path) -> None:
    with executing(server, repository / "caller"):
        assert np.array_equal(ask(server, LARGE, "other"), LARGE)


def test_another_models_worker_comes_back(server: Server, repository: Path) -> None:
    with executing(server, repository / "caller"):
        kill(server, "shoal worker other_0_0", b"instance 'other_0_0' of model 'other' is up again")
        assert np.array_equal(ask(server, SMALL, "other"), SMALL)


def test_another_model_is_loaded_again(server: Server, repository: Path) -> None:
    import tritonclient.http as triton

    with executing(server, repository / "caller"):
        with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
            client.load_model("other")
        assert np.array_equal(ask(server, SMALL, "other"), SMALL)


@pytest.mark.parametrize("model", MODELS)
def test_a_batchers_place_is_taken(server: Server, repository: Path, model: str) -> None:
    with executing(server, repository / model):
        for _ in range(2):
            wait_until(lambda: bool(pid_of_standby(server)), server.log.decode)
            kill(server, "shoal batcher", b"another takes its place")
            assert np.array_equal(ask(server, SMALL), SMALL)
            assert np.array_equal(ask(server, LARGE), LARGE)


def pid_of_standby(server: Server) -> int:
    return next((pid for pid in descendants(server.process.pid) if title(pid) == "shoal batcher (standby)"), 0)


def test_a_stopped_front_end_delays_no_other_request_and_is_replaced(server: Server) -> None:
    ask_grpc(server)
    stopped = pid_of(server, "shoal grpc")
    os.kill(stopped, signal.SIGSTOP)
    kill(server, "shoal batcher", b"another takes its place")
    assert np.array_equal(ask(server, LARGE), LARGE)
    wait_until(lambda: title(stopped) == "", server.log.decode)
    ask_grpc(server)

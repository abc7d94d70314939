"""Small models of Python and ensembles of them, written into a repository."""

import queue
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

from tests.end_to_end.repositories import python_model
from tests.end_to_end.server import DEADLINE_S, Server

PYTHON = """
    backend: "python"
    max_batch_size: {batch}
    input [{inputs}]
    output [{{ name: "Y" data_type: TYPE_FP32 dims: [-1] }}]
    dynamic_batching {{}}
"""
ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: {batch}
    input [{{ name: "X" data_type: TYPE_FP32 dims: [-1] }}]
    output [{outputs}]
    ensemble_scheduling {{ step [{steps}] {more} }}
"""
HEAD = """
import os, signal, time
import numpy as np
import triton_python_backend_utils as pb_utils


def given(request, name="X"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def is_shared(array):
    address = array.__array_interface__["data"][0]
    for line in open("/proc/self/maps"):
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= address < last:
            return ("shoal" in line) and line.split()[1].startswith("r--")
    return False


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        try:
            array = self.compute(request)
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.asarray(array, np.float32))])
"""
MODELS = {
    "double": "return given(request) * 2",
    "triple": "return given(request) * 3",
    "add": 'return given(request, "A") + given(request, "B")',
    "picky": """
        if given(request).min() < 0:
            raise ValueError(f"{given(request).min():g} is below zero")
        if given(request).max() == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return given(request)
    """,
    "where": "return [[float(is_shared(given(request)))]]",
    "slow": """
        while not request.is_cancelled():
            time.sleep(0.01)  # Triton's API can be asked, not waited on
        raise ValueError("cancelled")
    """,
}


#: Answers as often as its first number says, each time with one more.
COUNTING = python_model("""
    def execute(self, requests):
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            for number in range(int(array[0, 0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", array + number)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""")


def tensor(name: str) -> str:
    return f'{{ name: "{name}" data_type: TYPE_FP32 dims: [-1] }}'


def step(model: str, inputs: dict[str, str], outputs: dict[str, str], version: int = -1) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'{{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def write_ensemble(
    repository: Path, name: str, *steps: str, outputs: tuple[str, ...] = ("Y",), batch: int = 8, more: str = ""
) -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    config = ENSEMBLE.format(batch=batch, outputs=", ".join(map(tensor, outputs)), steps=", ".join(steps), more=more)
    (repository / name / "config.pbtxt").write_text(config)


def write_model(repository: Path, name: str, body: str, batch: int = 8, version: int = 1) -> None:
    (repository / name / str(version)).mkdir(parents=True, exist_ok=True)
    inputs = ", ".join(map(tensor, ("A", "B") if name == "add" else ("X",)))
    (repository / name / "config.pbtxt").write_text(PYTHON.format(batch=batch, inputs=inputs))
    code = dedent(HEAD) + "\n    def compute(self, request):\n" + _indented(body)
    (repository / name / str(version) / "model.py").write_text(code)


def write_counting(repository: Path) -> None:
    """A decoupled model called count."""
    (repository / "count" / "1").mkdir(parents=True)
    policy = "model_transaction_policy { decoupled: true }"
    (repository / "count" / "config.pbtxt").write_text(PYTHON.format(batch=8, inputs=tensor("X")) + policy)
    (repository / "count" / "1" / "model.py").write_text(COUNTING)


def _indented(body: str) -> str:
    return "".join(f"        {line}\n" for line in dedent(body).strip().splitlines())


def stream(server: Server, model: str, first: float, *, empty_final: bool = False) -> list[tuple[dict[str, Any], bool]]:
    """The responses to a request, each with its last flag, up to the one whose flag is set."""
    told: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found = []
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: told.put((result, error)))
        given = grpc.InferInput("X", [1, 1], "FP32").set_data_from_numpy(np.array([[first]], np.float32))
        client.async_stream_infer(model, [given], enable_empty_final_response=empty_final)
        is_last = False
        while not is_last:
            result, error = told.get(timeout=DEADLINE_S)
            assert error is None, error
            response = result.get_response()
            is_last = response.parameters["triton_final_response"].bool_param
            found.append(({each.name: result.as_numpy(each.name).item() for each in response.outputs}, is_last))
    return found

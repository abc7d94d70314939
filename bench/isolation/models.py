"""The models of isolation: a repository of models with one input and one output of any number of floats."""

from collections.abc import Mapping
from pathlib import Path

CONFIG = """
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
"""
_PYTHON = """
import ctypes, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.begun = os.path.join(args["model_repository"], "begun")
        self.kept = {}

    def answer(self, array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])

    def execute(self, requests):
        return [self.one(each, each.inputs()[0].as_numpy()) for each in requests]

    def begin(self):
        open(self.begun, "w").close()
"""
#: Sleeps, without the GIL, for as many seconds as the first number of the input says.
_TASK = """
    def one(self, request, numbers):
        seconds = float(numbers[0])
        if seconds >= 1:
            self.begin()
        if seconds:
            time.sleep(seconds)
        return self.answer(numbers[:1].copy())
"""
#: Calls another model, and then holds its GIL in native code for as many seconds as the first number of the input says.
_HOLDER = """
    def one(self, request, numbers):
        seconds = int(numbers[0])
        inputs = [pb_utils.Tensor("INPUT0", numbers[:1].copy())]
        made = pb_utils.InferenceRequest(model_name="quick", requested_output_names=["OUTPUT0"], inputs=inputs)
        assert not made.exec().has_error()
        self.begin()
        ctypes.PyDLL(None).sleep(seconds)
        return self.answer(numbers[:1].copy())
"""
#: Answers with as many floats as the first number of the input says.
_SIZED = """
    def one(self, request, numbers):
        count = max(1, int(numbers[0]))
        if count not in self.kept:
            self.kept[count] = np.zeros(count, np.float32)
        return self.answer(self.kept[count])
"""
#: Decoupled: sends a number of responses with a number of floats each, within execute.
_STREAM = """
    def execute(self, requests):
        for request in requests:
            num_responses, count = map(int, request.inputs()[0].as_numpy()[:2])
            response = self.answer(np.zeros(count, np.float32))
            sender = request.get_response_sender()
            for _ in range(num_responses):
                if sender.is_cancelled():
                    break
                sender.send(response)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_SOURCES = {"task": _TASK, "holder": _HOLDER, "sized": _SIZED, "stream": _STREAM}


def identity(delay_ms: int = 0, count: int = 1) -> str:
    """The configuration of a model of the identity backend that takes `delay_ms` for each request."""
    delay = f'parameters [{{ key: "execute_delay_ms" value: {{ string_value: "{delay_ms}" }} }}]' if delay_ms else ""
    return f'backend: "identity"\n{_instances(count)}{delay}\n'


def python(source: str, count: int = 1) -> str:
    """The configuration of one of the Python models here, named in a comment."""
    decoupled = "model_transaction_policy { decoupled: true }\n" if source == "stream" else ""
    return f'backend: "python" # {source}\n{_instances(count)}{decoupled}'


def _instances(count: int) -> str:
    return f"instance_group [{{ count: {count} kind: KIND_CPU }}]\n"


def write(folder: Path, models: Mapping[str, str]) -> Path:
    """Write a repository of these models: name → configuration made by `identity` or `python`."""
    for name, start in models.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(start + CONFIG)
        source = start.partition("# ")[2].partition("\n")[0]
        if source:
            (version / "model.py").write_text(_PYTHON + _SOURCES[source])
    return folder

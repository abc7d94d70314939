"""Models of scikit-learn in skops's format, which holds no code, for `shoal serve` and `shoal init`: the tensors of a
file, and the model.py that serves it.

The file is read in a process of its own (skops_trial.py), since scikit-learn takes seconds to import.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from shoal.cli.torch_files import Config, NoShapesError, config

_TIMEOUT_S = 120.0
#: The most rows of a batch (ours): a row costs most estimators microseconds, a call a tenth of a millisecond or more.
_MOST_ROWS = 1024
_MODULE = "shoal.workers.backends.skops_trial"
_MODEL_PY = '''\
"""A model of scikit-learn in skops's format: a file with types that skops does not trust is refused."""

from pathlib import Path

import numpy as np
import skops.io
import triton_python_backend_utils as pb_utils

METHODS = {methods}


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], {file!r})
        self.model = skops.io.load(path, trusted=[])

    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        ends = np.cumsum([len(each) for each in rows])[:-1]
        whole = np.concatenate(rows)
        answers = [
            [pb_utils.Tensor(name, each) for each in np.split(self.answer(method, kind, whole), ends)]
            for name, (method, kind) in METHODS.items()
        ]
        return [pb_utils.InferenceResponse(list(each)) for each in zip(*answers)]

    def answer(self, method, kind, rows):
        found = getattr(self.model, method)(rows)
        return found.reshape(len(rows), -1).astype(kind)
'''
#: Datatype → the kind of numpy's arrays as which model.py sends it.
_KINDS = {"BOOL": "bool", "INT64": "int64", "FP64": "float64", "STRING": "object"}
#: Output → the method of the model that computes it.
_METHODS = {"label": "predict", "probabilities": "predict_proba"}


def described(path: Path) -> tuple[Config, str]:
    """The configuration of a file's model, and the text of its model.py. Raises NoShapesError."""
    found = _tried(path)
    inputs, outputs = (
        [(name, kind, _dims(shape)) for name, kind, shape in found[role]] for role in ("inputs", "outputs")
    )
    methods = {name: (_METHODS[name], _KINDS[kind]) for name, kind, _ in outputs}
    text = _MODEL_PY.replace("{methods}", repr(methods)).replace("{file!r}", ascii(path.name))
    return {"backend": "python", **config(_MOST_ROWS, inputs, outputs)}, text


def _dims(shape: list[int]) -> list[int | str]:
    """The shape of an answer to two rows as dims, whose batch's dimension varies; of a number a row, one of it."""
    return ["rows", *(shape[1:] or [1])]


def _tried(path: Path) -> Any:
    from shoal.supervisor.memory.available_memory import available_nbytes  # a server's, which few commands need

    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE, f"{path.absolute()}", f"{available_nbytes()}"],
            capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            cwd="/",  # no file beside the model is taken for a module of Python's
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoShapesError(f"it was not read within {_TIMEOUT_S:g} s") from None
    if "No module named 'skops'" in done.stderr or "No module named 'sklearn'" in done.stderr:
        raise NoShapesError("skops and scikit-learn are not installed (pip install 'shoal[skops]')")
    try:
        found = dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        found = {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    if "error" in found:
        raise NoShapesError(found["error"])
    return found

"""Models of scikit-learn in skops's format, which holds no code, for `shoal serve` and `shoal init`: the tensors of a
file, and the model.py that serves it.

All files of a command are read in one other process (skops_trial.py), since scikit-learn takes seconds to import.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cli.torch_files import Config, NoShapesError, config

#: The most seconds that skops_trial.py may take for each file (ours).
_TIMEOUT_S = 120.0
#: The most rows of a batch (ours): a row costs most estimators microseconds, a call a tenth of a millisecond or more.
_MOST_ROWS = 1024
_MODULE = "shoal.workers.backends.skops_trial"
#: The beginning of the line that skops_trial.py prints about a file.
_ANSWER = b'{"skops":'
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
#: Datatype → the numpy type of the arrays in which model.py sends it.
_KINDS = {"BOOL": "bool", "INT64": "int64", "FP64": "float64", "STRING": "object"}
#: Output → the method of the model that computes it.
_METHODS = {"label": "predict", "probabilities": "predict_proba"}


#: A configuration, and the text of a model.py.
Described = tuple[Config, str]


def described(paths: Sequence[Path]) -> Mapping[Path, Described | NoShapesError]:
    """By file, the configuration of its model and the text of its model.py, or why there are none."""
    found = list[Any]()
    while len(found) < len(paths):  # if a file has ended the process, another process reads those behind it
        found += _tried(paths[len(found) :])
    return {path: _described(path, each) for path, each in zip(paths, found, strict=True)}


def _described(path: Path, found: Any) -> Described | NoShapesError:
    if "error" in found:
        return NoShapesError(found["error"])
    inputs, outputs = (
        [(name, kind, _dims(shape)) for name, kind, shape in found[role]] for role in ("inputs", "outputs")
    )
    methods = {name: (_METHODS[name], _KINDS[kind]) for name, kind, _ in outputs}
    text = _MODEL_PY.replace("{methods}", repr(methods)).replace("{file!r}", ascii(path.name))
    return {"backend": "python", **config(_MOST_ROWS, inputs, outputs)}, text


def _dims(shape: list[int]) -> list[int | str]:
    """The dims of an output, from its shape for two rows. The first dim is that of the rows; where each row has a
    single number, the second is 1."""
    return ["rows", *(shape[1:] or [1])]


def _tried(paths: Sequence[Path]) -> list[Any]:
    """What skops_trial.py says about the first of these files, about one or more; the last finding may be that a file
    has ended the process."""
    from shoal.supervisor.memory.available_memory import available_nbytes  # few commands need this module

    limit_s, why = _TIMEOUT_S * len(paths), ""
    command = [sys.executable, "-m", _MODULE, f"{available_nbytes()}", *(f"{path.absolute()}" for path in paths)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL,
            cwd="/",  # not the user's directory, whose files Python could import
        )  # fmt: skip
        printed, said = done.stdout, done.stderr.decode(errors="replace")
        why = (said.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if "No module named 'skops'" in said or "No module named 'sklearn'" in said:
            why = "skops and scikit-learn are not installed (pip install 'shoal[skops]')"
            return [{"error": why}] * len(paths)
    except subprocess.TimeoutExpired as late:
        printed, why = late.stdout or b"", f"it was not read within {limit_s:g} s"
    # scikit-learn may print lines of its own.
    found = [json.loads(line) for line in printed.splitlines() if line.startswith(_ANSWER)]
    return found if len(found) == len(paths) else [*found, {"error": why}]

"""Reads a model in skops's format and prints its tensors as JSON: python -m shoal.workers.backends.skops_trial FILE

The model is loaded, as the server's model.py (shoal/cli/skops_files.py) loads it, and asked with two rows of zeros. A
file with types that skops does not know as harmless is not loaded.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from skops import io

#: numpy's kind of a datatype → the datatype of config.pbtxt as which results are sent.
_DATATYPES = {"b": "BOOL", "i": "INT64", "u": "INT64", "f": "FP64", "O": "STRING", "U": "STRING"}
#: The names of outputs, by the method that computes them.
OUTPUTS = {"predict": "label", "predict_proba": "probabilities"}


class NoShapesError(Exception):
    """A file holds no model that can be served; the message says why."""


def tensors_of(path: str) -> dict[str, Any]:
    """Inputs and outputs, each with name, datatype and the shape of two rows. Raises NoShapesError, and what skops and
    scikit-learn raise."""
    if untrusted := io.get_untrusted_types(file=path):
        raise NoShapesError(f"it has types that skops does not trust: {', '.join(untrusted)}")
    model = io.load(path, trusted=[])
    num_features = getattr(model, "n_features_in_", None)
    if not num_features or not hasattr(model, "predict"):
        raise NoShapesError("it does not predict from a number of features")
    rows = np.zeros((2, num_features))
    outputs = []
    for method, name in OUTPUTS.items():
        answer = getattr(model, method)(rows) if hasattr(model, method) else None
        if isinstance(answer, np.ndarray) and answer.dtype.kind in _DATATYPES:
            outputs.append((name, _DATATYPES[answer.dtype.kind], list(answer.shape)))
    if not outputs:
        raise NoShapesError("its predictions are no array of numbers or texts")
    return {"inputs": [("X", "FP64", list(rows.shape))], "outputs": outputs}


def main(argv: Sequence[str]) -> None:
    """Print the tensors, or why there are none."""
    warnings.simplefilter("ignore")  # of another version of scikit-learn, which the server's log has, too
    try:
        said = tensors_of(argv[0])
    except NoShapesError as error:
        said = {"error": str(error)}
    except Exception as error:  # noqa: BLE001  whatever a damaged file makes skops or scikit-learn raise
        said = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

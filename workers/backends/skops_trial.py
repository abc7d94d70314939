"""Reads models in skops's format and prints the tensors of each as a line of JSON:
python -m shoal.workers.backends.skops_trial BYTES FILE…

A model is loaded, as the server's model.py (shoal/cli/skops_files.py) loads it, and asked with two rows of zeros, or of
ones where zeros are refused. A file with types that skops does not know as harmless is not loaded, nor one that takes
more than BYTES of memory: an archive of some kilobytes may unpack to any number of gigabytes.
"""

import json
import re
import resource
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from skops import io

#: numpy's kind of a datatype → the datatype, in config.pbtxt, with which results of that kind are sent.
_DATATYPES = {"b": "BOOL", "i": "INT64", "u": "INT64", "f": "FP64", "O": "STRING", "U": "STRING"}
#: The first version of skops that does not trust decision trees in a file: scikit-learn uses numbers of a tree
#: unchecked as places in memory, so a damaged file crashes the process that loads it, or reads that process's memory.
LEAST_SKOPS = (0, 15)
#: The names of outputs, by the method that computes them.
OUTPUTS = {"predict": "label", "predict_proba": "probabilities"}


class NoShapesError(Exception):
    """A file holds no model that can be served; the message says why."""


def tensors_of(path: str) -> dict[str, Any]:
    """Inputs and outputs, each with name, datatype and the shape of two rows. Raises NoShapesError, and what skops and
    scikit-learn raise."""
    installed = version("skops")
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < LEAST_SKOPS:
        raise NoShapesError(
            f"skops {installed} trusts trees, by which a file crashes its reader (pip install 'shoal[skops]')"
        )
    if untrusted := io.get_untrusted_types(file=path):
        raise NoShapesError(f"it has types that skops does not trust: {', '.join(untrusted)}")
    model = io.load(path, trusted=[])
    num_features = getattr(model, "n_features_in_", None)
    if not num_features or not hasattr(model, "predict"):
        raise NoShapesError("it does not predict from a number of features")
    shape = (2, num_features)
    try:
        outputs = _outputs(model, np.zeros(shape))
    except ValueError:  # the model refuses zeros, as one that takes logarithms does
        try:
            outputs = _outputs(model, np.ones(shape))
        except ValueError as error:
            raise NoShapesError(f"it predicts neither from zeros nor from ones: {error}") from None
    if not outputs:
        raise NoShapesError("its predictions are no array of numbers or texts")
    return {"inputs": [("X", "FP64", list(shape))], "outputs": outputs}


def _outputs(model: Any, rows: Any) -> list[tuple[str, str, list[int]]]:
    outputs = []
    for method, name in OUTPUTS.items():
        answer = getattr(model, method)(rows) if hasattr(model, method) else None
        if isinstance(answer, np.ndarray) and answer.dtype.kind in _DATATYPES:
            outputs.append((name, _DATATYPES[answer.dtype.kind], list(answer.shape)))
    return outputs


def bound_memory(nbytes: int) -> None:
    """Limit this process to `nbytes` bytes more memory than it has now; allocations beyond that raise MemoryError."""
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = own + nbytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def main(argv: Sequence[str]) -> None:
    """Print the tensors of each file, or why there are none."""
    warnings.simplefilter("ignore")  # e.g. that the file is of another scikit-learn; the server's log shows them, too
    nbytes, *paths = argv
    for path in paths:
        said: dict[str, Any] = {"skops": version("skops")}
        try:
            bound_memory(int(nbytes))
            said |= tensors_of(path)
        except NoShapesError as error:
            said["error"] = str(error)
        except MemoryError:
            said["error"] = "it takes more memory than this machine has left"
        except Exception as error:  # noqa: BLE001  whatever a damaged file makes skops or scikit-learn raise
            said["error"] = f"{type(error).__name__}: {error}"
        sys.stdout.write(f"\n{json.dumps(said)}\n")  # on a line of its own, whatever scikit-learn has printed
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

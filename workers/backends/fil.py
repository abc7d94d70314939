"""Forests of XGBoost, LightGBM and scikit-learn, run by treelite's own inference on the worker's cores.

Named after Triton's backend for forests, which has the same tensors and answers. The only file that imports treelite.
NaN is a missing value. Scores that treelite computes in double precision, as for LightGBM, are rounded to FP32 at the
end.
"""

import os
import re
from typing import Any

import numpy as np

# Before the import: OpenMP's waiting threads would spin, and take the cores from the other processes on them. With two
# threads on two busy cores a batch of 8 rows and 50 trees took 15 ms when they spun, and takes 0.5.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import treelite

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends import file_checks
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device
from shoal.workers.backends.fil_options import FILENAMES, ForestSettings, forest_settings
from shoal.workers.tensors import Array

INPUT, OUTPUT, TREESHAP_OUTPUT = "input__0", "output__0", "treeshap_output"

#: Rows × trees of a batch from which more than one thread pays. Measured with 50 trees, one / two threads:
#: 8 rows 0.22 / 0.22 ms, 32 rows 0.45 / 0.32, 128 rows 1.4 / 0.8; and a thread may have to wait for its core.
MIN_PARALLEL_VISITS = 1000

# "[07:46:43] /project/src/x.cc:282: Check failed: …", and more lines; the first has the reason.
_TREELITE_SENTENCE = re.compile(r"(?:\[[0-9:]+\] \S+: )?([^\n]*)")


class FilBackend(BatchedBackend):
    """One forest of decision trees, loaded by treelite."""

    def __init__(self) -> None:
        # Changed by describe, load and unload.
        self._name = ""
        self._forest: Any = None
        self._settings = ForestSettings("", False, False, 0.5, False, 1)
        self._num_trees = 0
        self._num_scores = 0  # scores that treelite computes per row: one per class or target, or one for two classes
        self._num_columns = 0  # columns of output__0

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The features in the file, and the output that the configuration makes of the scores."""
        self._open(model, device)
        self._num_columns = 1 if self._settings.is_class_wanted else self._num_scores
        if self._num_scores == 1 and self._settings.is_classifier and self._settings.predict_proba:
            # One score for two classes is one column, unless the configuration has two.
            configured = [output["dims"][-1:] for output in model.config["output"] if output["name"] == OUTPUT]
            self._num_columns = 2 if [2] in configured else 1
        return ModelIO(
            (IOTensor(INPUT, "TYPE_FP32", (-1, self._forest.num_feature)),),
            (IOTensor(OUTPUT, "TYPE_FP32", (-1, self._num_columns)),),
        )

    def load(self, model: BackendModel, device: Device) -> None:
        signature = Signature.from_config(model.config)
        if TREESHAP_OUTPUT in signature.outputs:
            raise UnsupportedError(
                f"model '{model.name}': output '{TREESHAP_OUTPUT}' is not supported, treelite computes no Shapley "
                "values; remove the output"
            )
        file_checks.check(signature, self.describe(model, device))

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Per row the number of a class, or the scores; as in Triton, a single score has no dimension of its own."""
        rows = inputs[INPUT]
        is_small = len(rows) * self._num_trees < MIN_PARALLEL_VISITS
        scores = self._predict(rows, 1 if is_small else self._settings.num_threads)
        scores = scores.reshape(len(rows), self._num_scores).astype(np.float32, copy=False)
        if self._settings.is_class_wanted:
            classes = scores.argmax(axis=1) if self._num_scores > 1 else scores[:, 0] > self._settings.threshold
            return {OUTPUT: classes.astype(np.float32)}
        if self._num_columns > self._num_scores:
            scores = np.concatenate([1 - scores, scores], axis=1)
        return {OUTPUT: scores[:, 0] if self._num_columns == 1 else scores}

    def unload(self) -> None:
        self._forest = None

    def _open(self, model: BackendModel, device: Device) -> None:
        if self._forest is not None:
            return
        self._name = model.name
        self._settings = forest_settings(model, device)
        path = model.file or os.path.join(model.version_dir, FILENAMES[self._settings.model_type])
        if not os.path.isfile(path):
            raise UnavailableError(
                f"unable to find '{path}' for model instance '{model.instance_name}', whose parameter 'model_type' is "
                f"'{self._settings.model_type}'"
            )
        try:
            self._forest = _read(path, self._settings)
        except treelite.TreeliteError as error:
            raise InvalidArgumentError(
                f"model '{model.name}': '{path}' cannot be read as {self._settings.model_type}: {_sentence(error)}"
            ) from error
        self._num_trees = self._forest.num_tree
        if not self._num_trees or (self._settings.model_type == "lightgbm" and _is_cut(path)):
            raise InvalidArgumentError(f"model '{model.name}': '{path}' has fewer trees than it should, it was cut off")
        # treelite's scores have the shape rows, targets, classes.
        _, num_targets, num_classes = self._predict(np.zeros((1, self._forest.num_feature), np.float32), 1).shape
        if num_targets > 1 and self._settings.is_classifier:
            raise UnsupportedError(
                f"model '{model.name}': a classifier of {num_targets} targets is not supported, one answer per row is"
            )
        self._num_scores = num_targets * num_classes

    # -- running ------------------------------------------------------------------------------------------------------

    def _predict(self, rows: Array, num_threads: int) -> Array:
        try:
            scores: Array = treelite.gtil.predict(self._forest, rows, nthread=num_threads)
        except treelite.TreeliteError as error:
            raise InternalError(f"model '{self._name}': {_sentence(error)}") from error
        return scores


def _read(path: str, settings: ForestSettings) -> Any:
    if settings.model_type == "xgboost":
        return treelite.frontend.load_xgboost_model_legacy_binary(path)
    if settings.model_type == "lightgbm":
        return treelite.frontend.load_lightgbm_model(path)
    if settings.model_type == "treelite_checkpoint":
        return treelite.Model.deserialize(path)
    return treelite.frontend.load_xgboost_model(
        path,
        format_choice="json" if settings.model_type == "xgboost_json" else "ubjson",
        allow_unknown_field=settings.allow_unknown_field,
    )


def _is_cut(path: str) -> bool:
    """Whether a LightGBM file is shorter than the sizes of trees in its header say. treelite reads such a file without
    an error."""
    end = 0
    with open(path, "rb") as file:
        for line in file:
            if line.startswith(b"Tree="):
                break
            end += len(line)
            if line.startswith(b"tree_sizes="):
                end += sum(int(size) for size in line[len(b"tree_sizes=") :].split() if size.isdigit())
    return end > os.path.getsize(path)


def _sentence(error: Exception) -> str:
    match = _TREELITE_SENTENCE.match(str(error))
    assert match is not None  # the pattern matches any text
    return match[1].strip()

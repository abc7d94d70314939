"""The settings in config.pbtxt of a forest, read into one value and checked.

Pure: has the names of the parameters and of the model files in all releases of Triton; does not import treelite. Runs
in a worker.
"""

from dataclasses import dataclass

from shoal.errors import InvalidArgumentError
from shoal.workers.backends import parameters
from shoal.workers.backends.backend import BackendModel, Device

#: Parameter model_type → the file in a version directory, unless default_model_filename says otherwise.
FILENAMES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}

#: Parameters that tune Triton's own predictor and change no answer, with their values. They have no effect here.
_CHOICES_WITHOUT_EFFECT = {
    "layout": ("depth_first", "breadth_first", "layered", "layered_children_together"),
    "algo": ("ALGO_AUTO", "NAIVE", "TREE_REORG", "BATCH_TREE_REORG"),
    "storage_type": ("AUTO", "DENSE", "SPARSE", "SPARSE8"),
}
_NUMBERS_WITHOUT_EFFECT = ("chunk_size", "transfer_threshold", "blocks_per_sm", "threads_per_tree")
_SWITCHES_WITHOUT_EFFECT = ("use_experimental_optimizations",)


@dataclass(frozen=True, slots=True)
class ForestSettings:
    """The settings of one forest: its format, its threads and the form of its answers."""

    model_type: str  # a key of FILENAMES
    is_classifier: bool
    predict_proba: bool  # a classifier answers scores, not the number of a class
    threshold: float  # a binary classifier answers 1 for scores above this
    allow_unknown_field: bool  # whether an XGBoost file in JSON or UBJSON may have unknown fields
    num_threads: int

    @property
    def is_class_wanted(self) -> bool:
        """Whether the answer is the number of a class."""
        return self.is_classifier and not self.predict_proba


def forest_settings(model: BackendModel, device: Device) -> ForestSettings:
    """The settings of `model`. Raises InvalidArgumentError for an invalid value."""
    model_type = model.parameter("model_type") or "xgboost"
    if model_type not in FILENAMES:
        raise InvalidArgumentError(
            f"{model_type} not recognized as a valid serialization format. Parameter 'model_type' of model "
            f"'{model.name}' may be {', '.join(FILENAMES)}"
        )
    for key, choices in _CHOICES_WITHOUT_EFFECT.items():
        if (value := model.parameter(key)) and value not in choices:
            raise parameters.invalid(model, key, f"one of {', '.join(choices)}", value)
    for key in _NUMBERS_WITHOUT_EFFECT:
        parameters.whole_number(model, key)
    for key in _SWITCHES_WITHOUT_EFFECT:
        _switch(model, key)
    return ForestSettings(
        model_type=model_type,
        is_classifier=_is_classifier(model),
        predict_proba=_switch(model, "predict_proba"),
        threshold=parameters.number(model, "threshold", model.parameter("threshold"), default=0.5),
        allow_unknown_field=_switch(model, "xgboost_allow_unknown_field"),
        num_threads=_num_threads(model, len(device.cores)),
    )


def _is_classifier(model: BackendModel) -> bool:
    """Whether the forest is a classifier, which no file says for certain: as in Triton, the parameter
    `is_classifier` is required, which releases before 25.09 call `output_class`."""
    for key in ("is_classifier", "output_class"):
        if model.parameter(key) is not None:
            return _switch(model, key)
    raise InvalidArgumentError(
        f'Required parameter is_classifier not found in config of model \'{model.name}\': "true" for classes, "false" '
        "for any other number"
    )


def _num_threads(model: BackendModel, num_cores: int) -> int:
    """The number of threads: the worker's cores, or fewer if `cpu_nthread` is set, which Triton reads but does not
    document."""
    value = model.parameter("cpu_nthread")
    asked = 0 if value == "-1" else parameters.whole_number(model, "cpu_nthread", value)
    return min(asked, num_cores) if asked > 0 else num_cores


def _switch(model: BackendModel, key: str) -> bool:
    words = {"true": True, "false": False}
    return parameters.flag(model, key, model.parameter(key), words, "'true' or 'false'", _expected, default=False)


def _expected(model: BackendModel, key: str, expected: str, value: str) -> InvalidArgumentError:
    """The error for an invalid value, in Triton's words."""
    return InvalidArgumentError(f"Expected {expected} for parameter '{key}', got: '{value}', in model '{model.name}'")

"""Functions that handlers import: classes of modules, labels, YAML, and the exception with a status of its own."""

import functools
import inspect
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import ModuleType
from typing import Any, TypeVar

Result = TypeVar("Result")

#: HTML tags and entities, which text handlers remove.
CLEANUP_REGEX = re.compile("<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")


class PT2Backend(str, Enum):
    """The backends of torch.compile that `pt2` in a model's YAML file may name."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


class PredictionException(Exception):
    """An error of a handler with the status and the message that its client gets."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        self.message = message
        self.error_code = error_code
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that a module itself defines, in the order of their names; with `parent_class`, only its
    subclasses."""
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return classes if parent_class is None else [each for each in classes if issubclass(each, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, Any] | None:
    """The labels of classes from an index_to_name.json; None if there is no such file.

    The file maps a class's number to a label, or to a list that ends with the label. In an old form it has a list of
    labels under `object_type_names`. Raises TypeError for any other form.
    """
    if not os.path.isfile(mapping_file_path):
        return None
    with open(mapping_file_path) as file:
        mapping = json.load(file)
    if not isinstance(mapping, dict):
        raise TypeError(f"'{mapping_file_path}' must be a JSON object of classes and labels, got {type(mapping)}")
    if isinstance(names := mapping.get("object_type_names"), list):
        return {str(index): str(name) for index, name in enumerate(names)}
    return {key: _label(value, mapping_file_path) for key, value in mapping.items()}


def _label(value: object, path: str) -> str:
    if isinstance(value, list) and value:
        value = value[-1]
    if not isinstance(value, str):
        raise TypeError(f"a label in '{path}' must be a string or a list with a string at its end, got {value!r}")
    return value


def map_class_to_label(
    probs: Sequence[Sequence[float]],
    mapping: Mapping[str, Any] | None = None,
    lbl_classes: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, float]]:
    """For each row of `probs` {label: probability}; `lbl_classes` has the class of each probability, by default 0, 1,
    2, …"""
    classes = lbl_classes if lbl_classes is not None else [range(len(row)) for row in probs]
    labels = mapping or {}
    return [
        {str(labels.get(str(each), each)): probability for each, probability in zip(numbers, row, strict=False)}
        for numbers, row in zip(classes, probs, strict=False)
    ]


def get_yaml_config(yaml_file_path: str) -> dict[str, Any]:
    """A YAML file as a dict; {} for an empty one."""
    import yaml

    with open(yaml_file_path, "rb") as file:
        return yaml.safe_load(file) or {}


def check_pt2_enabled() -> bool:
    """Whether torch has torch.compile."""
    import torch

    return hasattr(torch, "compile")


def check_valid_pt2_backend(backend: str) -> bool:
    """Whether `pt2` may name this backend of torch.compile."""
    return backend in {each.value for each in PT2Backend}


def deprecated(
    version: str, replacement: str = "", use_instead: str = ""
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """A decorator for functions that a later version removes: each call warns, and names the replacement."""
    instead = use_instead or replacement

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def warned(*arguments: Any, **options: Any) -> Result:
            text = f"{function.__name__} goes with version {version}" + (f", use {instead} instead" if instead else "")
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return function(*arguments, **options)

        return warned

    return decorate

"""What is known of outputs' shapes before a model has run."""

from typing import Any

import numpy as np
import pytest

from shoal.model_config.signature import Signature
from shoal.workers.backends.output_shapes import FileShapes, OutputShapes
from tests.workers.worker_harness import model_config, tensor_config

X = np.zeros((2, 5, 7), np.float32)


def shapes_of(
    outputs: list[dict[str, Any]], file_outputs: FileShapes, max_batch_size: int = 8, **inputs: Any
) -> OutputShapes | None:
    config = model_config([tensor_config("X", "TYPE_FP32", [-1, -1])], outputs, max_batch_size=max_batch_size)
    return OutputShapes.of(Signature.from_config(config), {"X": ["N", "S", "T"], **inputs}, file_outputs)


@pytest.mark.parametrize(
    ("dims", "in_file", "expected"),
    [
        ([3, 4], ["N", 3, 4], (2, 3, 4)),
        ([3, -1], ["N", "S", 4], (2, 3, 4)),  # what the configuration says holds; the file knows the rest
        ([-1, 64], ["N", "S", 64], (2, 5, 64)),
        ([-1, -1], ["batch", "T", "S"], (2, 7, 5)),
        ([], ["N"], (2,)),
        ([-1], ["N", "S"], (2, 5)),
        ([-1], ["N", "other"], None),
        ([-1], ["N", None], None),
        ([-1], ["N", "S", "T"], None),  # of another rank
    ],
)
def test_a_size_is_the_configurations_the_files_or_an_inputs(
    dims: list[int], in_file: list[Any], expected: tuple[int, ...] | None
) -> None:
    shapes = shapes_of([tensor_config("Y", "TYPE_FP32", dims)], {"Y": in_file})
    assert (None if shapes is None else shapes.of_batch({"X": X}, 2, 0)) == (expected and {"Y": expected})
    assert shapes is None or shapes.are_guessed == (-1 in dims and in_file != ["N", "S", 4])


def test_without_a_batch_dimension_the_first_is_one_like_the_others() -> None:
    shapes = shapes_of([tensor_config("Y", "TYPE_FP32", [-1, 3])], {"Y": ["N", 3]}, max_batch_size=0)
    assert shapes is not None
    assert shapes.of_batch({"X": X}, 1, 0) == {"Y": (2, 3)}


def test_all_must_be_known_and_of_a_size() -> None:
    known = tensor_config("Y", "TYPE_FP32", [4])
    assert shapes_of([known, tensor_config("Z", "TYPE_FP32", [-1])], {"Y": ["N", 4], "Z": ["N", "?"]}) is None
    assert shapes_of([known, tensor_config("Z", "TYPE_STRING", [4])], {"Y": ["N", 4], "Z": ["N", 4]}) is None


@pytest.mark.parametrize("dims", [[5, 7], [-1, -1]])
def test_small_outputs_are_not_worth_it(dims: list[int]) -> None:
    shapes = shapes_of([tensor_config("Y", "TYPE_FP32", dims)], {"Y": ["N", "S", "T"]})
    assert shapes is not None
    nbytes = X.nbytes
    assert shapes.of_batch({"X": X}, 2, nbytes) == {"Y": X.shape}
    assert shapes.of_batch({"X": X}, 2, nbytes + 1) is None


def test_nothing_is_known_without_the_input() -> None:
    shapes = shapes_of([tensor_config("Y", "TYPE_FP32", [-1])], {"Y": ["N", "S"]})
    assert shapes is not None
    assert shapes.of_batch({}, 2, 0) is None

"""batch_input and batch_output in a configuration: Triton's sentences, and where Triton has none."""

from pathlib import Path

import pytest

from shoal.model_config import pbtxt
from shoal.model_config.checks import batch_tensors

TENSORS = """
name: "m"
input [ { name: "X" data_type: TYPE_FP32 dims: -1 }, { name: "O" data_type: TYPE_FP32 dims: -1 optional: true } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: -1 }, { name: "M" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
"""


def found(text: str) -> list[str]:
    """The first fault, as a load tells it."""
    return [next(batch_tensors(pbtxt.parse(TENSORS + text, Path("config.pbtxt"))), "")]


def test_what_is_right() -> None:
    made = 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "N" data_type: TYPE_FP32 source_input: "X" }'
    scattered = 'batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }'
    assert found(made + scattered) == [""]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 }",
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0",
        ),
        (
            'batch_input { source_input: "X" data_type: TYPE_INT64 }',
            "batch input data type must be TYPE_INT32 or TYPE_FP32",
        ),
        ('batch_input { source_input: "Z" data_type: TYPE_INT32 }', "unknown source input name 'Z'"),
        (
            'batch_input { source_input: "O" data_type: TYPE_INT32 }',
            "source input 'O' of a batch input cannot be optional",
        ),
        (
            'batch_input { target_name: "X" source_input: "X" data_type: TYPE_INT32 }',
            "target input name 'X' of a batch input is an input of clients, too, for m",
        ),
        (
            'batch_output { source_input: [ "X", "X" ] }',
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2",
        ),
        ('batch_output { source_input: "X" target_name: "Z" }', "unknown target output name 'Z'"),
        (
            'batch_output { source_input: "X" target_name: [ "Y", "Y" ] }',
            "target output name 'Y' can only be specified once",
        ),
        (
            'batch_output { source_input: "X" target_name: "M" }',
            "target output 'M' has more dims than source input 'X' for m",
        ),
    ],
)
def test_what_is_not(text: str, sentence: str) -> None:
    assert found(text) == [sentence]

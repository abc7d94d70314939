"""model_config/checks.py: inputs and outputs, fault by fault."""

from pathlib import Path

import pytest

from shoal.model_config import pbtxt
from shoal.model_config.checks import tensors

INPUT = 'input { name: "X" data_type: TYPE_FP32 dims: 4 }'
OUTPUT = 'output { name: "Y" data_type: TYPE_FP32 dims: 4 }'


def faults(text: str) -> list[str]:
    return list(tensors(pbtxt.parse(f'name: "m" backend: "onnxruntime" {text}', Path("config.pbtxt"))))


def test_sound_tensors() -> None:
    assert faults(f"{INPUT} {OUTPUT}") == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("data_type: TYPE_FP32 dims: 1", "model input must specify 'name' for m"),
        ('name: "X" dims: 1', "model input 'X' must specify 'data_type' for m"),
        ('name: "X" data_type: TYPE_FP32', "model input 'X' must specify 'dims' for m"),
        *(
            (
                f'name: "X" data_type: TYPE_FP32 dims: [ 2, {dim} ]',
                "model input 'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
            )
            for dim in (0, -2)
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: 2 reshape { shape: [ 2, 0 ] }',
            "model input 'X' reshape dimensions must be integer >= 1, "
            "or -1 to indicate a variable-size dimension for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 2, 2 ] format: FORMAT_NHWC',
            "model input NHWC/NCHW require 3 dims for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: 1 reshape { shape: [ ] }',
            "model input 'X' cannot have empty reshape for non-batching model "
            "as scalar tensors are not supported for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: [ 5 ] }',
            "model input 'X' has different size for dims and reshape for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }',
            "model input 'X' has different size for dims and reshape for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ -1, -1, 3 ] }',
            "model input 'X' has different number of variable-size dimensions for dims and reshape for m",
        ),
    ],
)
def test_the_first_fault_of_an_input(fields: str, sentence: str) -> None:
    assert faults(f"input {{ {fields} }} {OUTPUT}")[0] == sentence


@pytest.mark.parametrize(
    ("dims", "shape"),
    [("[ 2, 3 ]", "[ 6 ]"), ("[ -1, 2, 3 ]", "[ -1, 6 ]"), ("[ 4, -1 ]", "[ 2, 2, -1 ]"), ("[ 1 ]", "[ ]")],
)
def test_a_reshape_of_the_same_elements(dims: str, shape: str) -> None:
    text = f'input {{ name: "X" data_type: TYPE_FP32 dims: {dims} reshape {{ shape: {shape} }} }}'
    assert faults(f"max_batch_size: 1 {text} {OUTPUT}") == []


def test_outputs_are_called_so() -> None:
    assert faults(f'{INPUT} output {{ name: "Y" dims: 1 }}') == ["model output 'Y' must specify 'data_type' for m"]


def test_a_name_given_twice() -> None:
    assert faults(f"{INPUT} {INPUT} {OUTPUT}") == ["model input 'X' is specified 2 times for m; give each its own name"]


def test_an_input_and_an_output_may_share_a_name() -> None:
    assert faults(f"{INPUT} {INPUT.replace('input', 'output')}") == []


@pytest.mark.parametrize(("text", "field"), [(INPUT, "output"), (OUTPUT, "input")])
def test_a_list_that_is_missing(text: str, field: str) -> None:
    assert faults(text) == [
        f"model 'm' has no '{field}' in its configuration; list every {field} with name, data_type and dims "
        "(only where auto-complete is on and the model tells them itself may the list be left out)"
    ]


def test_optional_inputs_only_without_batches() -> None:
    optional = f'{INPUT} {OUTPUT} input {{ name: "O" data_type: TYPE_FP32 dims: 1 optional: true }}'
    assert faults(optional) == []
    assert faults(f"max_batch_size: 1 {optional}") == [
        "model input 'O' can only be optional with max_batch_size 0 for m: "
        "ONNX Runtime's overridable initializers have no batch dimension"
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'input { name: "X" data_type: TYPE_INT8 dims: [ 1099511627776, 1099511627776 ] }',
            "model input 'X' has dimension 1099511627776, must be at most 2147483647 for m",
        ),
        (
            f'input {{ name: "X" data_type: TYPE_INT8 dims: [ {"1, " * 999} 1 ] }}',
            "model input 'X' has 1000 dims, at most 31 are allowed for m",
        ),
        (
            'max_batch_size: 2147483647 input { name: "X" data_type: TYPE_FP32 dims: [ 268435456 ] }',
            "model input 'X' with dims [268435456] takes 2305843008139952128 bytes at max_batch_size 2147483647, "
            "more than the 1099511627776 a tensor may have; lower one of the two for m",
        ),
        (
            'input { name: "X" data_type: TYPE_STRING dims: [ 2147483647, 129 ] }',
            "model input 'X' with dims [2147483647,129] takes 1108101561852 bytes at max_batch_size 0, "
            "more than the 1099511627776 a tensor may have; lower one of the two for m",
        ),
        (
            'input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] reshape { shape: [ 2, ' + "1, " * 31 + "1 ] } }",
            "model input 'X' has a reshape of 33 dims, at most 31 are allowed for m",
        ),
        (
            'input { name: "X" } ' * 1025,
            "model 'm' lists 1025 entries of 'input', at most 1024 are allowed",
        ),
    ],
    ids=["dim", "dims", "batch", "strings", "reshape", "tensors"],
)
def test_absurd_sizes_are_refused(text: str, sentence: str) -> None:
    assert faults(f"{text} {OUTPUT}")[0] == sentence

"""warmup.py: what is wrong with a sample without a look at files, in Triton's words."""

from pathlib import Path

import pytest

from shoal.model_config import pbtxt, warmup
from shoal.model_config.messages import Config
from shoal.model_config.warmup import faults, samples

TENSORS = """
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 2, -1 ] }, { name: "S" data_type: TYPE_STRING dims: 1 } ]
    output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
ID = "[request id: <id_unknown>] "
X = 'inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2, 3 ] random_data: true } }'
S = 'inputs { key: "S" value { data_type: TYPE_STRING dims: 1 input_data_file: "words" } }'


def config(sample: str, top: str = "") -> Config:
    return pbtxt.parse(f'name: "m" {TENSORS} {top} model_warmup {{ {sample} }}', Path("config.pbtxt"))


def x(fields: str) -> str:
    return f'batch_size: 1 {S} inputs {{ key: "X" value {{ {fields} }} }}'


@pytest.mark.parametrize("top", ["", "max_batch_size: 4"])
@pytest.mark.parametrize(
    "sample",
    [
        f"batch_size: 1 {X} {S}",
        f'name: "much" batch_size: 4294967295 count: 4294967295 {X} {S}',
        "",
        'inputs { key: "nobody" value { dims: -1 } }',  # batch_size 0: never made
        x("data_type: TYPE_FP32 dims: [ 2, 0 ] zero_data: true"),
    ],
)
def test_a_sound_sample_passes(sample: str, top: str) -> None:
    assert list(faults(config(sample, top))) == []


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        (
            x("data_type: TYPE_FP32 dims: [ 2, -1 ] zero_data: true"),
            "warmup setting expects all variable-size dimensions are specified for input 'X'",
        ),
        (
            x("data_type: TYPE_FP32 dims: [ 2, 3 ]"),
            f"{ID}warmup setting expects input 'X' to have input_data_type set",
        ),
        (
            f'batch_size: 1 {X} {S} inputs {{ key: "Z" value {{ zero_data: true }} }}',
            "unexpected inference input 'Z' for model 'm'",
        ),
        (
            f"batch_size: 1 {S}",
            f"{ID}expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['S'], but missing required input(s) "
            "['X']. Please provide all required input(s).",
        ),
        (
            x("data_type: TYPE_INT32 dims: [ 2, 3 ] zero_data: true"),
            f"{ID}inference input 'X' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            x("dims: [ 2, 3 ] zero_data: true"),
            f"{ID}inference input 'X' data-type is '<invalid>', but model 'm' expects 'FP32'",
        ),
        (
            x("data_type: TYPE_FP32 dims: [ 3, 3 ] zero_data: true"),
            f"{ID}unexpected shape for input 'X' for model 'm'. Expected [2,-1], got [3,3]. ",
        ),
        (
            x("data_type: TYPE_FP32 dims: 2 zero_data: true"),
            f"{ID}unexpected shape for input 'X' for model 'm'. Expected [2,-1], got [2]. ",
        ),
        (
            x("data_type: TYPE_FP32 dims: [ 2, -7 ] zero_data: true"),
            f"{ID}unexpected shape for input 'X' for model 'm'. Expected [2,-1], got [2,-7]. ",
        ),
        (
            x("data_type: TYPE_FP32 dims: [ 2, 9223372036854775807 ] zero_data: true"),
            "warmup sample's input 'X' for model 'm' takes 73786976294838206456 bytes, more than the 4294963200 that a "
            "request may have; give it smaller dims",
        ),
    ],
)
def test_a_fault(sample: str, sentence: str) -> None:
    assert next(faults(config(sample))) == sentence


def test_shapes_are_told_with_the_batch_dimension() -> None:
    broken = config(x("data_type: TYPE_FP32 dims: [ 3, 3 ] zero_data: true"), "max_batch_size: 4")
    assert next(faults(broken)) == (
        f"{ID}unexpected shape for input 'X' for model 'm'. Expected [-1,2,-1], got [1,3,3]. "
    )


def test_an_optional_input_may_be_left_out() -> None:
    given = config(f"batch_size: 1 {S}")
    given["input"][0]["optional"] = True
    assert list(faults(given)) == []


def test_one_faulty_sample_among_sound_ones_is_found() -> None:
    given = config(f"batch_size: 1 {X} {S}")
    given["model_warmup"].append({**given["model_warmup"][0], "inputs": {}})
    assert [sentence[:40] for sentence in faults(given)] == [f"{ID}expected 2 in"]


def test_samples_of_batch_size_0_are_skipped() -> None:
    given = config(f"batch_size: 1 {X} {S}")
    given["model_warmup"].append({**given["model_warmup"][0], "batch_size": 0})
    assert samples(given) == given["model_warmup"][:1]


def test_the_names_of_the_fields_are_those_of_the_message() -> None:
    given = {warmup.ZERO_DATA: "true", warmup.RANDOM_DATA: "true", warmup.INPUT_DATA_FILE: '"a"'}
    for field, value in given.items():
        (sample,) = config(x(f"{field}: {value}"))["model_warmup"]
        assert field in sample["inputs"]["X"]

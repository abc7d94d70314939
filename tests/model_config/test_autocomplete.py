"""autocomplete.py: what an ONNX file or a model.py adds to a configuration, and what it leaves alone."""

import copy
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import messages, pbtxt
from shoal.model_config.autocomplete import IOTensor, ModelIO, complete, complete_from_file, needs_autocomplete
from shoal.model_config.messages import Config

BATCHING = ModelIO(
    inputs=(IOTensor("X", "TYPE_FP32", (-1, 512)), IOTensor("N", "TYPE_INT64", (-1,))),
    outputs=(IOTensor("Y", "TYPE_FP32", (-1, -1, 10)),),
)
FIXED = ModelIO((IOTensor("X", "TYPE_FP32", (1, 512)),), (IOTensor("Y", "TYPE_FP32", (-1, 10)),))
SCALAR = ModelIO((IOTensor("X", "TYPE_FP32", (-1, 4)),), (IOTensor("LOSS", "TYPE_FP32", ()),))

INPUT = 'input { name: "X" data_type: TYPE_FP32 dims: 512 }'
OUTPUT = 'output { name: "Y" data_type: TYPE_FP32 dims: 10 }'


def parsed(text: str) -> Config:
    return pbtxt.parse(f'name: "m" backend: "onnxruntime" {text}', Path("config.pbtxt"))


def tensors(config: Config, field: str) -> list[tuple[str, str, list[int], object]]:
    return [(t["name"], t["data_type"], t["dims"], t.get("reshape")) for t in config[field]]


def test_a_batching_model_gets_rows_and_the_dynamic_batcher() -> None:
    config = complete_from_file(parsed(""), BATCHING)
    assert config["max_batch_size"] == 4
    assert tensors(config, "input") == [
        ("X", "TYPE_FP32", [512], None),
        ("N", "TYPE_INT64", [1], {"shape": []}),
    ]
    assert tensors(config, "output") == [("Y", "TYPE_FP32", [-1, 10], None)]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0


@pytest.mark.parametrize(("text", "max_batch_size"), [("", 0), ("max_batch_size: 8", 8)])
def test_a_file_that_leaves_batching_open_leaves_max_batch_size_too(text: str, max_batch_size: int) -> None:
    config = complete_from_file(parsed(text), BATCHING._replace(fills_max_batch_size=False))
    assert config["max_batch_size"] == max_batch_size
    assert config["input"][0]["dims"] == ([512] if max_batch_size else [-1, 512])


@pytest.mark.parametrize("model_io", [FIXED, SCALAR])
def test_one_fixed_first_dimension_means_no_batching(model_io: ModelIO) -> None:
    config = complete_from_file(parsed(""), model_io)
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert config["input"][0]["dims"] == list(model_io.inputs[0].dims)


def test_a_scalar_of_a_model_that_does_not_batch_is_one_element_without_reshape() -> None:
    assert tensors(complete_from_file(parsed(""), SCALAR), "output") == [("LOSS", "TYPE_FP32", [1], None)]


@pytest.mark.parametrize(
    ("text", "default", "max_batch_size", "is_dynamic"),
    [
        ("", 16, 16, True),
        ("", 1, 1, False),
        ("", 0, 0, False),
        ("", -3, 0, False),
        ("max_batch_size: 32", 4, 32, True),
        ("max_batch_size: 1", 4, 1, False),
    ],
)
def test_max_batch_size_and_the_scheduler(text: str, default: int, max_batch_size: int, is_dynamic: bool) -> None:
    config = complete_from_file(parsed(text), BATCHING, default)
    assert config["max_batch_size"] == max_batch_size
    assert ("dynamic_batching" in config) is is_dynamic
    assert config["input"][0]["dims"] == ([512] if max_batch_size else [-1, 512])


def test_a_scheduler_that_is_set_stays() -> None:
    given = parsed("dynamic_batching { max_queue_delay_microseconds: 7 }")
    assert complete_from_file(given, BATCHING)["dynamic_batching"] == given["dynamic_batching"]
    assert "dynamic_batching" not in complete_from_file(parsed("sequence_batching {}"), BATCHING)


def test_what_is_listed_stays() -> None:
    config = complete_from_file(parsed('input { name: "mine" data_type: TYPE_FP16 dims: 7 }'), BATCHING)
    assert tensors(config, "input") == [("mine", "TYPE_FP16", [7], None)]
    assert tensors(config, "output") == [("Y", "TYPE_FP32", [-1, 10], None)]


def test_a_model_with_inputs_and_outputs_listed_is_left_alone() -> None:
    given = parsed(f"{INPUT} {OUTPUT}")
    assert complete_from_file(given, BATCHING) == given


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", True), (INPUT, True), (OUTPUT, True), (f"{INPUT} {OUTPUT}", False)],
)
def test_needs_autocomplete(text: str, expected: bool) -> None:
    assert needs_autocomplete(parsed(text)) is expected
    assert not needs_autocomplete({**parsed(text), "backend": "identity"})


def test_a_batch_size_for_a_model_that_cannot_batch_is_refused() -> None:
    given = parsed("max_batch_size: 8")
    before = copy.deepcopy(given)
    with pytest.raises(InvalidArgumentError) as caught:
        complete_from_file(given, FIXED)
    assert str(caught.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )
    assert given == before


# -- what a model.py has made of its configuration --

TENSOR = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def python(**fields: Any) -> Config:
    return {"name": "m", "backend": "python", "max_batch_size": 0, "input": [], "output": [], **fields}


def test_a_model_py_is_always_asked() -> None:
    assert needs_autocomplete(python(input=[TENSOR], output=[TENSOR]))


def test_everything_it_may_set_comes_back() -> None:
    completed = python(
        max_batch_size=8,
        input=[{**TENSOR, "optional": True}],
        output=[TENSOR],
        dynamic_batching={},
        model_transaction_policy={"decoupled": True},
        instance_group=[{"count": 9}],
    )
    assert complete(python(), ModelIO((), (), completed)) == python(
        max_batch_size=8,
        input=[{**messages.model_input("X", "TYPE_FP32", [4]), "optional": True}],
        output=[messages.model_output("X", "TYPE_FP32", [4])],
        dynamic_batching=messages.dynamic_batching(),
        model_transaction_policy={"decoupled": True},
    )  # and nothing that it may not


def test_what_is_configured_stays_as_it_is() -> None:
    configured = messages.model_input("X", "TYPE_FP32", [4])
    batching = {**messages.dynamic_batching(), "max_queue_delay_microseconds": 5}
    config = python(input=[configured], output=[TENSOR], dynamic_batching=batching)
    completed = python(input=[{**configured, "format": "FORMAT_NCHW"}], output=[TENSOR], dynamic_batching={})
    assert complete(config, ModelIO((), (), completed)) == config


@pytest.mark.parametrize(
    "fields",
    [
        {"max_batch_size": "8"},
        {"max_batch_size": True},
        {"input": None},
        {"input": TENSOR},
        {"input": [5]},
        {"output": [{**TENSOR, "name": 5}]},
        {"output": [{**TENSOR, "dims": [1.5]}]},
        {"output": [{**TENSOR, "dims": 4}]},
        {"input": [{**TENSOR, "optional": 1}]},
    ],
)
def test_a_users_code_is_not_taken_on_trust(fields: Config) -> None:
    with pytest.raises(InvalidArgumentError, match="auto_complete_config of model 'm' has set"):
        complete(python(), ModelIO((), (), python(**fields)))

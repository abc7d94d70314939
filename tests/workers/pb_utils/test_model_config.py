"""model_config.py: what auto_complete_config may set, and look-ups."""

from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import ModelConfig

X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields: Any) -> ModelConfig:
    return ModelConfig({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields})


def test_everything_can_be_completed() -> None:
    made = config()
    made.set_max_batch_size(8)
    made.set_dynamic_batching()
    made.add_input({**X, "optional": True})
    made.add_output(X)
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [{**X, "optional": True}],
        "output": [X],
        "model_transaction_policy": {"decoupled": True},
    }
    assert pb_utils.using_decoupled_model_transaction_policy(made.as_dict())


def test_what_is_configured_stays() -> None:
    made = config(input=[{**X, "format": "FORMAT_NONE"}], dynamic_batching={"preferred_batch_size": [2]})
    made.add_input(X)
    made.set_dynamic_batching()
    assert made.as_dict()["input"] == [{**X, "format": "FORMAT_NONE"}]
    assert made.as_dict()["dynamic_batching"] == {"preferred_batch_size": [2]}


def test_what_is_named_and_left_open_is_filled() -> None:
    opened = {"name": "X", "data_type": "TYPE_INVALID", "dims": [], "optional": True}
    made = config(input=[opened], output=[dict(opened)])
    made.add_input(X)
    made.add_output(X)
    assert made.as_dict()["input"] == made.as_dict()["output"] == [{**X, "optional": True}]


WHERE = "in auto-complete-config function for model 'm'"


@pytest.mark.parametrize(
    ("fields", "call", "sentence"),
    [
        (
            {"max_batch_size": 8},
            lambda made: made.set_max_batch_size(4),
            "configuration specified max_batch_size 8, but in auto-complete-config function for model 'm' specified "
            "max_batch_size 4",
        ),
        (
            {"sequence_batching": {}},
            lambda made: made.set_dynamic_batching(),
            "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for "
            "model 'm' tries to set scheduling_choice as 'dynamic_batching'",
        ),
        (
            {"input": [X]},
            lambda made: made.add_input({**X, "dims": [5]}),
            "model 'm', tensor 'X': the model expects dims [5] but the model configuration specifies dims [4]",
        ),
        (
            {"output": [X]},
            lambda made: made.add_output({**X, "data_type": "TYPE_INT8"}),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'X', model provides "
            "TYPE_INT8",
        ),
        (
            {},
            lambda made: made.add_input({**X, "shape": []}),
            f"input 'X' {WHERE} contains property other than 'name', 'data_type', 'dims' and 'optional'.",
        ),
        (
            {},
            lambda made: made.add_output({**X, "optional": True}),
            f"output 'X' {WHERE} contains property other than 'name', 'data_type' and 'dims'.",
        ),
        ({}, lambda made: made.add_input({"dims": [1]}), f"input {WHERE} is missing 'name' property."),
        (
            {},
            lambda made: made.add_input({"name": "X", "data_type": "TYPE_FP32"}),
            f"input 'X' {WHERE} is missing 'dims' property.",
        ),
        (
            {"model_transaction_policy": {"decoupled": True}},
            lambda made: made.set_model_transaction_policy({"decoupled": False}),
            "trying to change decoupled property in auto-complete-config for model 'm', which is already set to "
            "'True'.",
        ),
        (
            {"model_transaction_policy": {"decoupled": False}},
            lambda made: made.set_model_transaction_policy({"decoupled": True}),
            "trying to change decoupled property in auto-complete-config for model 'm', which is already set to "
            "'False'.",
        ),
        (
            {"input": [{**X, "optional": True}]},
            lambda made: made.add_input({**X, "optional": False}),
            "model 'm', tensor 'X': the model expects optional False but the model configuration specifies optional "
            "True",
        ),
        (
            {},
            lambda made: made.set_model_transaction_policy({"x": 1}),
            f"model transaction property {WHERE} contains property other than 'decoupled'.",
        ),
    ],
)
def test_disagreements_have_tritons_sentences(fields: Any, call: Any, sentence: str) -> None:
    made = config(**fields)
    before = repr(made.as_dict())
    with pytest.raises(ValueError, match="m") as caught:
        call(made)
    assert str(caught.value) == sentence
    assert repr(made.as_dict()) == before


def test_tensors_are_looked_up_by_name() -> None:
    made = {"input": [X], "output": []}
    assert pb_utils.get_input_config_by_name(made, "X") == X
    assert pb_utils.get_output_config_by_name(made, "X") is None
    assert pb_utils.get_output_config_by_name({}, "X") is None
    assert not pb_utils.using_decoupled_model_transaction_policy({})

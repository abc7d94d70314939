"""ragged_batching.py: the parameters, what they mean, and what contradicts them."""

from typing import Any

import pytest

from shoal.model_config.ragged_batching import (
    ALL,
    Lengths,
    Strategy,
    faults,
    faults_when_finished,
    following_outputs,
    length_axes,
    lengths,
    mask,
)
from shoal.model_config.support import BACKENDS

WHICH = "parameter 'ragged' of model 'm'"


def tensor(name: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "dims": list(dims), "optional": False, "allow_ragged_batch": False, **more}


IDS, FIXED = tensor("IDS", -1), tensor("FIXED", 3)


def config(*, inputs: tuple[dict[str, Any], ...] = (IDS,), fields: Any = None, **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "input": list(inputs),
        "output": [tensor("STATES", -1, 4), tensor("POOLED", 4), tensor("PAIRS", -1, -1)],
        "batch_input": [],
        "batch_output": [],
        "dynamic_batching": {},
        "parameters": {key: {"string_value": text} for key, text in parameters.items()},
        **(fields or {}),
    }


def found(given: dict[str, Any]) -> list[str]:
    return list(faults(given)) or list(faults_when_finished(given))


def test_without_the_parameter_shapes_decide() -> None:
    given = config()
    assert found(given) == []
    assert (lengths(given), length_axes(given), mask(given)) == (None, {}, None)


def test_what_is_padded_cut_and_made() -> None:
    given = config(
        inputs=(IDS, tensor("EMBEDDED", 4, -1), FIXED),
        ragged="pad", ragged_buckets="32,64", ragged_mask="MASK:TYPE_INT64", max_batch_elements="4096",
    )  # fmt: skip
    assert found(given) == []
    assert lengths(given) == Lengths(Strategy.PAD, (32, 64), 4096)
    assert length_axes(given) == {"IDS": 0, "EMBEDDED": 1}
    assert mask(given) == ("MASK", "TYPE_INT64")
    assert following_outputs(given) == {"STATES": 0}
    assert following_outputs(config(ragged="pad", ragged_outputs="")) == {}


def test_all_elements_of_a_packed_input_count() -> None:
    given = config(inputs=(tensor("IDS", -1, allow_ragged_batch=True), FIXED), ragged="pack", max_batch_elements="9")
    assert found(given) == []
    assert length_axes(given) == {"IDS": ALL}


@pytest.mark.parametrize(
    ("strategy", "buckets", "padded"),
    [
        (Strategy.PAD, (), {1: 1, 5: 5, 8: 8}),
        (Strategy.PAD, (4, 8), {1: 4, 5: 8, 8: 8, 9: 9}),
        (Strategy.BUCKET, (), {1: 1, 2: 2, 5: 8, 8: 8, 9: 16}),
        (Strategy.BUCKET, (4, 8), {4: 4, 9: 9}),
    ],
)
def test_buckets(strategy: Strategy, buckets: tuple[int, ...], padded: dict[int, int]) -> None:
    known = Lengths(strategy, buckets, 0)
    assert {length: known.padded(length) for length in padded} == padded


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (config(ragged="yes"), f"{WHICH} is 'yes', must be 'pad', 'bucket' or 'pack'"),
        (
            config(ragged_mask="M:TYPE_BOOL"),
            "parameter 'ragged_mask' of model 'm' has no effect without 'ragged'. Add it",
        ),
        (
            config(ragged="pad", ragged_buckets="64,32"),
            "parameter 'ragged_buckets' of model 'm' is '64,32', must be at most 64 ascending lengths, as in "
            "'32,64,128'",
        ),
        (
            config(ragged="pad", ragged_mask="M:TYPE_FP16"),
            "parameter 'ragged_mask' of model 'm' is 'M:TYPE_FP16', must be the name and data type of an input, as in "
            "'MASK:TYPE_INT64'; data types are TYPE_BOOL, TYPE_INT32, TYPE_INT64 and TYPE_FP32",
        ),
        (
            config(ragged="pad", max_batch_elements="0"),
            "parameter 'max_batch_elements' of model 'm' is '0', must be a whole number from 1 to 2147483647",
        ),
        (
            config(ragged="pad", latency_target_ms="50"),
            f"{WHICH} cannot be combined with parameter 'latency_target_ms'. Remove one of them",
        ),
        (
            config(ragged="pad", fields={"dynamic_batching": {"preferred_batch_size": [4]}}),
            f"{WHICH} cannot be combined with preferred_batch_size. Remove one of them",
        ),
        (
            config(ragged="pad", fields={"dynamic_batching": {"priority_levels": 2}}),
            f"{WHICH} cannot be combined with priority_levels. Remove one of them",
        ),
        (
            config(ragged="pack", ragged_buckets="3", inputs=(tensor("IDS", -1, allow_ragged_batch=True),)),
            "parameter 'ragged_buckets' of model 'm' is about padding, and 'ragged' is 'pack'. Remove it",
        ),
        (
            config(ragged="pack", inputs=(FIXED,)),
            f"{WHICH} is 'pack', but no input has 'allow_ragged_batch: true'",
        ),
        (
            config(ragged="pack", inputs=(tensor("A", -1, allow_ragged_batch=True), IDS)),
            f"{WHICH} is 'pack', but input 'IDS' has a dimension of -1 and no 'allow_ragged_batch: true'",
        ),
        (config(ragged="pad", inputs=(FIXED,)), f"{WHICH} is 'pad', but no input has a dimension of -1"),
        (
            config(ragged="pad", inputs=(tensor("IMAGE", -1, -1),)),
            f"{WHICH} is 'pad', for which input 'IMAGE' must have one dimension of -1, and no 'reshape'",
        ),
        (
            config(ragged="pad", inputs=(IDS, tensor("B", 1, optional=True))),
            f"{WHICH} is 'pad', for which all requests must have all inputs: remove 'optional'",
        ),
        (
            config(ragged="bucket", fields={"backend": "openvino"}),
            f"{WHICH} is 'bucket', which backend 'openvino' does not do; only 'onnxruntime', 'pytorch' and 'python' do",
        ),
        (
            config(ragged="pad", ragged_mask="M:TYPE_BOOL", fields={"backend": "python"}),
            "parameter 'ragged_mask' needs a batch that the server pads; a Python model sees each request. Remove it",
        ),
        (
            config(ragged="pad", ragged_mask="IDS:TYPE_INT64"),
            "parameter 'ragged_mask' names input 'IDS', which clients send; remove it from 'input'",
        ),
        (
            config(ragged="pad", ragged_outputs="POOLED"),
            "parameter 'ragged_outputs' names 'POOLED', which is no output with one dimension of -1",
        ),
        (
            config(ragged="pad", fields={"max_batch_size": 1}),
            f"{WHICH} is 'pad', but 'max_batch_size' is 1, must be at least 2",
        ),
    ],
)
def test_a_fault_is_told_with_its_cure(given: dict[str, Any], sentence: str) -> None:
    assert found(given) == [sentence]


def test_each_backend_pads_cannot_or_runs_in_python() -> None:
    refused = [each for each in BACKENDS if found(config(ragged="pad", fields={"backend": each}))]
    assert sorted({*BACKENDS} - {*refused}) == ["onnxruntime", "python", "pytorch"]
    assert found(config(ragged="pad", fields={"backend": "mine"})) == []


def test_there_must_be_dynamic_batching() -> None:
    given = config(ragged="pad")
    del given["dynamic_batching"]
    assert list(faults(given)) == [
        f"{WHICH} is about dynamic batching, which the model has not. Add 'dynamic_batching {{ }}'"
    ]

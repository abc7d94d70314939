"""The identity backend."""

import time
from typing import Any

import numpy as np
import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import ModelIO
from shoal.workers.backends.backend import Device
from shoal.workers.backends.identity import IdentityBackend
from tests.workers.surroundings import model, model_config, tensor_config

CPU = Device("KIND_CPU", 0, (0,))


def config(**parameters: str) -> dict[str, Any]:
    return model_config(
        [tensor_config("INPUT0", "TYPE_FP32", [4]), tensor_config("IN_B", "TYPE_STRING", [1])],
        [tensor_config("OUTPUT0", "TYPE_FP32", [4]), tensor_config("OUT_B", "TYPE_STRING", [1])],
        parameters=parameters,
    )


def test_outputs_are_the_inputs_in_the_configurations_order_and_not_copied() -> None:
    backend = IdentityBackend()
    backend.load(model(config()), CPU)
    first, second = np.zeros((1, 4), np.float32), np.array([[b"x"]], object)
    outputs = backend.run({"IN_B": second, "INPUT0": first})
    assert outputs["OUTPUT0"] is first
    assert outputs["OUT_B"] is second
    backend.unload()


def test_it_describes_no_file() -> None:
    assert IdentityBackend().describe(model(config()), CPU) == ModelIO((), ())


@pytest.mark.parametrize(
    ("instance", "multiplier", "delay_ms"), [("m_0_0", "4", 20), ("m_0_1", "4", 80), ("m_0_2", "0", 20), ("m", "4", 20)]
)
def test_delay_grows_with_the_instance(
    monkeypatch: pytest.MonkeyPatch, instance: str, multiplier: str, delay_ms: int
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    backend = IdentityBackend()
    described = model(config(execute_delay_ms="20", instance_wise_delay_multiplier=multiplier))
    backend.load(
        type(described)("m", 1, instance, "", "", described.config, {}),
        CPU,
    )
    backend.run({})
    assert slept == [pytest.approx(delay_ms / 1000)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"output": [tensor_config("OUTPUT0", "TYPE_FP32", [4])]},
            "model 'm': the identity backend expects as many outputs as inputs, got 2 inputs and 1 outputs",
        ),
        (
            {"output": [tensor_config("A", "TYPE_INT32", [4]), tensor_config("B", "TYPE_STRING", [1])]},
            "expected input and output datatype to match, got TYPE_FP32 and TYPE_INT32",
        ),
        (
            {
                "input": [
                    tensor_config("INPUT0", "TYPE_FP32", [4], allow_ragged_batch=True),
                    tensor_config("B", "TYPE_STRING", [1]),
                ]
            },
            "model 'm', input 'INPUT0': the identity backend joins rows, it cannot take 'allow_ragged_batch'",
        ),
        (
            {"parameters": {"execute_delay_ms": {"string_value": "soon"}}},
            "model 'm': parameter 'execute_delay_ms' must be a whole number, got 'soon'",
        ),
    ],
)
def test_a_configuration_that_cannot_be(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        IdentityBackend().load(model({**config(), **change}), CPU)
    assert str(caught.value) == sentence

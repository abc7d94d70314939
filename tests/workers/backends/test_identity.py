"""The identity backend."""

import time
from typing import Any

import numpy as np
import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends.backend import Device
from shoal.workers.backends.identity import IdentityBackend
from shoal.workers.loop import Loop
from tests.workers.worker_harness import Batcher, model, model_config, strings, tensor_config

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


def test_numbers_pair_inputs_with_outputs_whatever_their_order() -> None:
    names = ("INPUT0", "INPUT1"), ("OUTPUT1", "OUTPUT0")
    inputs, outputs = ([tensor_config(name, "TYPE_FP32", [1]) for name in side] for side in names)
    backend = IdentityBackend()
    backend.load(model(model_config(inputs, outputs)), CPU)
    zero, one = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    assert backend.run({"INPUT0": zero, "INPUT1": one}) == {"OUTPUT0": zero, "OUTPUT1": one}


@pytest.mark.parametrize("max_batch_size", [8, 0])
@pytest.mark.parametrize("given", [True, False])
def test_an_input_that_is_left_out_is_zeros_of_the_smallest_shape(
    max_batch_size: int, given: bool, batcher: Batcher
) -> None:
    """One row of them, where a request has no input that tells how many."""
    kinds = (("0", "TYPE_INT32", [2]), ("1", "TYPE_FP32", [-1, 2]), ("2", "TYPE_STRING", [1]))
    inputs = [tensor_config(f"INPUT{number}", kind, dims, optional=True) for number, kind, dims in kinds]
    outputs = [tensor_config(f"OUTPUT{number}", kind, dims) for number, kind, dims in kinds]
    served = model_config(inputs, outputs, max_batch_size=max_batch_size)
    backend = IdentityBackend()
    backend.load(model(served), CPU)
    loop = Loop(backend, Signature.from_config(served), "m_0_0", batcher.memory())
    rows = (3, 1) if given else (1, 1)
    for batch in [rows] if max_batch_size else [rows[:1], rows[1:]]:
        leading = [(each,) if max_batch_size else () for each in batch]
        tensors = [[("INPUT0", "INT32", np.ones((*shape, 2), np.int32))] if given else [] for shape in leading]
        batcher.send(*map(batcher.request, tensors))
        loop.step()
        for shape, done in zip(leading, batcher.done(), strict=True):
            assert np.array_equal(done.outputs["OUTPUT0"], np.full((*shape, 2), given))
            assert np.array_equal(done.outputs["OUTPUT1"], np.zeros((*shape, 1, 2)))
            assert done.outputs["OUTPUT1"].dtype == np.float32
            assert done.outputs["OUTPUT2"] == strings(b"") * sum(shape or (1,))


def test_loading_can_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    IdentityBackend().load(model(config(creation_delay_sec="2")), CPU)
    assert slept == [2]


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
            "model configuration must have equal input/output pairs: model 'm' has 2 inputs and 1 outputs",
        ),
        (
            {"output": [tensor_config("A", "TYPE_INT32", [4]), tensor_config("B", "TYPE_STRING", [1])]},
            "expected input and output datatype to match, got TYPE_FP32 and TYPE_INT32",
        ),
        (
            {"output": [tensor_config("A", "TYPE_FP32", [4, 1]), tensor_config("B", "TYPE_STRING", [1])]},
            "expected input and output shape to match, got [4] and [4,1]",
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

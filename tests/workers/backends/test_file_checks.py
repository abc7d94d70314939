"""Configuration against model: each of Triton's sentences."""

from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends.file_checks import check
from tests.workers.worker_harness import model_config, tensor_config

MODEL = ModelIO(
    (IOTensor("A", "TYPE_FP32", (-1, 16)), IOTensor("B", "TYPE_STRING", (-1, -1, 3))),
    (IOTensor("Y", "TYPE_FP16", (-1, 2)), IOTensor("extra", "TYPE_FP32", (7,))),
)
A, B, Y = (
    tensor_config("A", "TYPE_FP32", [16]),
    tensor_config("B", "TYPE_STRING", [5, 3]),
    tensor_config("Y", "TYPE_FP16", [2]),
)


def checked(inputs: Any, outputs: Any, *, model: ModelIO = MODEL, initializers: Any = (), **fields: Any) -> None:
    check(Signature.from_config(model_config(inputs, outputs, **fields)), model, initializers)


def test_a_configuration_that_fits() -> None:
    checked([B, A], [Y])
    checked([A, tensor_config("B", "TYPE_STRING", [-1, 3])], [])


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ([A], [Y], "unable to load model 'm', configuration expects 1 inputs, model provides 2"),
        ([A, tensor_config("C", "TYPE_FP32", [1])], [Y], "unexpected inference input 'C', allowed inputs are: A, B"),
        (
            [A, B],
            [tensor_config("Z", "TYPE_FP16", [2])],
            "unexpected inference output 'Z', allowed outputs are: Y, extra",
        ),
        (
            [tensor_config("A", "TYPE_INT32", [16]), B],
            [Y],
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'A', "
            "model provides TYPE_FP32",
        ),
        (
            [A, B],
            [tensor_config("Y", "TYPE_BF16", [2])],
            "unable to load model 'm', configuration expects datatype TYPE_BF16 for output 'Y', "
            "model provides TYPE_FP16",
        ),
        (
            [tensor_config("A", "TYPE_FP32", [4, 4]), B],
            [Y],
            "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
            "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,4,4])",
        ),
        (
            [tensor_config("A", "TYPE_FP32", [-1]), B],
            [Y],
            "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,-1])",
        ),
        (
            [A, B],
            [Y, tensor_config("extra", "TYPE_FP32", [7])],
            "model 'm', tensor 'extra': for the model to support batching the shape should have at least 1 dimension "
            "and the first dimension must be -1; but shape expected by the model is [7]",
        ),
    ],
)
def test_what_does_not_fit(inputs: Any, outputs: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        checked(inputs, outputs)
    assert str(caught.value) == sentence


def test_without_batching_the_dims_are_whole_and_one_stands_for_a_scalar() -> None:
    model = ModelIO((IOTensor("A", "TYPE_FP32", (2, 3)), IOTensor("S", "TYPE_FP32", ())), ())
    scalar = tensor_config("S", "TYPE_FP32", [1])
    checked([tensor_config("A", "TYPE_FP32", [2, 3]), scalar], [], model=model, max_batch_size=0)
    checked([tensor_config("A", "TYPE_FP32", [2, 3]), {**scalar, "dims": [1, 1]}], [], model=model, max_batch_size=0)
    with pytest.raises(InvalidArgumentError) as caught:
        checked([tensor_config("A", "TYPE_FP32", [3]), scalar], [], model=model, max_batch_size=0)
    assert str(caught.value) == (
        "model 'm', tensor 'A': the model expects 2 dimensions (shape [2,3]) but the model configuration specifies "
        "1 dimensions (shape [3])"
    )


def test_the_reshape_is_what_the_model_sees() -> None:
    scalar = ModelIO((IOTensor("S", "TYPE_FP32", (-1,)),), ())
    checked([tensor_config("S", "TYPE_FP32", [1], reshape={"shape": []})], [], model=scalar)
    with pytest.raises(InvalidArgumentError, match=r"complete shape \[-1,1\]\)"):
        checked([tensor_config("S", "TYPE_FP32", [1])], [], model=scalar)


def test_initializers_may_be_configured_without_batching_only() -> None:
    model = ModelIO((IOTensor("A", "TYPE_FP32", (2,)),), ())
    initializers = (IOTensor("W", "TYPE_FP32", (2,)),)
    inputs = [tensor_config("A", "TYPE_FP32", [2]), tensor_config("W", "TYPE_FP32", [2], optional=True)]
    checked(inputs, [], model=model, initializers=initializers, max_batch_size=0)
    with pytest.raises(InvalidArgumentError, match="configuration expects 2 inputs, model provides 1"):
        checked(inputs, [], model=model, initializers=initializers, max_batch_size=4)

"""What the ONNX Runtime backend refuses."""

from typing import Any

import pytest

from shoal.errors import UnavailableError, UnsupportedError
from shoal.workers.backends.onnxruntime_checks import check_providers, refuse_unsupported
from tests.workers.surroundings import model, model_config, tensor_config

A, B, Y = (
    tensor_config("A", "TYPE_FP32", [16]),
    tensor_config("B", "TYPE_STRING", [5, 3]),
    tensor_config("Y", "TYPE_FP16", [2]),
)
BF16 = tensor_config("Z", "TYPE_BF16", [2])


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            model_config([A], [Y], batch_input=[{"kind": "BATCH_ELEMENT_COUNT"}]),
            "model 'm': 'batch_input' is not supported; let the model compute it from its inputs",
        ),
        (
            model_config([A, {**B, "allow_ragged_batch": True}], [Y]),
            "model 'm', input 'B': 'allow_ragged_batch' is not supported; pad the requests to one shape or set "
            "max_batch_size to 0",
        ),
    ],
)
def test_what_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        refuse_unsupported(config, "KIND_CPU")
    assert str(caught.value) == sentence


def test_a_plain_configuration_is_not_refused() -> None:
    refuse_unsupported(model_config([A], [Y], batch_input=[], batch_output=[]), "KIND_GPU")
    refuse_unsupported(model_config([A], [BF16]), "KIND_CPU")


@pytest.mark.parametrize(("inputs", "kind"), [([A], "KIND_GPU"), ([B], "KIND_CPU")])
def test_bf16_needs_a_cpu_and_no_strings(inputs: Any, kind: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        refuse_unsupported(model_config(inputs, [BF16]), kind)
    assert str(caught.value) == (
        "model 'm': TYPE_BF16 is supported on KIND_CPU only, and not together with TYPE_STRING"
    )


def test_a_provider_that_could_not_be_set_up_is_not_done_without() -> None:
    of_m = model(model_config([A], [Y]))
    wanted: list[tuple[str, object]] = [("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {})]
    check_providers(of_m, wanted, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(UnavailableError) as caught:
        check_providers(of_m, wanted, ["CPUExecutionProvider"])
    assert str(caught.value).startswith(
        "model 'm', instance 'm_0_0': CUDAExecutionProvider could not be set up, the lines of ONNX Runtime before"
    )

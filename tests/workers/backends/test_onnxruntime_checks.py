"""What the ONNX Runtime backend refuses."""

import pytest

from shoal.errors import UnavailableError, UnsupportedError
from shoal.workers.backends.onnxruntime_checks import check_providers, refuse_bf16
from tests.workers.worker_harness import model, model_config, tensor_config

A, B, Y = (
    tensor_config("A", "TYPE_FP32", [16]),
    tensor_config("B", "TYPE_STRING", [5, 3]),
    tensor_config("Y", "TYPE_FP16", [2]),
)
BF16 = tensor_config("Z", "TYPE_BF16", [2])


def test_what_is_not_refused() -> None:
    refuse_bf16(model_config([A], [Y]))
    refuse_bf16(model_config([A], [BF16]))
    refuse_bf16(model_config([B], [Y]))


def test_bf16_needs_a_model_without_strings() -> None:
    with pytest.raises(UnsupportedError) as caught:
        refuse_bf16(model_config([B], [BF16]))
    assert str(caught.value) == "model 'm': TYPE_BF16 is not supported together with TYPE_STRING"


def test_a_provider_that_could_not_be_set_up_is_not_done_without() -> None:
    of_m = model(model_config([A], [Y]))
    wanted: list[tuple[str, object]] = [("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {})]
    check_providers(of_m, wanted, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(UnavailableError) as caught:
        check_providers(of_m, wanted, ["CPUExecutionProvider"])
    assert str(caught.value).startswith(
        "model 'm', instance 'm_0_0': CUDAExecutionProvider could not be set up, the lines of ONNX Runtime before"
    )

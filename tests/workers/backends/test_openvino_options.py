"""Triton's parameters for OpenVINO, each by itself."""

from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.workers.backends.backend import Device
from shoal.workers.backends.openvino_options import OpenvinoSettings, openvino_settings
from tests.workers.worker_harness import model, model_config

CPU = Device("KIND_CPU", 0, (2, 3, 5))
DEFAULTS: dict[str, Any] = {
    "INFERENCE_NUM_THREADS": 3, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False, "PERFORMANCE_HINT": "LATENCY"
}  # fmt: skip


def settings(**parameters: str) -> OpenvinoSettings:
    return openvino_settings(model(model_config([], [], parameters=parameters)), CPU)


def test_the_defaults_are_one_stream_on_the_pinned_cores() -> None:
    assert settings() == OpenvinoSettings(DEFAULTS, "", False, False, False)


@pytest.mark.parametrize(
    ("key", "value", "properties"),
    [
        ("INFERENCE_NUM_THREADS", "5", {"INFERENCE_NUM_THREADS": 5}),
        ("INFERENCE_NUM_THREADS", "0", {}),
        ("COMPILATION_NUM_THREADS", "4", {}),
        ("NUM_STREAMS", "12", {}),
        ("NUM_STREAMS", "Auto", {}),
        ("NUM_STREAMS", "NUMA", {}),
        ("PERFORMANCE_HINT", "throughput", {"PERFORMANCE_HINT": "THROUGHPUT"}),
        ("PERFORMANCE_HINT", "CUMULATIVE_THROUGHPUT", {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"}),
        ("HINT_BF16", "YES", {"INFERENCE_PRECISION_HINT": "bf16"}),
        ("TARGET_DEVICE", "CPU", {}),
        ("TARGET_DEVICE", "auto", {}),
    ],
)
def test_what_becomes_a_property(key: str, value: str, properties: dict[str, Any]) -> None:
    assert settings(**{key: value}).properties == DEFAULTS | properties


@pytest.mark.parametrize(("value", "is_on"), [("YES", True), ("yes", True), ("NO", False), ("", False)])
def test_flags_are_yes_or_no(value: str, is_on: bool) -> None:
    assert settings(SKIP_OV_DYNAMIC_BATCHSIZE=value).keeps_batch_fixed is is_on
    assert settings(ENABLE_BATCH_PADDING=value).pads_batches is is_on
    assert settings(RESHAPE_IO_LAYERS=value).reshapes_inputs is is_on


def test_a_library_of_operators() -> None:
    assert settings(CPU_EXTENSION_PATH="/operators.so").extension == "/operators.so"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("INFERENCE_NUM_THREADS", "-1", "be a non-negative number, got -1"),
        ("COMPILATION_NUM_THREADS", "Many", "be a non-negative number, got many"),
        ("NUM_STREAMS", "some", "be either AUTO/NUMA/<int_value>, got some"),
        ("PERFORMANCE_HINT", "FAST", "be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ("HINT_BF16", "NO", "be YES, got no"),
        ("ENABLE_BATCH_PADDING", "true", "be either YES or NO, got true"),
    ],
)
def test_a_value_that_is_none_has_tritons_sentence(key: str, value: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings(**{key: value})
    assert str(caught.value) == f"expected the parameter '{key}' to {expected}"


def test_only_the_cpu() -> None:
    with pytest.raises(UnsupportedError, match=r"^model 'm': TARGET_DEVICE GPU is not supported; remove it$"):
        settings(TARGET_DEVICE="gpu")
    with pytest.raises(InvalidArgumentError) as caught:
        openvino_settings(model(model_config([], [])), Device("KIND_GPU", 0, (0,)))
    assert str(caught.value) == "unable to load model 'm', Triton openVINO backend supports only CPU device"

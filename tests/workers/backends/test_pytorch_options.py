"""Triton's parameters for PyTorch, each by itself."""

import dataclasses
from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError, UnsupportedError
from shoal.workers.backends.backend import Device
from shoal.workers.backends.pytorch_options import PytorchSettings, check_tensors, settings
from tests.workers.worker_harness import model, model_config, tensor_config

CPU = Device("KIND_CPU", 0, (2, 3, 5))


def chosen(**parameters: str) -> PytorchSettings:
    return settings(model(model_config([], [], parameters=parameters)), CPU)


def test_defaults_follow_the_cores() -> None:
    assert chosen() == PytorchSettings(
        intra_op_num_threads=3,
        inter_op_num_threads=3,
        inference_mode=True,
        optimized_execution=True,
        jit_executor=None,
        jit_profiling=None,
        tensor_fuser=None,
        cudnn=True,
        cache_cleaning=False,
        weight_sharing=False,
        channels_last=False,
        compile=None,
    )


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("INTRA_OP_THREAD_COUNT", "2", "intra_op_num_threads", 2),
        ("INTRA_OP_THREAD_COUNT", "0", "intra_op_num_threads", 3),
        ("INTER_OP_THREAD_COUNT", "7", "inter_op_num_threads", 7),
        ("NUM_THREADS", "2", "intra_op_num_threads", 2),
        ("NUM_INTEROP_THREADS", "1", "inter_op_num_threads", 1),
        ("INFERENCE_MODE", "false", "inference_mode", False),
        ("DISABLE_OPTIMIZED_EXECUTION", "True", "optimized_execution", False),
        ("ENABLE_JIT_EXECUTOR", "1", "jit_executor", True),
        ("ENABLE_JIT_PROFILING", "false", "jit_profiling", False),
        ("ENABLE_TENSOR_FUSER", "true", "tensor_fuser", True),
        ("DISABLE_CUDNN", "true", "cudnn", False),
        ("ENABLE_CACHE_CLEANING", "true", "cache_cleaning", True),
        ("ENABLE_WEIGHT_SHARING", "true", "weight_sharing", True),
        ("CHANNELS_LAST", "true", "channels_last", True),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"mode": "max-autotune"}', "compile", {"mode": "max-autotune"}),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{}", "compile", {}),
    ],
)
def test_a_parameter_changes_its_setting(key: str, value: str, field: str, expected: Any) -> None:
    assert chosen(**{key: value}) == dataclasses.replace(chosen(), **{field: expected})


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("INFERENCE_MODE", "on", "model 'm': parameter 'INFERENCE_MODE' must be true or false, got 'on'"),
        (
            "NUM_THREADS",
            "-1",
            "model 'm': parameter 'NUM_THREADS' must be a number of threads, 0 for the default, got '-1'",
        ),
        (
            "TORCH_COMPILE_OPTIONAL_PARAMETERS",
            "[]",
            "model 'm': parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' must be a JSON object, got '[]'",
        ),
        (
            "TORCH_COMPILE_OPTIONAL_PARAMETERS",
            '{"model": 1}',
            "'model' is not an optional parameter for 'torch.compile'",
        ),
    ],
)
def test_a_value_that_is_none_is_refused(key: str, value: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        chosen(**{key: value})
    assert str(caught.value) == sentence


def test_compile_parameters_that_are_no_json_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be a JSON object \(Expecting value"):
        chosen(TORCH_COMPILE_OPTIONAL_PARAMETERS="mode=fast")


def configured(role: str, dims: list[int], max_batch_size: int = 0, **fields: Any) -> Any:
    tensors = {"input": [tensor_config("X", "TYPE_FP32", [1])], "output": [tensor_config("Y", "TYPE_FP32", [1])]}
    tensors[role] = [tensor_config("S", "TYPE_STRING", dims, **fields)]
    return model(model_config(tensors["input"], tensors["output"], max_batch_size=max_batch_size))


@pytest.mark.parametrize("role", ["input", "output"])
def test_strings_have_one_dimension(role: str) -> None:
    check_tensors(configured(role, [-1]), takes_strings=True)
    check_tensors(configured(role, [1], 8, reshape={"shape": []}), takes_strings=True)
    for strings in (configured(role, [2, 2]), configured(role, [1], 8)):
        with pytest.raises(InternalError) as caught:
            check_tensors(strings, takes_strings=True)
        assert str(caught.value) == (
            f"Triton only supports 1 dimensional List of String as {role} for 'S' for model 'm'"
        )
    with pytest.raises(InternalError) as caught:
        check_tensors(configured(role, [-1]), takes_strings=False)
    assert str(caught.value) == f"unsupported datatype TYPE_STRING for {role} 'S' for model 'm'"


def test_an_optional_input_is_refused() -> None:
    config = model_config([tensor_config("X", "TYPE_FP32", [1], optional=True)], [])
    with pytest.raises(UnsupportedError, match="model 'm', input 'X': 'optional' is not supported"):
        check_tensors(model(config), takes_strings=True)

"""Triton's parameters for ONNX Runtime, each by itself."""

from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.workers.backends.backend import Device
from shoal.workers.backends.onnxruntime_options import SessionSettings, check_providers, refuse_bf16, session_settings
from tests.workers.worker_harness import model, model_config, tensor_config

CPU = Device("KIND_CPU", 0, (2, 3, 5))
GPU = Device("KIND_GPU", 1, (0, 1))
ALL = ("CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider")
SPIN_OFF = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}


def settings(
    parameters: dict[str, str] | None = None,
    device: Device = CPU,
    backend_config: dict[str, str] | None = None,
    available: Any = ALL,
    **fields: Any,
) -> SessionSettings:
    return session_settings(
        model(model_config([], [], parameters=parameters, **fields), backend_config=backend_config), device, available
    )


def accelerators(**kinds: Any) -> dict[str, Any]:
    return {
        "execution_accelerators": {
            f"{kind}_execution_accelerator": [{"name": name, "parameters": parameters} for name, parameters in named]
            for kind, named in kinds.items()
        }
    }


def test_defaults_follow_the_cores_and_do_not_spin() -> None:
    assert settings() == SessionSettings(
        intra_op_num_threads=3,
        inter_op_num_threads=1,
        parallel=False,
        graph_level="ORT_ENABLE_ALL",
        enable_cpu_mem_arena=True,
        enable_mem_pattern=True,
        session_entries=SPIN_OFF,
        run_entries={},
        custom_op_libraries=(),
        providers=(("CPUExecutionProvider", {}),),
    )


def test_threads_come_from_the_model_then_the_command_line_then_the_cores() -> None:
    line = {"intra_op_thread_count": "5", "inter_op_thread_count": "4"}
    assert settings(backend_config=line).intra_op_num_threads == 5
    assert settings(backend_config=line).inter_op_num_threads == 4
    assert settings({"intra_op_thread_count": "7"}, backend_config=line).intra_op_num_threads == 7
    assert settings({"intra_op_thread_count": "0"}).intra_op_num_threads == 3
    assert settings({"inter_op_thread_count": "2"}).inter_op_num_threads == 2


def test_execution_mode() -> None:
    assert settings({"execution_mode": "0"}).parallel is False
    parallel = settings({"execution_mode": "1"})
    assert (parallel.parallel, parallel.inter_op_num_threads) == (True, 3)


@pytest.mark.parametrize(
    ("level", "name"),
    [
        (-1, "ORT_ENABLE_BASIC"),
        (0, "ORT_ENABLE_ALL"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
        (3, "ORT_ENABLE_ALL"),
    ],
)
def test_graph_level(level: int, name: str) -> None:
    assert settings(optimization={"graph": {"level": level}}).graph_level == name


def test_memory() -> None:
    assert settings({"enable_mem_arena": "0"}).enable_cpu_mem_arena is False
    assert settings({"enable_mem_pattern": "0"}).enable_mem_pattern is False
    shrinkage = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    assert settings(shrinkage).run_entries == shrinkage
    initializers = {"session.use_device_allocator_for_initializers": "1"}
    assert settings(initializers).session_entries == SPIN_OFF | initializers


def test_spinning_can_be_switched_on() -> None:
    entries = settings({"session.intra_op.allow_spinning": "1"}).session_entries
    assert entries["session.intra_op.allow_spinning"] == "1"


def test_custom_operators() -> None:
    libraries = settings(model_operations={"op_library_filename": ["/ops/a.so"]}).custom_op_libraries
    assert libraries == ("/ops/a.so",)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("intra_op_thread_count", "-1", "a number of threads, 0 for the default"),
        ("inter_op_thread_count", "two", "a number of threads, 0 for the default"),
        ("execution_mode", "2", "0 (sequential) or 1 (parallel)"),
        ("enable_mem_arena", "yes", "0 or 1"),
        ("enable_mem_pattern", "2", "0 or 1"),
    ],
)
def test_a_value_that_is_none_is_named(key: str, value: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings({key: value})
    assert str(caught.value) == f"model 'm': parameter '{key}' must be {expected}, got '{value}'"


def test_providers_of_a_gpu() -> None:
    parameters = {"cudnn_conv_algo_search": "1", "gpu_mem_limit": "1000", "arena_extend_strategy": "1"}
    assert settings(parameters, GPU).providers == (
        (
            "CUDAExecutionProvider",
            {
                "device_id": "1",
                "cudnn_conv_algo_search": "HEURISTIC",
                "gpu_mem_limit": "1000",
                "arena_extend_strategy": "kSameAsRequested",
            },
        ),
        ("CPUExecutionProvider", {}),
    )


def test_tensorrt_and_cuda_accelerators() -> None:
    tensorrt = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1073741824",
        "trt_engine_cache_enable": "true",
        "trt_dump_subgraphs": "0",
    }
    optimization = accelerators(gpu=[("tensorrt", tensorrt), ("cuda", {"cudnn_conv_use_max_workspace": "0"})])
    assert settings(device=GPU, optimization=optimization).providers == (
        (
            "TensorrtExecutionProvider",
            {
                "device_id": "1",
                "trt_fp16_enable": "1",
                "trt_max_workspace_size": "1073741824",
                "trt_engine_cache_enable": "true",
                "trt_dump_subgraphs": "0",
            },
        ),
        ("CUDAExecutionProvider", {"device_id": "1", "cudnn_conv_use_max_workspace": "0"}),
        ("CPUExecutionProvider", {}),
    )


def test_openvino_accelerates_the_cpu() -> None:
    optimization = accelerators(cpu=[("openvino", {"device_type": "CPU"})])
    assert settings(optimization=optimization).providers[0] == ("OpenVINOExecutionProvider", {"device_type": "CPU"})


@pytest.mark.parametrize(
    ("optimization", "sentence"),
    [
        (accelerators(gpu=[("magic", {})]), "unknown Execution Accelerator 'magic' is requested"),
        (accelerators(cpu=[("tensorrt", {})]), "unknown Execution Accelerator 'tensorrt' is requested"),
        (
            accelerators(gpu=[("tensorrt", {"speed": "1"})]),
            "unknown parameter 'speed' is provided for TensorRT Execution Accelerator",
        ),
        (
            accelerators(gpu=[("tensorrt", {"precision_mode": "FP8"})]),
            "unsupported precision mode 'FP8' is requested: use one of FP32, FP16, BF16, INT8",
        ),
    ],
)
def test_accelerators_that_are_none(optimization: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings(device=GPU, optimization=optimization)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("name", "option"), [("cuda", "enable_cuda_graph"), ("tensorrt", "trt_cuda_graph_enable")])
def test_cuda_graphs_are_refused_since_batches_have_addresses_of_their_own(name: str, option: str) -> None:
    for off in ("0", "False"):
        assert settings(device=GPU, optimization=accelerators(gpu=[(name, {option: off})])).providers
    for on in ("1", "True"):
        with pytest.raises(UnsupportedError) as caught:
            settings(device=GPU, optimization=accelerators(gpu=[(name, {option: on})]))
        assert str(caught.value) == (
            f"model 'm': '{option}' is not supported: each batch has addresses of its own, and a CUDA graph has the "
            "first one's; remove it"
        )


def test_a_provider_that_this_build_has_not() -> None:
    with pytest.raises(UnsupportedError) as caught:
        settings(device=GPU, available=["CPUExecutionProvider"])
    assert str(caught.value) == (
        "model 'm', instance 'm_0_0' needs CUDAExecutionProvider, this ONNX Runtime has only CPUExecutionProvider. "
        "Install a build that has it, or configure KIND_CPU without it"
    )


def test_operators_may_be_kept_off_the_cpu() -> None:
    key = "session.disable_cpu_ep_fallback"
    assert [name for name, _ in settings({key: "1"}, GPU).providers] == ["CUDAExecutionProvider"]
    assert [name for name, _ in settings({key: "0"}, GPU).providers][-1] == "CPUExecutionProvider"
    assert [name for name, _ in settings({key: "1"}).providers] == ["CPUExecutionProvider"]


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

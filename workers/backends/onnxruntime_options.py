"""The settings of ONNX Runtime in config.pbtxt and --backend-config, read into one value and checked, and refusals of
configurations that ONNX Runtime cannot serve.

Pure: has the names of Triton's parameters and of ONNX Runtime's settings, imports neither. Runs in a worker.
enable-global-threadpool in --backend-config has no effect: a process has one session, so its threads are global.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from shoal.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor
from shoal.model_config.messages import Config
from shoal.workers.backends import parameters
from shoal.workers.backends.backend import BackendModel, Device

CPU, CUDA, TENSORRT, OPENVINO = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt", "OpenVINO"))

PROVIDERS = (CPU, CUDA, TENSORRT, OPENVINO)

#: optimization.graph.level → the name of ONNX Runtime's level; any other number means all.
GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

#: Triton's own names for options of the TensorRT provider; names that begin with trt_ pass as they are.
_TENSORRT_OPTIONS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "trt_engine_cache_enable": "trt_engine_cache_enable",
    "trt_engine_cache_path": "trt_engine_cache_path",
}
_TENSORRT_PRECISIONS = {"FP32": None, "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
#: `parameters` that older repositories set for the CUDA provider.
_CUDA_PARAMETERS = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")
_CUDNN_SEARCHES = {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"}
_ARENA_STRATEGIES = {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"}

#: Options of the two providers that repeat captured work, at the addresses that it was captured with.
_CUDA_GRAPHS = {CUDA: "enable_cuda_graph", TENSORRT: "trt_cuda_graph_enable"}

Provider = tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """One session's options, in ONNX Runtime's terms."""

    intra_op_num_threads: int
    inter_op_num_threads: int
    parallel: bool  # ORT_PARALLEL instead of ORT_SEQUENTIAL
    graph_level: str  # the name of a GraphOptimizationLevel
    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    session_entries: dict[str, str]
    run_entries: dict[str, str]
    custom_op_libraries: tuple[str, ...]
    providers: tuple[Provider, ...]


def session_settings(model: BackendModel, device: Device, available: Collection[str]) -> SessionSettings:
    """All options of the session of `model`; `available` are the providers that this build of ONNX Runtime has.

    Raises InvalidArgumentError for an invalid value, UnsupportedError for a provider that is missing.
    """
    graph_level = model.config.get("optimization", {}).get("graph", {}).get("level", 0)
    parallel = _flag(model, "execution_mode", default=False, meaning="0 (sequential) or 1 (parallel)")
    # Spinning threads would take the cores from the other processes on them: 0 unless the configuration says 1.
    session_entries = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
    session_entries |= _entries(model, "session.")
    return SessionSettings(
        intra_op_num_threads=_threads(model, "intra_op_thread_count") or device.pool_threads,
        inter_op_num_threads=_threads(model, "inter_op_thread_count") or (len(device.cores) if parallel else 1),
        parallel=parallel,
        graph_level=GRAPH_LEVELS.get(graph_level, "ORT_ENABLE_ALL"),
        enable_cpu_mem_arena=_flag(model, "enable_mem_arena", default=True),
        enable_mem_pattern=_flag(model, "enable_mem_pattern", default=True),
        session_entries=session_entries,
        run_entries=_entries(model, "memory."),
        custom_op_libraries=tuple(model.config.get("model_operations", {}).get("op_library_filename", ())),
        providers=_providers(model, device, available),
    )


def _entries(model: BackendModel, prefix: str) -> dict[str, str]:
    """Parameters with ONNX Runtime's own names, such as session.use_device_allocator_for_initializers."""
    return {key: model.parameter(key) or "" for key in model.config["parameters"] if key.startswith(prefix)}


def _threads(model: BackendModel, key: str) -> int:
    """The configured number of threads. 0 if none is configured: then the worker's cores decide, which ONNX
    Runtime's own default would not heed."""
    value = model.parameter(key) or model.backend_config.get(key)
    return parameters.whole_number(model, key, value, parameters.THREADS)


def _flag(model: BackendModel, key: str, *, default: bool, meaning: str = "0 or 1") -> bool:
    return parameters.flag(model, key, model.parameter(key), {"0": False, "1": True}, meaning, default=default)


# -- providers --------------------------------------------------------------------------------------------------------


def _providers(model: BackendModel, device: Device, available: Collection[str]) -> tuple[Provider, ...]:
    """The providers in order of preference; as in Triton, the CPU is the last resort for single operators."""
    accelerators: dict[str, Any] = model.config.get("optimization", {}).get("execution_accelerators", {})
    providers: list[Provider] = []
    if device.kind == "KIND_GPU":
        cuda = {"device_id": str(device.id), **_cuda_parameters(model)}
        for accelerator in accelerators.get("gpu_execution_accelerator", ()):
            if accelerator["name"] == "tensorrt":
                providers.append(
                    (TENSORRT, {"device_id": str(device.id), **_tensorrt_options(accelerator["parameters"])})
                )
            elif accelerator["name"] == "cuda":
                cuda |= accelerator["parameters"]
            else:
                raise _unknown_accelerator(accelerator["name"])
        providers.append((CUDA, cuda))
    _refuse_graphs(model, providers)
    for accelerator in accelerators.get("cpu_execution_accelerator", ()):
        if accelerator["name"] != "openvino":
            raise _unknown_accelerator(accelerator["name"])
        providers.append((OPENVINO, dict(accelerator["parameters"])))
    for name, _ in providers:
        if name not in available:
            raise UnsupportedError(
                f"model '{model.name}', instance '{model.instance_name}' needs {name}, this ONNX Runtime has only "
                f"{', '.join(sorted(available))}. Install a build that has it, or configure KIND_CPU without it"
            )
    # ONNX Runtime refuses a CPU provider with this entry; without the entry, operators that have no kernel run there.
    if model.parameter("session.disable_cpu_ep_fallback") == "1" and providers:
        return tuple(providers)
    return (*providers, (CPU, {}))


def _refuse_graphs(model: BackendModel, providers: Collection[Provider]) -> None:
    """Raise UnsupportedError for CUDA graphs: a graph reads and writes at the addresses of the batch with which it was
    captured, but each batch has its inputs and outputs at other addresses."""
    for provider, options in providers:
        option = _CUDA_GRAPHS[provider]
        if options.get(option, "0").lower() not in ("0", "false"):
            raise UnsupportedError(
                f"model '{model.name}': '{option}' is not supported: each batch has addresses of its own, and a CUDA "
                "graph has the first one's; remove it"
            )


def _unknown_accelerator(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"unknown Execution Accelerator '{name}' is requested")


def _tensorrt_options(parameters: dict[str, str]) -> dict[str, str]:
    options = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                raise InvalidArgumentError(
                    f"unsupported precision mode '{value}' is requested: use one of {', '.join(_TENSORRT_PRECISIONS)}"
                )
            option = _TENSORRT_PRECISIONS[value]
            if option is not None:
                options[option] = "1"
        elif key in _TENSORRT_OPTIONS or key.startswith("trt_"):
            options[_TENSORRT_OPTIONS.get(key, key)] = value
        else:
            raise InvalidArgumentError(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return options


def _cuda_parameters(model: BackendModel) -> dict[str, str]:
    options = {key: value for key in _CUDA_PARAMETERS if (value := model.parameter(key))}
    # Triton's values of these two are numbers of an enum, ONNX Runtime's are names.
    for key, names in (("cudnn_conv_algo_search", _CUDNN_SEARCHES), ("arena_extend_strategy", _ARENA_STRATEGIES)):
        if key in options:
            options[key] = names.get(options[key], options[key])
    return options


# -- refusals ---------------------------------------------------------------------------------------------------------


def refuse_bf16(config: Config) -> None:
    """Raise UnsupportedError for a configuration with BF16 and strings."""
    # numpy has no BF16, so a model with BF16 is given the addresses of its tensors; strings cannot be given by address.
    data_types = {tensor["data_type"] for tensor in (*config["input"], *config["output"])}
    if {"TYPE_BF16", "TYPE_STRING"} <= data_types:
        raise UnsupportedError(f"model '{config['name']}': TYPE_BF16 is not supported together with TYPE_STRING")


def refuse_maps(model: str, config: Config, outputs: Iterable[IOTensor]) -> None:
    """Raise UnsupportedError for an output that the configuration has, or would be given, and that is no tensor.

    `outputs` are the file's; one that is a list of maps has ONNX Runtime's name for that in place of a data type.
    """
    wanted = {output["name"] for output in config["output"]}
    for output in outputs:
        if output.data_type.startswith("seq(") and (not wanted or output.name in wanted):
            is_zipmap = output.data_type.startswith("seq(map(")
            advice = (
                "It is a list of maps, as skl2onnx makes them of a classifier's probabilities; convert the model with "
                f"options={{'zipmap': False}}, or name only other outputs in the configuration of model '{model}'"
            )
            raise UnsupportedError(
                f"Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O '{output.name}', expected 'ONNX_TYPE_TENSOR'."
                + f" {advice}" * is_zipmap
            )


def check_providers(model: BackendModel, wanted: Collection[tuple[str, object]], got: Collection[str]) -> None:
    """Raise UnavailableError if a provider could not be set up: ONNX Runtime goes on without it, on the CPU."""
    missing = [name for name, _ in wanted if name not in got]
    if missing:
        raise UnavailableError(
            f"model '{model.name}', instance '{model.instance_name}': {', '.join(missing)} could not be set up, the "
            "lines of ONNX Runtime before this one say why (most often libraries of CUDA or cuDNN are missing or of "
            "another version: pip install 'onnxruntime-gpu[cuda,cudnn]'). KIND_CPU does without"
        )

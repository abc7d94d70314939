"""The settings for PyTorch in config.pbtxt, checked and read into one value. Pure: does not import PyTorch. Runs in
a worker."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.datatypes import BYTES
from shoal.errors import InternalError, InvalidArgumentError
from shoal.model_config.signature import Signature
from shoal.workers.backends import file_checks, parameters
from shoal.workers.backends.backend import BackendModel, Device

COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_Default = TypeVar("_Default")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}  # as Triton reads them, in capitals or small letters


@dataclass(frozen=True, slots=True)
class PytorchSettings:
    """The settings of one instance. Settings that PyTorch has only per process hold for all instances of the process,
    which are of one model."""

    intra_op_num_threads: int
    inter_op_num_threads: int
    inference_mode: bool  # run under torch.inference_mode; False: under torch.no_grad
    optimized_execution: bool  # whether TorchScript optimises
    jit_executor: bool | None  # of TorchScript; None = PyTorch's default
    jit_profiling: bool | None  # of TorchScript; None = PyTorch's default
    tensor_fuser: bool | None  # of TorchScript; None = PyTorch's default
    cudnn: bool
    cache_cleaning: bool  # give the GPU's unused memory back after each batch
    weight_sharing: bool  # map a file of weights into memory, not read it, so that instances share the memory
    channels_last: bool  # Shoal's own: tensors of four dimensions lie in memory with their channels last (NHWC)
    compile: dict[str, Any] | None  # keyword arguments of torch.compile; None = not compiled


def settings(model: BackendModel, device: Device) -> PytorchSettings:
    """All settings of an instance. Raises InvalidArgumentError for an invalid value."""
    num_cores = len(device.cores)
    return PytorchSettings(
        intra_op_num_threads=_threads(model, ("INTRA_OP_THREAD_COUNT", "NUM_THREADS")) or num_cores,
        inter_op_num_threads=_threads(model, ("INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS")) or num_cores,
        inference_mode=_flag(model, "INFERENCE_MODE", default=True),
        optimized_execution=not _flag(model, "DISABLE_OPTIMIZED_EXECUTION", default=False),
        jit_executor=_flag(model, "ENABLE_JIT_EXECUTOR", default=None),
        jit_profiling=_flag(model, "ENABLE_JIT_PROFILING", default=None),
        tensor_fuser=_flag(model, "ENABLE_TENSOR_FUSER", default=None),
        cudnn=not _flag(model, "DISABLE_CUDNN", default=False),
        cache_cleaning=_flag(model, "ENABLE_CACHE_CLEANING", default=False),
        weight_sharing=_flag(model, "ENABLE_WEIGHT_SHARING", default=False),
        channels_last=_flag(model, "CHANNELS_LAST", default=False),
        compile=_compile(model),
    )


def check_tensors(model: BackendModel, *, takes_strings: bool) -> None:
    """Check the configured datatypes. Raises InternalError with Triton's sentences for datatypes that PyTorch cannot
    represent, UnsupportedError for an optional input.

    Strings are lists in TorchScript (`takes_strings`), and not supported elsewhere.
    """
    signature = Signature.from_config(model.config)
    file_checks.refuse_optional(signature, "PyTorch")
    for role, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs.values():
            if spec.datatype is not BYTES:
                continue
            if not takes_strings:
                raise InternalError(
                    f"unsupported datatype {spec.datatype.config_name} for {role} '{spec.name}' for model "
                    f"'{model.name}'"
                )
            if len(spec.model_dims) + (signature.max_batch_size > 0) > 1:
                raise InternalError(
                    f"Triton only supports 1 dimensional List of String as {role} for '{spec.name}' for model "
                    f"'{model.name}'"
                )


def _compile(model: BackendModel) -> dict[str, Any] | None:
    text = model.parameter(COMPILE)
    if text is None:
        return None
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise parameters.invalid(model, COMPILE, f"a JSON object ({error})", text) from error
    if not isinstance(arguments, dict):
        raise parameters.invalid(model, COMPILE, "a JSON object", text)
    if "model" in arguments:
        raise InvalidArgumentError("'model' is not an optional parameter for 'torch.compile'")
    return arguments


def _threads(model: BackendModel, keys: Sequence[str]) -> int:
    """The configured number of threads, by the first of `keys` that is set: Triton's two runtimes for PyTorch name the
    parameter differently. 0 if none is set; the worker's number of cores is used then."""
    for key in keys:
        value = model.parameter(key)
        if value:
            return parameters.whole_number(model, key, value, parameters.THREADS)
    return 0


def _flag(model: BackendModel, key: str, *, default: _Default) -> bool | _Default:
    return parameters.flag(model, key, (model.parameter(key) or "").lower(), _FLAGS, "true or false", default=default)

"""The settings of OpenVINO in config.pbtxt, read into one value and checked.

Pure: it knows the names of Triton's parameters and of OpenVINO's properties, and does not import OpenVINO. Runs in a
worker.
"""

from dataclasses import dataclass

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.workers.backends import parameters
from shoal.workers.backends.backend import BackendModel, Device

#: Triton's three hints; with one stream on pinned cores they make no difference.
PERFORMANCE_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")


@dataclass(frozen=True, slots=True)
class OpenvinoSettings:
    """One compiled model's options, in OpenVINO's terms."""

    properties: dict[str, str | int | bool]  # of the compiled model
    extension: str  # a library of operators; "" = none
    keeps_batch_fixed: bool  # the parameter SKIP_OV_DYNAMIC_BATCHSIZE: every execution has max_batch_size rows
    pads_batches: bool  # ENABLE_BATCH_PADDING: a batch smaller than a fixed size is filled with rows of zeros
    reshapes_inputs: bool  # RESHAPE_IO_LAYERS: the inputs get the configuration's dims


def openvino_settings(model: BackendModel, device: Device) -> OpenvinoSettings:
    """All options of `model`. Raises InvalidArgumentError with Triton's sentence for an invalid value or an instance
    that is not on the CPU, UnsupportedError for a TARGET_DEVICE other than the CPU."""
    if device.kind != "KIND_CPU":
        raise InvalidArgumentError(
            f"unable to load model '{model.name}', Triton openVINO backend supports only CPU device"
        )
    target = _value(model, "TARGET_DEVICE") or "cpu"
    if target not in ("cpu", "auto"):  # AUTO lets OpenVINO choose a device; Shoal takes the CPU, which always exists
        raise UnsupportedError(f"model '{model.name}': TARGET_DEVICE {target.upper()} is not supported; remove it")
    _threads(model, "COMPILATION_NUM_THREADS")  # only checked: a CPU compiles with its inference threads
    if (streams := _value(model, "NUM_STREAMS")) not in ("auto", "numa"):
        parameters.whole_number(model, "NUM_STREAMS", streams, "be either AUTO/NUMA/<int_value>", _expected)
    hint = _value(model, "PERFORMANCE_HINT").upper() or "LATENCY"
    if hint not in PERFORMANCE_HINTS:
        raise _expected(model, "PERFORMANCE_HINT", f"be {'/'.join(PERFORMANCE_HINTS)}", hint.lower())
    properties: dict[str, str | int | bool] = {
        "INFERENCE_NUM_THREADS": _threads(model, "INFERENCE_NUM_THREADS") or len(device.cores),
        # An instance is a process that executes one batch at a time: a second stream would take threads and idle.
        "NUM_STREAMS": 1,
        # OpenVINO would pin threads to any of the machine's cores; without pinning they keep to the worker's cores.
        "ENABLE_CPU_PINNING": False,
        "PERFORMANCE_HINT": hint,
    }
    if _value(model, "HINT_BF16"):
        if _value(model, "HINT_BF16") != "yes":
            raise _expected(model, "HINT_BF16", "be YES", _value(model, "HINT_BF16"))
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    return OpenvinoSettings(
        properties=properties,
        extension=model.parameter("CPU_EXTENSION_PATH") or "",
        keeps_batch_fixed=_flag(model, "SKIP_OV_DYNAMIC_BATCHSIZE"),
        pads_batches=_flag(model, "ENABLE_BATCH_PADDING"),
        reshapes_inputs=_flag(model, "RESHAPE_IO_LAYERS"),
    )


def _value(model: BackendModel, key: str) -> str:
    """A parameter's value in lower case, in which Triton compares and quotes it; "" if it is not set."""
    return (model.parameter(key) or "").lower()


def _threads(model: BackendModel, key: str) -> int:
    return parameters.whole_number(model, key, _value(model, key), "be a non-negative number", _expected)


def _flag(model: BackendModel, key: str) -> bool:
    # Triton takes every word but YES for NO; here a word that is neither YES nor NO is refused.
    words = {"yes": True, "no": False}
    return parameters.flag(model, key, _value(model, key), words, "be either YES or NO", _expected, default=False)


def _expected(model: BackendModel, key: str, expected: str, value: str) -> InvalidArgumentError:
    del model
    return InvalidArgumentError(f"expected the parameter '{key}' to {expected}, got {value}")

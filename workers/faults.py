"""The classification of GPU errors that models raise: too little memory, or a device that this process cannot use any
more.

Faults are recognised by their texts, since each framework raises a class of its own, and this file must import no
framework. CUDA's texts are those of cudaGetErrorString. So a model that repeats a client's text in a RuntimeError may
cause its worker to be replaced, which costs no more than any other death of a worker. Pure; runs in a worker.
"""

import re
from enum import Enum

from shoal.errors import InternalError
from shoal.workers.sentences import text_of

#: How long, in ns, a worker executes batches in smaller parts after a batch has exceeded the GPU's memory (ours).
SMALLER_FOR_NS = 60_000_000_000


class Fault(Enum):
    """A kind of GPU error."""

    OUT_OF_MEMORY = 1  # too little memory for this batch: the GPU is usable, and half of the batch may fit
    DEVICE_LOST = 2  # CUDA's "sticky" errors: all later calls in this process fail; a new process may work


class DeviceError(InternalError):
    """A GPU error whose kind a backend has determined itself, with the sentence for clients."""

    def __init__(self, sentence: str, fault: Fault) -> None:
        super().__init__(sentence)
        self.fault = fault


class DeviceLostError(Exception):
    """The GPU is lost and this process must end; it has answered every request of the batches that it had begun."""


_NAMES_OF_EXHAUSTION = frozenset({"OutOfMemoryError", "ResourceExhaustedError"})  # of torch and CuPy; of TensorFlow
_EXHAUSTED = re.compile(
    r"CUDA out of memory"  # torch
    r"|CUDA (?:driver )?error: out of memory"  # torch; with "driver", where its segments are expandable
    r"|CUDA failure 2: out of memory|Cuda Runtime \(out of memory\)"  # ORT, TensorRT
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
    r"|Failed to allocate memory for requested buffer of size|is smaller than requested bytes of"  # ORT's arena
    r"|Error Code 2: OutOfMemory"  # TensorRT
    r"|RESOURCE_EXHAUSTED: O|OOM when allocating tensor"  # XLA, TensorFlow
)
_STICKY = (
    "an illegal memory access was encountered", "device-side assert triggered", "unspecified launch failure",
    "the launch timed out and was terminated", "misaligned address", "an illegal instruction was encountered",
    "invalid program counter", "hardware stack error", "operation not supported on global/shared address space",
    "uncorrectable ECC error encountered", "uncorrectable NVLink error detected during the execution",
    "Invalid access of peer GPU memory over nvlink or a hardware error", "unknown error",
    "no CUDA-capable device is detected",  # the GPU has dropped off the PCI bus
)  # fmt: skip
_LOST = re.compile(
    r"(?:CUDA (?:driver )?error(?: \d+)?: |CUDA failure \d+: |Cuda Runtime \(|cudaError\w+: |CUDA_ERROR_\w+: )"
    rf"(?:{'|'.join(_STICKY)})"
    # MPS's server or daemon has ended, and with it every connected process has lost its CUDA context.
    r"|CUDA (?:driver )?error(?: \d+)?: [^:]*\bMPS (?:client|server)\b"
    r"|cudaErrorMps(?:ConnectionFailed|RpcFailure|ClientTerminated)"
    r"|CUDA_ERROR_MPS_(?:CONNECTION_FAILED|RPC_FAILURE|CLIENT_TERMINATED)"
    # By the documentation, NOT_INITIALIZED says that CUDA's runtime has failed. In practice the GPU's memory is often
    # full to the last MiB; a new process helps then, too, since it starts without what this one has cached.
    r"|CUBLAS_STATUS_NOT_INITIALIZED|(?:CUBLAS|CUDNN)_STATUS_(?:MAPPING_ERROR|EXECUTION_FAILED)"
)


def fault_of(error: BaseException) -> Fault | None:
    """The GPU fault that an exception, or one that led to it, reports; None for all other exceptions."""
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:  # Python lets errors cause each other in a cycle
        fault = _own_fault(link)
        if fault is not None:
            return fault
        seen.add(id(link))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return None


def _own_fault(error: BaseException) -> Fault | None:
    if isinstance(error, DeviceError):
        return error.fault
    name = type(error).__name__
    if name in _NAMES_OF_EXHAUSTION:
        return Fault.OUT_OF_MEMORY
    if not (isinstance(error, (RuntimeError, MemoryError, InternalError)) or name == "TritonModelException"):
        return None  # not by its text: that of a ValueError often repeats what a client has sent
    text = text_of(error)
    if _LOST.search(text):
        return Fault.DEVICE_LOST
    return Fault.OUT_OF_MEMORY if _EXHAUSTED.search(text) else None

"""The classification of GPU errors that models raise: too little memory, or a device that this process cannot use any
more.

Faults are recognised by their texts, since each framework raises a class of its own, which must not be imported here.
CUDA's texts are those of cudaGetErrorString. A model that repeats a client's text in a RuntimeError could thus have its
worker replaced, which costs as much as any death of a worker. Pure; runs in a worker.
"""

import re
from enum import Enum

from shoal.errors import InternalError
from shoal.workers.sentences import text_of

#: How long, in ns, a worker executes batches in smaller parts after one has exceeded the GPU's memory (ours).
SMALLER_FOR_NS = 60_000_000_000


class Fault(Enum):
    """A kind of GPU error."""

    OUT_OF_MEMORY = 1  # for this batch; the device is usable, and half of the batch may fit
    DEVICE_LOST = 2  # a "sticky" error in CUDA: every later call in this process fails, only another process helps


class DeviceError(InternalError):
    """A GPU error that a backend has classified by itself, with the sentence for clients."""

    def __init__(self, sentence: str, fault: Fault) -> None:
        super().__init__(sentence)
        self.fault = fault


class DeviceLostError(Exception):
    """The GPU is lost and this process must end; every request of the batches that it had begun is answered."""


_NAMES_OF_EXHAUSTION = frozenset({"OutOfMemoryError", "ResourceExhaustedError"})  # torch's and CuPy's, TensorFlow's
_EXHAUSTED = re.compile(
    r"CUDA out of memory"  # torch
    r"|CUDA (?:driver )?error: out of memory"  # torch; the driver's with expandable segments
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
    "no CUDA-capable device is detected",  # the GPU has fallen off the bus
)  # fmt: skip
_LOST = re.compile(
    r"(?:CUDA (?:driver )?error(?: \d+)?: |CUDA failure \d+: |Cuda Runtime \(|cudaError\w+: |CUDA_ERROR_\w+: )"
    rf"(?:{'|'.join(_STICKY)})"
    # MPS's server or daemon has ended, and every process that was connected has lost its context with it.
    r"|CUDA (?:driver )?error(?: \d+)?: [^:]*\bMPS (?:client|server)\b"
    r"|cudaErrorMps(?:ConnectionFailed|RpcFailure|ClientTerminated)"
    r"|CUDA_ERROR_MPS_(?:CONNECTION_FAILED|RPC_FAILURE|CLIENT_TERMINATED)"
    # NOT_INITIALIZED: by the documentation CUDA's runtime has failed; in practice often the memory is full to the last
    # MiB, and the next process starts without what this one has cached.
    r"|CUBLAS_STATUS_NOT_INITIALIZED|(?:CUBLAS|CUDNN)_STATUS_(?:MAPPING_ERROR|EXECUTION_FAILED)"
)


def fault_of(error: BaseException) -> Fault | None:
    """The GPU fault that an exception, or one that led to it, reports; None for all other exceptions."""
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:  # Python lets an error be its own cause
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
        return None  # a ValueError most often repeats what a client has sent
    text = text_of(error)
    if _LOST.search(text):
        return Fault.DEVICE_LOST
    return Fault.OUT_OF_MEMORY if _EXHAUSTED.search(text) else None

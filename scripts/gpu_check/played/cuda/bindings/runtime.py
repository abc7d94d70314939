"""CUDA's runtime, played: a GPU's memory is a file that processes map, a stream is a list of copies not done yet.

So bytes really pass between processes, by handles: a copy that is missing, too early, beyond the memory or at a stale
address gives wrong numbers or CUDA's error. The files are in the folder PLAYED_GPU; beside each is one file for every
process that has it open, `ID.open.PID`, for a test to look at.
"""

import ctypes
import mmap
import os
import tempfile
import threading
import uuid
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

CUDA_IPC_HANDLE_SIZE = 64
cudaIpcMemLazyEnablePeerAccess = 1
cudaStreamNonBlocking = 1
cudaMemcpyKind = SimpleNamespace(
    cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3, cudaMemcpyDefault=4
)
cudaDeviceAttr = SimpleNamespace(cudaDevAttrUnifiedAddressing=41)


class cudaError_t(IntEnum):
    """CUDA's statuses."""

    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidResourceHandle = 400


_WORDS = {
    cudaError_t.cudaErrorInvalidValue: b"invalid argument",
    cudaError_t.cudaErrorMemoryAllocation: b"out of memory",
    cudaError_t.cudaErrorInvalidResourceHandle: b"invalid resource handle",
}
_OK = (cudaError_t.cudaSuccess,)


class cudaIpcMemHandle_t:
    """A handle: the name of a file."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(CUDA_IPC_HANDLE_SIZE)

    def getPtr(self) -> int:
        """The address of its bytes."""
        return ctypes.addressof(self._bytes)


class Allocation(NamedTuple):
    """Memory that this process has mapped."""

    name: str
    nbytes: int
    memory: Any
    is_own: bool


#: By address.
allocations: dict[int, Allocation] = {}
_users: dict[int, int] = {}  # of a handle opened several times
_queue: list[Callable[[], object]] = []
_device = threading.local()


def folder() -> Path:
    """Where the memory lies."""
    return Path(os.environ.get("PLAYED_GPU", tempfile.gettempdir()))


def cudaGetErrorString(status: cudaError_t) -> tuple[cudaError_t, bytes]:
    """CUDA's words."""
    return cudaError_t.cudaSuccess, _WORDS[status]


def cudaGetDeviceCount() -> tuple[cudaError_t, int]:
    """One GPU."""
    return *_OK, 1


def cudaGetDevice() -> tuple[cudaError_t, int]:
    """The calling thread's GPU."""
    return *_OK, getattr(_device, "number", 0)


def cudaSetDevice(number: int) -> tuple[cudaError_t]:
    """Choose the calling thread's GPU."""
    _device.number = number
    return _OK if number == 0 else (cudaError_t.cudaErrorInvalidValue,)


def cudaDeviceGetAttribute(_attribute: int, _number: int) -> tuple[cudaError_t, int]:
    """An attribute of a device: always 1."""
    return *_OK, 1


def cudaMalloc(nbytes: int) -> tuple[cudaError_t, int]:
    """Memory of the GPU, with arbitrary contents."""
    name = f"played-{uuid.uuid4().hex}"
    (folder() / name).write_bytes(b"\xee" * nbytes)
    return *_OK, _map(name, is_own=True)


def cudaFree(address: int) -> tuple[cudaError_t]:
    """Give memory back; other processes keep what they have mapped."""
    allocation = allocations.pop(address, None)
    if allocation is None or not allocation.is_own:
        return (cudaError_t.cudaErrorInvalidValue,)
    (folder() / allocation.name).unlink(missing_ok=True)
    return _OK


def cudaIpcGetMemHandle(address: int) -> tuple[cudaError_t, cudaIpcMemHandle_t | None]:
    """A handle that other processes can open."""
    if address not in allocations:
        return cudaError_t.cudaErrorInvalidValue, None
    made = cudaIpcMemHandle_t()
    made._bytes.value = allocations[address].name.encode()
    return *_OK, made


def cudaIpcOpenMemHandle(handle: cudaIpcMemHandle_t, _flags: int) -> tuple[cudaError_t, int]:
    """Map another process's memory."""
    name = handle._bytes.value.decode(errors="replace")
    if not name.startswith("played-") or not name.isascii() or not (folder() / name).exists():
        return cudaError_t.cudaErrorInvalidValue, 0
    if any(each.name == name and each.is_own for each in allocations.values()):
        return cudaError_t.cudaErrorInvalidResourceHandle, 0  # CUDA's rule: not in the process that has made it
    address = next((address for address, each in allocations.items() if each.name == name), 0)
    address = address or _map(name, is_own=False)
    _users[address] = _users.get(address, 0) + 1
    _note(name).touch()
    return *_OK, address


def cudaIpcCloseMemHandle(address: int) -> tuple[cudaError_t]:
    """Unmap another process's memory, once closed as often as opened."""
    if address not in _users:
        return (cudaError_t.cudaErrorInvalidResourceHandle,)
    _users[address] -= 1
    if not _users[address]:
        del _users[address]
        _note(allocations.pop(address).name).unlink(missing_ok=True)
    return _OK


def cudaStreamCreate() -> tuple[cudaError_t, Any]:
    """A stream."""
    return *_OK, 7


def cudaStreamCreateWithFlags(_flags: int) -> tuple[cudaError_t, Any]:
    """A stream."""
    return *_OK, 7


def cudaStreamDestroy(_stream: Any) -> tuple[cudaError_t]:
    """Nothing is held."""
    return _OK


def cudaMemcpyAsync(target: Any, source: Any, nbytes: int, _kind: Any, _stream: Any) -> tuple[cudaError_t]:
    """Copy once the stream is waited for; out of host memory, which is pageable, at once. Addresses on the GPU must lie
    in mapped memory, with all bytes."""
    for each in (target, source):
        if type(each) is int and not _is_within(each, nbytes):
            return (cudaError_t.cudaErrorInvalidValue,)
    if type(source) is not int or range_of(source) is None:
        source = ctypes.string_at(source, nbytes)
    _queue.append(lambda: ctypes.memmove(target, source, nbytes))
    return _OK


def cudaStreamSynchronize(_stream: Any) -> tuple[cudaError_t]:
    """Carry out the stream's copies."""
    work, _queue[:] = _queue[:], []
    for each in work:
        each()
    return _OK


def cudaDeviceSynchronize() -> tuple[cudaError_t]:
    """Carry out all streams' copies."""
    return cudaStreamSynchronize(None)


def range_of(address: int) -> tuple[int, int] | None:
    """The allocation in which an address lies: where it begins, and its bytes."""
    for start, each in allocations.items():
        if start <= address < start + each.nbytes:
            return start, each.nbytes
    return None


def _is_within(address: int, nbytes: int) -> bool:
    """Whether an address is no GPU's, or has so many bytes there."""
    found = range_of(address)
    return found is None or address + nbytes <= sum(found)


def _map(name: str, *, is_own: bool) -> int:
    with open(folder() / name, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    allocations[address] = Allocation(name, len(memory), memory, is_own)
    return address


def _note(name: str) -> Path:
    return folder() / f"{name}.open.{os.getpid()}"

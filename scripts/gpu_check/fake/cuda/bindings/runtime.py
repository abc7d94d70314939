"""A stand-in for cuda.bindings.runtime: a GPU's memory is a file that processes map, a stream is a list of copies.

Bytes really pass between processes, by handles: a copy that is missing, too early, beyond the memory or at a stale
address gives wrong numbers or CUDA's error. The files are in the folder FAKE_GPU; beside each is one file for every
process that has it open, `ID.open.PID`, for a test to look at. Functions return CUDA's status first, then the value
that is described.
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
    """The statuses that the stand-in returns."""

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
    """The handle of an allocation, for other processes: the name of its file."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(CUDA_IPC_HANDLE_SIZE)

    def getPtr(self) -> int:
        """The address of the handle's bytes in this process."""
        return ctypes.addressof(self._bytes)


class Allocation(NamedTuple):
    """An allocation that this process has mapped; `is_own` if it was made here, otherwise it was opened by a handle."""

    name: str
    nbytes: int
    memory: Any
    is_own: bool


#: Mapped allocations by address in this process.
allocations: dict[int, Allocation] = {}
_users: dict[int, int] = {}  # address of an allocation → how often its handle has been opened and not closed
_queue: list[Callable[[], object]] = []  # copies that wait for a synchronisation, of all streams
_device = threading.local()


def folder() -> Path:
    """The folder of the allocations' files."""
    return Path(os.environ.get("FAKE_GPU", tempfile.gettempdir()))


def cudaGetErrorString(status: cudaError_t) -> tuple[cudaError_t, bytes]:
    """The text of an error's status."""
    return cudaError_t.cudaSuccess, _WORDS[status]


def cudaGetDeviceCount() -> tuple[cudaError_t, int]:
    """The number of GPUs: 1."""
    return *_OK, 1


def cudaGetDevice() -> tuple[cudaError_t, int]:
    """The number of the calling thread's GPU; 0 unless it was set."""
    return *_OK, getattr(_device, "number", 0)


def cudaSetDevice(number: int) -> tuple[cudaError_t]:
    """Set the calling thread's GPU; any number but 0 is an error."""
    _device.number = number
    return _OK if number == 0 else (cudaError_t.cudaErrorInvalidValue,)


def cudaDeviceGetAttribute(_attribute: int, _number: int) -> tuple[cudaError_t, int]:
    """An attribute of a device: always 1."""
    return *_OK, 1


def cudaMalloc(nbytes: int) -> tuple[cudaError_t, int]:
    """The address of a new allocation of `nbytes` bytes, filled with 0xee."""
    name = f"fake-{uuid.uuid4().hex}"
    (folder() / name).write_bytes(b"\xee" * nbytes)
    return *_OK, _map(name, is_own=True)


def cudaFree(address: int) -> tuple[cudaError_t]:
    """Free an allocation of this process; other processes keep their mappings of it."""
    allocation = allocations.pop(address, None)
    if allocation is None or not allocation.is_own:
        return (cudaError_t.cudaErrorInvalidValue,)
    (folder() / allocation.name).unlink(missing_ok=True)
    return _OK


def cudaIpcGetMemHandle(address: int) -> tuple[cudaError_t, cudaIpcMemHandle_t | None]:
    """The handle of an allocation, for other processes."""
    if address not in allocations:
        return cudaError_t.cudaErrorInvalidValue, None
    made = cudaIpcMemHandle_t()
    made._bytes.value = allocations[address].name.encode()
    return *_OK, made


def cudaIpcOpenMemHandle(handle: cudaIpcMemHandle_t, _flags: int) -> tuple[cudaError_t, int]:
    """Map another process's allocation; returns its address here."""
    name = handle._bytes.value.decode(errors="replace")
    if not name.startswith("fake-") or not name.isascii() or not (folder() / name).exists():
        return cudaError_t.cudaErrorInvalidValue, 0
    if any(each.name == name and each.is_own for each in allocations.values()):
        return cudaError_t.cudaErrorInvalidResourceHandle, 0  # CUDA's rule: not in the process that has made it
    address = next((address for address, each in allocations.items() if each.name == name), 0)
    address = address or _map(name, is_own=False)
    _users[address] = _users.get(address, 0) + 1
    _note(name).touch()
    return *_OK, address


def cudaIpcCloseMemHandle(address: int) -> tuple[cudaError_t]:
    """Unmap another process's allocation, once it is closed as often as it was opened."""
    if address not in _users:
        return (cudaError_t.cudaErrorInvalidResourceHandle,)
    _users[address] -= 1
    if not _users[address]:
        del _users[address]
        _note(allocations.pop(address).name).unlink(missing_ok=True)
    return _OK


def cudaStreamCreate() -> tuple[cudaError_t, Any]:
    """A stream's handle, an arbitrary number: all streams share one list of copies."""
    return *_OK, 7


def cudaStreamCreateWithFlags(_flags: int) -> tuple[cudaError_t, Any]:
    """A stream's handle, as of `cudaStreamCreate`; flags have no effect."""
    return *_OK, 7


def cudaStreamDestroy(_stream: Any) -> tuple[cudaError_t]:
    """Succeed: a stream holds nothing."""
    return _OK


def cudaMemcpyAsync(target: Any, source: Any, nbytes: int, _kind: Any, _stream: Any) -> tuple[cudaError_t]:
    """Note a copy, done at the next synchronisation; bytes in host memory, which is pageable, are read at once. An
    address on the GPU must lie in a mapped allocation, with all bytes."""
    for each in (target, source):
        if type(each) is int and not _is_within(each, nbytes):
            return (cudaError_t.cudaErrorInvalidValue,)
    if type(source) is not int or range_of(source) is None:
        source = ctypes.string_at(source, nbytes)
    _queue.append(lambda: ctypes.memmove(target, source, nbytes))
    return _OK


def cudaStreamSynchronize(_stream: Any) -> tuple[cudaError_t]:
    """Do all noted copies, of other streams, too."""
    work, _queue[:] = _queue[:], []
    for each in work:
        each()
    return _OK


def cudaDeviceSynchronize() -> tuple[cudaError_t]:
    """Do all noted copies."""
    return cudaStreamSynchronize(None)


def range_of(address: int) -> tuple[int, int] | None:
    """Start and size in bytes of the allocation in which an address lies; None for an address in host memory."""
    for start, each in allocations.items():
        if start <= address < start + each.nbytes:
            return start, each.nbytes
    return None


def _is_within(address: int, nbytes: int) -> bool:
    """Whether an address is in host memory, or an allocation has `nbytes` bytes from there on."""
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

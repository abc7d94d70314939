"""Arrays over blocks that requests name by reference, so that tensors are filled in place and never copied.

The block of an array is found by the array's address, so that views and slices are found, too. A block is freed when no
array over it is left.
"""

import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable

import numpy as np

from shoal.client.arrays import Array, Lent
from shoal.datatypes import Datatype
from shoal.shared_settings import MIB
from shoal.shm.layout import UNIT
from shoal.shm.slab import Block
from shoal.star.client import HeldBlock

#: Smaller tensors are copied: a copy takes no longer than the server takes to read a header that names another block
#: (ours).
LEND_NBYTES = 32 * 1024
#: The most bytes of the last copy's memory that are kept for the next copy (ours): 64 connections, the default of
#: --client-count, then keep at most the half of --shm-oversize-mib that clients may have.
MAX_SPARE_NBYTES = 16 * MIB


class RequestMemory:
    """The blocks of one connection. `free_later` is called by finalizers, which may run anywhere, to free a block."""

    def __init__(self, free_later: Callable[[int], None]) -> None:
        self._free_later = free_later
        self._lock = threading.Lock()
        # (first address, end, reference) of each block, sorted. Replaced under the lock, and so read without it.
        self._spans: list[tuple[int, int, int]] = []
        # Changed by finalizers, which may run while their own thread has the lock: blocks to remove.
        self._gone: deque[tuple[int, int, int]] = deque()
        # The memory of the last copy. Added by a finalizer, and taken by the next copy.
        self._spare: deque[HeldBlock] = deque(maxlen=1)

    def array(self, block: Block, shape: tuple[int, ...], datatype: Datatype) -> Array:
        """An array over a block; the block is freed when the last array or view over it is gone."""
        return np.ndarray(shape, datatype.dtype, self._held(block))

    def copy(self, array: Array, datatype: Datatype, allocate: Callable[[int], Block]) -> Array:
        """A copy of a large array, in memory that requests can name. Raises the errors of `allocate`.

        The memory of the last copy is reused if it is large enough and free: new memory takes four times as long to
        make as to fill.
        """
        held = self._take_spare()
        if held is None or held.nbytes < array.nbytes:
            held = None  # frees the spare memory before another block is allocated
            held = self._held(allocate(array.nbytes))
        copy = np.ndarray(array.shape, datatype.dtype, held)
        if held.nbytes <= MAX_SPARE_NBYTES + UNIT:
            weakref.finalize(copy, self._spare.append, held).atexit = False
        copy[...] = array
        return copy

    def _take_spare(self) -> HeldBlock | None:
        try:
            return self._spare.pop()
        except IndexError:
            return None

    def drop_spare(self) -> bool:
        """Free the memory of the last copy; False if there is none."""
        return self._take_spare() is not None

    def _held(self, block: Block) -> HeldBlock:
        held = HeldBlock((len(block.memory),), np.uint8, block.memory)
        address = address_of(held)
        span = (address, address + held.nbytes, block.ref)
        self._forget()
        with self._lock:
            spans = self._spans.copy()
            insort(spans, span)
            self._spans = spans
        weakref.finalize(held, self._end, span).atexit = False
        return held

    def find(self, array: Array) -> Lent | None:
        """The block and offset of an array that lies in a block; None if the array must be copied."""
        if self._gone:
            self._forget()
        spans = self._spans
        if not spans or array.nbytes < LEND_NBYTES or not array.flags.c_contiguous:
            return None
        address = address_of(array)
        index = bisect_right(spans, (address, 1 << 64, 0)) - 1
        if index < 0:
            return None
        start, end, ref = spans[index]
        return Lent(ref, address - start) if address + array.nbytes <= end else None

    def _end(self, span: tuple[int, int, int]) -> None:
        self._gone.append(span)
        self._free_later(span[2])

    def _forget(self) -> None:
        with self._lock:
            gone = {self._gone.popleft() for _ in range(len(self._gone))}
            self._spans = [each for each in self._spans if each not in gone]


def address_of(array: Array) -> int:
    """Address in bytes of the array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address

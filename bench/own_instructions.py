"""User instructions of this thread, read at any time: perf_event_open(2), which perf uses for other processes."""

import ctypes
import os
import platform
import struct

from bench.errors import BenchmarkError

_NUMBERS = {"x86_64": 298, "aarch64": 241}  # of the system call
_HARDWARE, _INSTRUCTIONS = 0, 1
_PINNED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 2, 1 << 5, 1 << 6  # pinned: always or not at all


class OwnInstructions:
    """A counter of instructions that runs from its creation. Raises BenchmarkError where none can be counted."""

    def __init__(self) -> None:
        # struct perf_event_attr in its first version: type, size, config; no samples, no format; flags.
        flags = _PINNED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
        fields = _HARDWARE, 64, _INSTRUCTIONS, 0, 0, 0, flags, 0, 0, 0
        attributes = ctypes.create_string_buffer(struct.pack("=IIQQQQQIIQ", *fields), 64)
        libc = ctypes.CDLL(None, use_errno=True)
        number = _NUMBERS.get(platform.machine(), -1)
        self._fd = libc.syscall(number, ctypes.byref(attributes), 0, -1, -1, 0)
        if self._fd < 0:
            raise BenchmarkError(f"instructions cannot be counted here: {os.strerror(ctypes.get_errno())}")
        #: The difference of two readings with nothing between them.
        self.own = min(-self.read() + self.read() for _ in range(100))

    def read(self) -> int:
        """The instructions so far. Raises BenchmarkError where this core has too many other counters."""
        count = os.read(self._fd, 8)
        if not count:
            raise BenchmarkError("instructions cannot be counted here: the core's counters are taken")
        return int.from_bytes(count, "little")

    def close(self) -> None:
        """Close the counter: a core has only a few."""
        os.close(self._fd)

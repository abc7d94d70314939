"""python refusing.py NUMBER COMMAND…: runs a command to which the kernel refuses a system call as if it were too old.

The kernel's filters of system calls (seccomp) need no privilege. Imports nothing of Shoal.
"""

import ctypes
import errno
import os
import struct
import sys

#: The number of pidfd_open on every architecture.
PIDFD_OPEN = 434
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_MODE_FILTER = 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of linux/bpf_common.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # results of linux/seccomp.h


def refuse(number: int) -> None:
    """From now on this process and its children get ENOSYS for the system call of this number."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, 1, number),
            (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    code = ctypes.create_string_buffer(program)
    described = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, argument, detail in ((_PR_SET_NO_NEW_PRIVS, 1, None), (_PR_SET_SECCOMP, _MODE_FILTER, described)):
        if libc.prctl(option, argument, detail, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")


if __name__ == "__main__":
    refuse(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])

"""shoal/process.py: what a process does with the heap of the C library."""

import subprocess
import sys

#: After a block of 16 MiB has been freed, every other of sixty-four is, so that none lies at the heap's end.
PROGRAM = """
import sys
from pathlib import Path
from shoal.process import return_large_blocks

def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

if sys.argv[1] == "returned":
    return_large_blocks()
bytearray(16 << 20)
blocks = [bytearray(b"x" * (1 << 20)) for _ in range(64)]
before = resident_pages()
del blocks[::2]
print((before - resident_pages()) * 4096 >> 20)
"""


def returned_mib(way: str) -> int:
    """What a process gives back of 32 MiB that it frees in pieces of one."""
    command = [sys.executable, "-c", PROGRAM, way]
    return int(subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout)


def test_large_blocks_go_back_to_the_kernel_one_by_one() -> None:
    assert returned_mib("returned") >= 31
    assert returned_mib("kept") < 8  # what the call is for

"""shoal/process.py: what a process does with the heap of the C library, and with signals in processes that it forks."""

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


#: A child is sent SIGTERM right after its fork: by a hook that runs before those that give the signal its action.
FORKS = """
import os, signal
from shoal.process import end_forks_by_sigterm, ignore_group_signals

ignore_group_signals()
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
end_forks_by_sigterm()
child = os.fork()
if not child:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.kill(os.getpid(), signal.SIGTERM)
print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""


def test_a_forked_process_ends_by_a_sigterm_that_comes_with_the_fork() -> None:
    """As multiprocessing's pools send it to children that have hardly begun. The parent goes on ignoring it."""
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, check=True, text=True, timeout=60)
    assert ended.stdout.split() == ["-15", "0"]

"""shoal/process.py: what a process does with the heap of the C library, and with signals in processes that it forks."""

import re
import signal
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


#: Takes signals as a worker does.
TAKES = """
import os, signal, subprocess
from shoal.process import give_forks_default_signals, take_group_signals

take_group_signals()
"""
#: A child is sent SIGTERM right after its fork: by a hook that runs before those that give the signal its action.
FORKS = f"""
{TAKES}
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
give_forks_default_signals()
child = os.fork()
if not child:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.kill(os.getpid(), signal.SIGTERM)
print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""
#: Prints the signals that are blocked, ignored or caught by a program that is executed, and by a fork.
STARTS = f"""
{TAKES}
give_forks_default_signals()
print(subprocess.run(["cat", "/proc/self/status"], capture_output=True, check=True, text=True).stdout)
child = os.fork()
if not child:
    print(open("/proc/self/status").read(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-uc", program], capture_output=True, check=True, text=True, timeout=60
    ).stdout


def test_a_forked_process_ends_by_a_sigterm_that_comes_with_the_fork() -> None:
    """As multiprocessing's pools send it to children that have hardly begun. The parent goes on without an end."""
    assert run(FORKS).split() == ["-15", "0"]


def test_programs_and_forks_take_signals_as_if_no_worker_had_started_them() -> None:
    masks = re.findall(r"Sig(Blk|Ign|Cgt):\t([0-9a-f]+)", run(STARTS))
    numbers = signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
    found = [(name, [each for each in numbers if int(mask, 16) >> (each - 1) & 1]) for name, mask in masks]
    # Python's own handler of SIGINT is the only one that a fork has.
    assert found == [("Blk", []), ("Ign", []), ("Cgt", []), ("Blk", []), ("Ign", []), ("Cgt", [signal.SIGINT])]

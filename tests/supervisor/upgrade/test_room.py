"""supervisor/upgrade/room.py: the memory that a second server would need."""

import mmap
import os
import subprocess
import sys

from shoal.supervisor.upgrade.room import descendants, find_room, own_nbytes, why_no_room

MIB = 1 << 20


def test_a_refusal_says_what_is_needed_and_what_is_there() -> None:
    assert why_no_room(100 * MIB, 100 * MIB) == ""
    assert why_no_room(812 * MIB, 400 * MIB) == (
        "this server takes 812 MiB, the new one beside it will take as much, and 400 MiB are available. Free memory, "
        "unload models, or restart the server"
    )


def test_memory_is_counted_whether_a_process_has_it_alone_or_shares_it() -> None:
    before = own_nbytes(os.getpid())
    with mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE) as private, mmap.mmap(-1, 16 * MIB) as shared:
        for memory in (private, shared):
            memory.write(b"x" * len(memory))
        assert own_nbytes(os.getpid()) - before > 40 * MIB
    assert own_nbytes(2**22 + 1) == 0  # no process has this number


def test_all_processes_below_one_are_found() -> None:
    below = "import subprocess, sys; subprocess.run(['cat'])"
    with subprocess.Popen([sys.executable, "-c", f"{below}"], stdin=subprocess.PIPE) as child:
        while len(list(descendants(child.pid))) < 1:
            assert child.poll() is None
        found = list(descendants(os.getpid()))
        assert child.pid in found
        assert set(descendants(child.pid)) < set(found)
        assert child.stdin is not None
        child.stdin.close()
    assert find_room(os.getpid()) == ""

"""The memory that a second server needs beside this one, found before it is started. Runs in the supervisor.

The estimate is what this server's processes take now: memory of their own, and shared memory, counted once. Pages of
files (models, libraries) are left out: both servers have the same ones. /dev/shm need not be checked: segments that do
not fit there are made elsewhere (memory/participant.py).
"""

from collections.abc import Iterator
from pathlib import Path

from shoal.supervisor.memory.available_memory import available_nbytes
from shoal.supervisor.memory.process_memory import share_nbytes

_MIB = 1 << 20


def why_no_room(needed_nbytes: int, available_nbytes: int) -> str:
    """Why a second server has no room beside this one; "" where it has."""
    if needed_nbytes <= available_nbytes:
        return ""
    return (
        f"this server takes {needed_nbytes / _MIB:.0f} MiB, the new one beside it will take as much, and "
        f"{available_nbytes / _MIB:.0f} MiB are available. Free memory, unload models, or restart the server"
    )


def find_room(pid: int) -> str:
    """Why there is no room for a server beside the one of this supervisor; "" where there is."""
    return why_no_room(sum(map(own_nbytes, [pid, *descendants(pid)])), available_nbytes())


def descendants(pid: int, proc: Path = Path("/proc")) -> Iterator[int]:
    """All descendants of a process, as the kernel lists them; those that end meanwhile are left out."""
    try:
        lists = [each.read_text() for each in (proc / str(pid) / "task").glob("*/children")]
    except OSError:
        return
    for child in map(int, " ".join(lists).split()):
        yield child
        yield from descendants(child, proc)


def own_nbytes(pid: int) -> int:
    """The bytes of a process's memory that no file backs, with its part of shared memory; 0 where it has ended."""
    return share_nbytes(pid, "Pss_Anon:", "Pss_Shmem:") or 0

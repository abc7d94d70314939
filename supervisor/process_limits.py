"""The limits of processes and of address space: where they are so low that no model could be served, a server says so
before it starts anything. The sentences about a limit that is reached later are in shoal/open_files.py.

Runs in the supervisor, and in `shoal doctor`.
"""

import os
import resource
from pathlib import Path

from shoal.errors import UnavailableError
from shoal.open_files import RAISE_TASKS
from shoal.supervisor.control_groups import CGROUPS, PROC, control_groups

#: Processes and threads of a server with one instance: 14 at rest (measured), and those that live for a moment at its
#: start.
LEAST_TASKS = 24
#: Bytes that the batcher, the largest process of a server with one instance, maps: 457 MiB (measured).
LEAST_ADDRESS_SPACE_NBYTES = 512 << 20


def num_tasks_left(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """How many processes and threads this user may have, or the control groups have left, where that is less; None:
    no limit. For root, only control groups have a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    found = [] if os.geteuid() == 0 or soft == resource.RLIM_INFINITY else [soft]
    for group in control_groups("pids", proc, cgroups):
        try:
            most = (group / "pids.max").read_text().strip()
            number = int((group / "pids.current").read_text())
            if most != "max":
                found.append(max(0, int(most) - number))  # the limit may have been lowered since
        except (OSError, ValueError):
            continue  # the top group has no such files, and a sandbox's may be written otherwise
    return min(found, default=None)


def address_space_nbytes() -> int | None:
    """How much address space a process of the server's may have; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def find_low_limit(num_tasks: int | None, nbytes: int | None) -> str:
    """Which of these limits is too low, and what to raise, in a sentence; "" where none is."""
    if num_tasks is not None and num_tasks < LEAST_TASKS:
        return (
            f"the server may start {num_tasks} processes and threads, and needs {LEAST_TASKS} for itself and one "
            f"instance of a model. {RAISE_TASKS}"
        )
    if nbytes is not None and nbytes < LEAST_ADDRESS_SPACE_NBYTES:
        return (
            f"a process of the server's may have {nbytes >> 20} MiB of address space, and the batcher of one model "
            f"needs {LEAST_ADDRESS_SPACE_NBYTES >> 20}. Raise the limit: LimitAS= of the systemd unit, or ulimit -v"
        )
    return ""


def check_process_limits() -> None:
    """Raise UnavailableError where a limit is so low that no model could be served."""
    if sentence := find_low_limit(num_tasks_left(), address_space_nbytes()):
        raise UnavailableError(sentence)

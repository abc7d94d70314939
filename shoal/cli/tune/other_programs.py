"""How much of a machine other programs take while a search measures a server of its own. Only reads /proc."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

#: Where other programs take this share of the machine or more, a search says that they disturb it (ours): two
#: measurements of the same settings then differ by as much.
DISTURBING = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU times so far, in s: of the machine, and of this process with its children that have ended."""

    at_s: float
    machine_s: float
    own_s: float


def read() -> Reading:
    """The times so far. A child counts as another program until it has ended: call this when no server of a search
    runs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Reading(time.monotonic(), machine_cpu_s(), sum(each.ru_utime + each.ru_stime for each in used))


def machine_cpu_s() -> float:
    """CPU time of the whole machine in seconds, without idle and I/O wait; time taken by a hypervisor counts."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def share(before: Reading, after: Reading, num_processors: int) -> float:
    """The share of all processors, 0 to 1, that other programs took between two readings. Pure."""
    taken_s = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return max(0.0, taken_s / ((after.at_s - before.at_s) * num_processors))


def as_text(taken: float) -> str:
    """A sentence where others disturb a search; "" where they do not."""
    if taken < DISTURBING:
        return ""
    return (
        f"Other programs took {taken:.0%} of this machine meanwhile, so the figures are less sure than they look: "
        "search again when it is quiet."
    )

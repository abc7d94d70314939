"""What the number of cores decides: the default number of lanes, and how long processes spin (shm/spinning.py).

Lanes are as many as the cores can use beside the batcher and the workers. A small request costs the one batcher 74 to
108 thousand instructions, and a lane 73 to 145 (docs/performance.md). So with four lanes the batcher is the busiest
process, and on few cores the workers need them.
"""

import math
import os
from pathlib import Path

from shoal.options import ServerOptions
from shoal.placement import Placement
from shoal.supervisor.control_groups import CGROUPS, PROC, cpu_quota

#: Cores per lane of HTTP and of gRPC, and the least and the most lanes of each (ours).
_CORES_PER_HTTP_LANE, _HTTP_LANES = 2, (2, 4)
_CORES_PER_GRPC_LANE, _GRPC_LANES = 4, (1, 2)


def num_http_lanes(num_cores: int) -> int:
    """The default number of HTTP lanes: half the number of cores, between two and four."""
    return _within(num_cores // _CORES_PER_HTTP_LANE, *_HTTP_LANES)


def num_grpc_lanes(num_cores: int) -> int:
    """The default number of gRPC lanes: one, or two from eight cores on."""
    return _within(num_cores // _CORES_PER_GRPC_LANE, *_GRPC_LANES)


def _within(number: int, least: int, most: int) -> int:
    return min(max(number, least), most)


def batcher_spin_ns(options: ServerOptions) -> int:
    """The longest spin of a batcher; 0, none, on one core, where a spin would only delay what it waits for."""
    return options.spin_us * 1000 if num_usable_cores() > 1 else 0


def worker_spin_ns(options: ServerOptions, placement: Placement) -> int:
    """The longest spin of a worker; 0 for instances that share a process, as a spinning thread would take the
    interpreter from the others."""
    return 0 if placement.process_cores else batcher_spin_ns(options)


def num_usable_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Cores that this process may use: its affinity or, where less, its control groups' CPU time in cores."""
    quota = cpu_quota(proc, cgroups)
    num_cores = len(os.sched_getaffinity(0))
    return num_cores if quota is None else max(1, math.ceil(min(num_cores, quota)))

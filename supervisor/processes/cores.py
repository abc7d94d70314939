"""Defaults that depend on the number of cores: how many lanes there are, and how long processes spin before they sleep
(shm/spinning.py).

The lanes share the cores with the batcher and the workers. A small request costs the one batcher 74 to 108 thousand
instructions, and a lane 73 to 145 (docs/performance.md). So with four lanes the batcher is the busiest process, and
further lanes would not help; on few cores the workers need the cores more.
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
    """The longest spin of a batcher. On a single core it is 0: a spin would only delay the process that is awaited."""
    return options.spin_us * 1000 if num_usable_cores() > 1 else 0


def worker_spin_ns(options: ServerOptions, placement: Placement) -> int:
    """The longest spin of a worker. For instances that share a process it is 0: a spinning thread would keep the
    interpreter lock from the others."""
    return 0 if placement.process_cores else batcher_spin_ns(options)


def num_usable_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """The number of cores that this process may use: its affinity mask's or, if less, its control groups' CPU quota,
    rounded up."""
    quota = cpu_quota(proc, cgroups)
    num_cores = len(os.sched_getaffinity(0))
    return num_cores if quota is None else max(1, math.ceil(min(num_cores, quota)))

"""How long the server's processes may spin before they sleep (shm/spinning.py), by the cores that there are."""

from shoal.options import ServerOptions
from shoal.placement import Placement
from shoal.supervisor.processes.lane_counts import num_usable_cores


def batcher_spin_ns(options: ServerOptions) -> int:
    """The longest spin of a batcher; 0, none, on one core, where a spin would only delay what it waits for."""
    return options.spin_us * 1000 if num_usable_cores() > 1 else 0


def worker_spin_ns(options: ServerOptions, placement: Placement) -> int:
    """The longest spin of a worker; 0 for instances that share a process, as a spinning thread would take the
    interpreter from the others."""
    return 0 if placement.process_cores else batcher_spin_ns(options)

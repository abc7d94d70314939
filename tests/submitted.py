"""A request as `Port.submit` takes it, of which no more is said than a test needs."""

from dataclasses import dataclass

from shoal.shm.port import Port
from shoal.shm.slab import Block


@dataclass(frozen=True)
class Submitted:
    """What its model has been found to take, and what its client wishes, in one."""

    model_id: int
    rows: int = 1
    shape_key: int = 0
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0

    @property
    def entry(self) -> "Submitted":
        return self


def submit(port: Port, model: int, block: Block | None = None, header: int = 0, start_ns: int = 0) -> int:
    """Submit a request of one row to a model. Returns its number."""
    request = Submitted(model)
    return port.submit(request, request, block or port.allocate(1, model), header, start_ns)

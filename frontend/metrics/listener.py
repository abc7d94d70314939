"""The metrics listener, which serves GET /metrics alone, and the figures of the machine's CPU and memory, from /proc.
Runs in the road's threads."""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalError
from shoal.frontend.call import Ask
from shoal.frontend.metrics.exposition import ExternalFigures, exposition
from shoal.frontend.response import Response, not_allowed
from shoal.frontend.reused import Reused
from shoal.frontend.state import ServerState
from shoal.nvml import Gpus, has_library, load_nvml

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport

#: Fields of the first line of /proc/stat that Triton counts as work, and as idling. Virtual machines' time is within
#: the fields user and nice already.
_WORK, _IDLE = (0, 1, 2, 5, 6, 7), (3, 4)
_KIB = 1024


class Cpu:
    """Reads the utilization of the machine's CPUs, and its memory, by Triton's definitions. Utilization is the share of
    time worked since the last `read`, or since this object was made."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        # Changed by read: the machine's time of work and of idling so far, in ticks of /proc/stat.
        self._work, self._idle = self._ticks()

    def read(self) -> dict[str, float]:
        """The figures that the families in families.CPU_FAMILIES print, by the figures' names."""
        work, idle = self._ticks()
        worked, idled = max(0, work - self._work), max(0, idle - self._idle)
        self._work, self._idle = work, idle
        memory = self._memory()
        return {
            "utilization": worked / (worked + idled) if worked + idled else 0.0,
            "memory_total_bytes": memory["MemTotal"],
            "memory_used_bytes": memory["MemTotal"] - memory["MemAvailable"],
        }

    def _ticks(self) -> tuple[int, int]:
        first, _, _ = (self._proc / "stat").read_text().partition("\n")
        ticks = [int(field) for field in first.split()[1:]]
        return sum(ticks[field] for field in _WORK), sum(ticks[field] for field in _IDLE)

    def _memory(self) -> dict[str, int]:
        lines = (self._proc / "meminfo").read_text().splitlines()
        return {name: int(rest.split()[0]) * _KIB for name, _, rest in (line.partition(":") for line in lines)}


_log = logging.getLogger("shoal")

CONTENT = (("Content-Type", "text/plain; charset=utf-8"),)
#: Seconds that a scrape waits for the supervisor's figures before it is answered without them (ours; Prometheus waits
#: 10 s).
GAUGES_TIMEOUT_S = 2.0


def read_gauges(ask: Ask) -> dict[str, Any] | None:
    """The supervisor's figures; None if the supervisor refuses or does not answer in time."""
    try:
        gauges: dict[str, Any] = ask("gauges", {}, GAUGES_TIMEOUT_S)
    except ShoalError as error:
        _log.warning("/metrics lacks the supervisor's figures: %s", error)
        return None
    return gauges


class MetricsListener:
    """The handler of all requests to the metrics port."""

    def __init__(self, state: ServerState, transport: "Transport") -> None:
        self._state = state
        self._transport = transport
        read_cpu = Cpu().read if state.allow_cpu_metrics else dict
        has_gpus = state.allow_gpu_metrics and has_library()
        read_gpus = Gpus(load_nvml()).read if has_gpus else list
        self._cpu: Reused[dict[str, float]] = Reused(read_cpu, state.metrics_interval_ms)
        self._gpus: Reused[list[dict[str, Any]]] = Reused(read_gpus, state.metrics_interval_ms)

    def answer(self, method: str, path: str) -> Response:
        """The response to a request. Any path but /metrics is an empty 200, as in Triton."""
        if method not in ("GET", "HEAD"):
            return not_allowed(("GET",))
        if path != "/metrics":
            return Response(200, CONTENT)
        gauges = read_gauges(self._transport.ask)
        now_ns = time.monotonic_ns()
        external = ExternalFigures(gauges, self._cpu.get(now_ns), self._gpus.get(now_ns))
        return Response(200, CONTENT, (exposition(self._state, external, now_ns).encode(),))

"""The metrics listener: GET /metrics, and nothing else. Runs in the road's threads."""

import logging
import time
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalError
from shoal.frontend.call import Ask
from shoal.frontend.metrics.cpu import Cpu
from shoal.frontend.metrics.exposition import ExternalFigures, exposition
from shoal.frontend.response import Response, not_allowed
from shoal.frontend.reused import Reused
from shoal.frontend.state import ServerState
from shoal.nvml import Gpus, has_library, load_nvml

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport

_log = logging.getLogger("shoal")

CONTENT = (("Content-Type", "text/plain; charset=utf-8"),)
#: A scrape is answered without the supervisor's figures rather than late (ours; Prometheus waits for 10 s).
GAUGES_TIMEOUT_S = 2.0


def read_gauges(ask: Ask) -> dict[str, Any] | None:
    """The supervisor's figures; None where it does not answer in time."""
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

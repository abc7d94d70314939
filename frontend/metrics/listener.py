"""The metrics listener: GET /metrics, and nothing else. Runs in the road's threads."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shoal.errors import ShoalError
from shoal.frontend.metrics.cpu import Cpu
from shoal.frontend.metrics.exposition import ExternalFigures, exposition
from shoal.frontend.response import Response, error_json
from shoal.frontend.state import ServerState
from shoal.nvml import Gpus, load_nvml

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport

_log = logging.getLogger("shoal")

_CONTENT = (("Content-Type", "text/plain; charset=utf-8"),)
#: A scrape is answered without the supervisor's figures rather than late (ours; Prometheus waits for 10 s).
GAUGES_TIMEOUT_S = 2.0
_NS_PER_MS = 1_000_000

T = TypeVar("T")


class Reused(Generic[T]):
    """The last result of `read`, used again for an interval; any number of threads may ask."""

    def __init__(self, read: Callable[[], T], interval_ms: int) -> None:
        self._read = read
        self._interval_ns = interval_ms * _NS_PER_MS
        self._lock = threading.Lock()
        # Changed under the lock.
        self._last: tuple[int, T] | None = None

    def get(self, now_ns: int) -> T:
        """The figure of this moment, or of one not longer ago than the interval."""
        with self._lock:
            if self._last is None or now_ns - self._last[0] >= self._interval_ns:
                self._last = now_ns, self._read()
            return self._last[1]


class MetricsListener:
    """The handler of all requests to the metrics port."""

    def __init__(self, state: ServerState, transport: "Transport") -> None:
        self._state = state
        self._transport = transport
        read_cpu = Cpu().read if state.allow_cpu_metrics else dict
        read_gpus = Gpus(load_nvml()).read if state.allow_gpu_metrics else list
        self._cpu: Reused[dict[str, float]] = Reused(read_cpu, state.metrics_interval_ms)
        self._gpus: Reused[list[dict[str, Any]]] = Reused(read_gpus, state.metrics_interval_ms)

    def answer(self, method: str, path: str) -> Response:
        """The response to a request. Any path but /metrics is an empty 200, as in Triton."""
        if method not in ("GET", "HEAD"):
            return error_json(405, "Method Not Allowed", (("Allow", "GET"),))
        if path != "/metrics":
            return Response(200, _CONTENT)
        gauges = self._gauges()
        now_ns = time.monotonic_ns()
        external = ExternalFigures(gauges, self._cpu.get(now_ns), self._gpus.get(now_ns))
        return Response(200, _CONTENT, (exposition(self._state, external, now_ns).encode(),))

    def _gauges(self) -> dict[str, Any] | None:
        try:
            gauges: dict[str, Any] = self._transport.ask("gauges", {}, GAUGES_TIMEOUT_S)
        except ShoalError as error:
            _log.warning("/metrics lacks the supervisor's figures: %s", error)
            return None
        return gauges

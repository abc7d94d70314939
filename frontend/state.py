"""What a front-end process knows: the server's settings, the models and their counters. Handlers only read it.

Filled from the supervisor's messages by one thread while others answer requests. Nothing here asks anybody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.errors import UnavailableError
from shoal.frontend.regions import Regions
from shoal.frontend.restrictions import Restrictions
from shoal.grpc_settings import GrpcSettings
from shoal.options import MetricsConfig
from shoal.shm.counters import CACHE_FIGURES, ZERO_ROW, RowView
from shoal.star.models import ModelEntry, ModelTable

if TYPE_CHECKING:
    from shoal.frontend.tracing import Tracing
    from shoal.shm.counters import CounterTableView

#: The protocol Shoal speaks is that of this Triton release; clients parse the version as 2.xx.y.
PROTOCOL_VERSION = "2.73.0"


@dataclass(slots=True)
class ServerState:
    """The settings, and what changes while the server runs: from `log_settings` on."""

    server_id: str = "triton"  # Triton's default
    version: str = PROTOCOL_VERSION
    strict_readiness: bool = True
    http_max_input_size: int = 64 << 20  # Triton's default
    max_request_bytes: int = 2 << 30  # ours: a whole body, binary tensors included
    endpoints: Mapping[str, str] = field(default_factory=dict)  # address:port → which of shoal/options.py's it is
    header_forward_pattern: str = ""  # "" = none is forwarded
    restrictions: Restrictions = field(default_factory=dict)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    log_file: str = ""
    log_settings: Mapping[str, Any] = field(default_factory=dict)  # arguments of log.configure
    model_control_mode: str = "none"  # Triton's default
    allow_remote_admin: bool = False
    allow_gpu_metrics: bool = True
    allow_cpu_metrics: bool = True
    metrics_interval_ms: int = 2000
    metrics_config: MetricsConfig = field(default_factory=MetricsConfig)
    sagemaker_ping_mode: str = "ready"  # these three: Triton's defaults
    sagemaker_default_model: str = ""
    sagemaker_inference_type: str = "infer"
    vertex_ai_default_model: str = ""
    vertex_ai_predict_route: str = ""
    vertex_ai_health_route: str = ""
    has_repositories: bool = True  # False: they could not be read at the start, and nothing is served
    started: bool = False
    exiting: bool = False
    tracing: "Tracing | None" = None  # None = nothing is traced
    counters: "CounterTableView | None" = None
    models: ModelTable = field(default_factory=ModelTable)
    regions: Regions = field(default_factory=Regions)

    def require_ready(self) -> None:
        """Raise UnavailableError where Triton asks for a server that has started and is not stopping."""
        if self.exiting or not (self.started and self.has_repositories):
            raise UnavailableError("Server not ready")

    def read_counters(self, entry: ModelEntry) -> RowView:
        """A version's figures; zeros for one that has no row."""
        if self.counters is None or entry.row < 0:
            return ZERO_ROW
        return self.counters.read(entry.row)

    def read_cache_figures(self) -> dict[str, float]:
        """What the response cache does; zeros where there is none."""
        found: dict[str, float] = dict.fromkeys(CACHE_FIGURES, 0)
        if self.counters is not None:
            found.update(self.counters.cache_figures())
        found["utilization"] = found["used_bytes"] / found["total_bytes"] if found["total_bytes"] else 0
        return found

    def read_windows(self, entry: ModelEntry, now_ns: int) -> dict[str, list[int]] | None:
        """How long a version's requests took in the last minute; None where nobody asked for summaries."""
        windows = None if self.counters is None or entry.row < 0 else self.counters.windows(entry.row)
        return None if windows is None else windows.read(now_ns)

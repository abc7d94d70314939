"""The state of a front-end process that handlers read: the server's settings, the models and their counters.

One thread changes the state by the supervisor's messages while others answer requests. Reading it never waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.api_keys import KeyRing
from shoal.errors import UnavailableError
from shoal.frontend.access.doors import Restrictions
from shoal.frontend.access.key_limits import KeyUses
from shoal.frontend.regions import Regions
from shoal.frontend.reused import Reused
from shoal.frontend.upload_budget import UploadBudget, UploadPace
from shoal.grpc_settings import GrpcSettings
from shoal.shared_settings import MetricsConfig
from shoal.shm.counters import CACHE_FIGURES
from shoal.star.known_server import KnownServer
from shoal.star.models import ModelEntry
from shoal.torchserve_settings import TorchServeSettings

if TYPE_CHECKING:
    from shoal.frontend.tracing import Tracing


@dataclass(slots=True)
class ServerState(KnownServer):
    """The settings, and what changes while the server runs: the models, their counters, `log_settings`, `tracing`,
    `regions`, `api_keys`."""

    http_max_input_size: int = 64 << 20  # Triton's default
    max_request_bytes: int = 2 << 30  # of a body, binary tensors included; Triton has no such limit
    max_control_bytes: int = 1 << 20  # this and max_expansion: ours, see shoal/options.py
    max_expansion: int = 100
    #: When the server began, in seconds since 1970; OpenAI's endpoints report it as the time of creation of each model.
    begun_s: int = 0
    default_max_tokens: int = 16  # where a request to OpenAI's endpoints names no number; Triton's default
    is_draining: bool = False  # each connection ends with its next response; matters to the road alone
    gives_up: bool = False  # the time for open requests is over: they are refused, and this process ends
    upload_timeout_s: float = 60.0  # this and min_upload_rate: ours, see shoal/options.py
    min_upload_rate: int = 1024
    #: The memory for requests that arrive on the road.
    upload_budget: UploadBudget = field(default_factory=lambda: UploadBudget(1 << 30))
    endpoints: Mapping[str, str] = field(default_factory=dict)  # address:port → the endpoint's name (shoal/options.py)
    header_forward_pattern: str = ""  # "" = no header is forwarded
    recorded_headers: Sequence[str] = ()  # names in lower case
    restrictions: Restrictions = field(default_factory=dict)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    log_file: str = ""
    log_access: bool = False  # a line for each request (access_log.py)
    log_settings: Mapping[str, Any] = field(default_factory=dict)  # arguments of log.configure
    model_control_mode: str = "none"  # Triton's default
    allow_remote_admin: bool = False
    has_page: bool = False  # the page at / (frontend/page)
    grpc_port: int = 0  # shown on the page; 0: there is no gRPC
    api_keys: KeyRing | None = None  # None = no request needs a key
    key_uses: KeyUses = field(default_factory=KeyUses)  # of keys with limits, on the road
    allow_gpu_metrics: bool = True
    allow_cpu_metrics: bool = True
    metrics_interval_ms: int = 2000
    metrics_config: MetricsConfig = field(default_factory=MetricsConfig)
    sagemaker_ping_mode: str = "ready"  # this and the next two: Triton's defaults
    sagemaker_default_model: str = ""
    sagemaker_inference_type: str = "infer"
    vertex_ai_default_model: str = ""
    vertex_ai_predict_route: str = ""
    vertex_ai_health_route: str = ""
    torchserve: TorchServeSettings = field(default_factory=TorchServeSettings)
    #: The names of TorchServe's endpoints → the APIs that each serves (shoal/options.py).
    torchserve_apis: Mapping[str, Sequence[str]] = field(default_factory=dict)
    torchserve_grpc_apis: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tracing: "Tracing | None" = None  # None = no request is traced, and times are reported only on request
    timing_share: float = 0.0  # the share of requests whose responses report times without being asked
    regions: Regions = field(default_factory=Regions)
    #: The figures of the page at /; None until a page asks for them.
    page_figures: Reused[bytes] | None = None

    def no_answer(self, timeout_s: float) -> UnavailableError:
        """The error for a request that has had no answer within `timeout_s`, or before the end of the server."""
        if self.gives_up:
            return UnavailableError("the server ends before there was an answer: --exit-timeout-secs is over")
        return UnavailableError(f"Request timeout expired: no answer within {timeout_s:g} s (--request-timeout-secs)")

    @property
    def upload_pace(self) -> UploadPace:
        return UploadPace(self.upload_timeout_s, self.min_upload_rate)

    @property
    def num_region_kinds(self) -> int:
        """Implements `KnownServer.num_region_kinds` by the server's flag and GPUs."""
        return 1 + self.regions.has_gpus if self.regions.are_allowed else 0

    def endpoint_at(self, address: str, port: int | str) -> str:
        """The name of the endpoint at which a connection with this local address arrived.

        An address that the table lacks is that of a connection to the endpoint http, which may listen on every address.
        """
        for listening in (address, "0.0.0.0", "::"):
            if name := self.endpoints.get(f"{listening}:{port}"):
                return name
        return "http"

    def read_cache_figures(self) -> dict[str, float]:
        """Figures of the response cache; zeros without one."""
        found: dict[str, float] = dict.fromkeys(CACHE_FIGURES, 0)
        if self.counters is not None:
            found.update(self.counters.cache_figures())
        found["utilization"] = found["used_bytes"] / found["total_bytes"] if found["total_bytes"] else 0
        return found

    def read_windows(self, entry: ModelEntry, now_ns: int) -> dict[str, list[int]] | None:
        """The times of a version's requests in the last minute, for the summaries of /metrics; None if summaries are
        turned off."""
        windows = None if self.counters is None or entry.row < 0 else self.counters.windows(entry.row)
        return None if windows is None else windows.read(now_ns)

"""The options of a server: every number and switch, with its unit and the source of its default.

`ServerOptions` is built once, by the command line, and passed whole; flags are not parsed again. A field's name is its
flag's name, but for the few that the environment sets. Sources of the defaults: *Triton's* (its command line),
*measured* (with the figure), or *ours*. Used in the supervisor; other processes are sent the few values they need.
Imports only errors, and the parsers of values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from shoal.cache_settings import CacheConfig, cache_bytes, check_cache
from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError
from shoal.recording_settings import read_settings
from shoal.shared_settings import MAX_OVERSIZE_BYTES, MIB, SLAB_PARTS, UNIX, MetricsConfig
from shoal.store_settings import StoreSettings
from shoal.torchserve_settings import TorchServeSettings

#: The parts of the API that can be restricted to requests with a header, by Triton's names for HTTP and gRPC.
RESTRICTED_APIS = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace",
    "logging",
)  # fmt: skip

#: The kinds of requests to SageMaker's /invocations, by Triton's names.
INFERENCE_TYPES = ("infer", "generate", "generate_stream")

#: TorchServe's APIs over HTTP. The listener for inference is a lane's.
TORCHSERVE_APIS = ("inference", "management", "metrics")
TORCHSERVE_GRPC_APIS = ("inference", "management")

MAX_PORT = 65535
#: Addresses that listen on every interface, and so conflict with every other address.
_WILDCARDS = frozenset({"0.0.0.0", "::"})


class HostPolicy(NamedTuple):
    """The cores that one --host-policy chooses; with both fields, those that are in both."""

    numa_node: int | None = None  # the node's cores; the kernel gives them memory of that node
    cpu_cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server's settings. `check` finds those that exclude each other."""

    # The server.
    id: str = "triton"  # name in GET /v2; Triton's, since clients' tests compare it
    api_keys: str = ""  # file of the keys that requests need (api_keys.py), read again when it changes; "": none; ours
    announcement: str = ""  # a line for stdout once the server serves, which TorchServe's launchers wait for
    exit_timeout_secs: int = 30  # s from SIGTERM to dropping open requests; Triton's
    pid_file: str = ""  # file that names the server's process; "": none; ours; torchserve's is TorchServe's
    upgrade_timeout_secs: int = 600  # s from the start of a new server to its taking over; ours

    # Logging.
    log_verbose: int = 0  # 0 = none, n = verbose messages up to level n; Triton's
    log_info: bool = True  # Triton's
    log_warning: bool = True  # Triton's
    log_error: bool = True  # Triton's
    log_access: bool = False  # a line for each request that is answered; ours
    log_format: str = "default"  # "default" or "ISO8601", which are Triton's, or "json"
    log_file: str = ""  # file for all output; "": stdout and stderr; Triton's

    # Models.
    model_repository: tuple[Path | CloudUrl, ...] = ()  # directories of models, here or in the cloud, at least one
    exit_on_error: bool = True  # exit 1 where a model fails to load at start; Triton's
    disable_auto_complete_config: bool = False  # True: config.pbtxt must be complete; Triton's
    model_config_name: str = ""  # NAME: a model's configs/NAME.pbtxt before its config.pbtxt; Triton's
    model_namespacing: bool = False  # a model is known by its name and its repository, not by name alone; Triton's
    strict_readiness: bool = True  # ready only when every model is; Triton's
    model_control_mode: str = "none"  # "none", "explicit" or "poll": when models are loaded and unloaded; Triton's
    load_model: tuple[str, ...] = ()  # models loaded at start in control mode "explicit"; Triton's
    repository_poll_secs: int = 15  # s between two polls in control mode "poll", 0: one, at the start; Triton's
    store: StoreSettings | None = None  # TorchServe's model store, beside or instead of repositories
    model_load_retry_count: int = 0  # further attempts to load a version that has failed; Triton's
    model_load_thread_count: int = 4  # models loaded at once; Triton's
    model_load_timeout_secs: int = 600  # s from the start of a process to a warm model; ours: enough for large ones
    #: s for one batch or one response; 0 = no limit; ours; tritonserver's is Triton's, 0.
    model_execution_timeout_secs: int = 60
    latency_target: int = 0  # ms for an answer of a model with an empty dynamic_batching; 0 = none; ours

    # HTTP.
    allow_http: bool = True  # Triton's
    http_address: str = "127.0.0.1"  # ours, the safe one; tritonserver's is Triton's, 0.0.0.0
    http_port: int = 8000  # 0 = any free port; Triton's
    reuse_http_port: bool = False  # other servers may listen there, too, and share its connections; Triton's
    http_process_count: int = 0  # lanes; 0 = by the cores, 2 to 4: supervisor/processes/cores.py; ours
    http_thread_count: int = 8  # threads as Triton counts them, each standing for 8 requests at once here; Triton's
    http_max_input_size: int = 64 * MIB  # bytes of a request's JSON, or of a tensor made from it; Triton's
    max_request_bytes: int = 2048 * MIB  # bytes of a request's body; ours: what shared memory could hold at most
    max_control_bytes: int = MIB  # bytes of a body that is neither for a model nor a load; ours
    max_expansion: int = 100  # most times a body may grow by decompression, beyond 1 MiB; 0 = any; ours: JSON has 10
    max_upload_mib: int = 0  # MiB of bodies that are arriving; 0 = a quarter of free memory at start, at least 64; ours
    upload_timeout_secs: int = 60  # s for a body, beside those for its bytes at min_upload_rate; ours: as in nginx
    min_upload_rate: int = 1024  # bytes a second; ours: twice Apache's, as the slowest of mobile networks send
    #: A second port for HTTP, for clients of Triton's OpenAI frontend, which has 9000; None: no second one; ours.
    openai_port: int | None = None
    default_max_tokens: int = 16  # most tokens of text, where a request to OpenAI's endpoints sets none; Triton's
    http_header_forward_pattern: str = ""  # matching headers become request parameters; "": none; Triton's
    http_restricted_api: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # API → header's name and value
    http_use_ssl: bool = False  # these five are like gRPC's below; ours: Triton has no TLS for HTTP
    http_use_ssl_mutual: bool = False
    http_server_cert: str = ""
    http_server_key: str = ""
    http_root_cert: str = ""
    timing_percent: int = 0  # percent of responses that have Server-Timing though their clients have not asked; ours
    ui: bool = True  # the page at / and /ui; ours; tritonserver's is Triton's, none
    allow_remote_admin: bool = False  # change the server from other machines; ours, the safe one; tritonserver: yes
    listen_backlog: int = 256  # most connections that wait to be accepted; ours: 0.1 s of the measured 2200 a second

    # gRPC.
    allow_grpc: bool = True  # Triton's
    grpc_address: str = "127.0.0.1"  # ours, the safe one; tritonserver's is Triton's, 0.0.0.0
    grpc_port: int = 8001  # 0 = any free port; Triton's
    reuse_grpc_port: bool = False  # as reuse_http_port; Triton's
    grpc_process_count: int = 0  # lanes; 0 = by the cores, 1 or 2: supervisor/processes/cores.py; ours
    grpc_header_forward_pattern: str = ""  # matching metadata become parameters; "": none; Triton's
    #: API → metadata key and value.
    grpc_restricted_protocol: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    grpc_infer_response_compression_level: str = "none"  # "none", "low", "medium", "high"; Triton's
    grpc_use_ssl: bool = False  # Triton's
    grpc_use_ssl_mutual: bool = False  # TLS, and clients show certificates, too; Triton's
    grpc_server_cert: str = ""  # PEM files; the root file's certificates are those that may sign clients'; Triton's
    grpc_server_key: str = ""
    grpc_root_cert: str = ""
    grpc_keepalive_time: int = 7_200_000  # ms of silence, then a ping; Triton's
    grpc_keepalive_timeout: int = 20_000  # ms for a ping's answer, then the connection ends; Triton's
    grpc_keepalive_permit_without_calls: bool = False  # pings without open calls, too; Triton's
    grpc_http2_max_pings_without_data: int = 2  # the server's pings in a row; 0 = no limit; Triton's
    grpc_http2_min_recv_ping_interval_without_data: int = 300_000  # ms; sooner, a client's ping is a strike; Triton's
    grpc_http2_max_ping_strikes: int = 2  # strikes before the connection ends; 0 = never; Triton's
    grpc_max_connections: int = 0  # per process; then idle ones are closed; 0 = 10,000, or as descriptors allow; ours
    grpc_max_connection_age: int = 0  # ms after which a connection takes no more calls; 0 = never; Triton's
    grpc_max_connection_age_grace: int = 0  # ms for the calls that are open then; 0 = no limit; Triton's

    # Metrics.
    allow_metrics: bool = True  # Triton's
    metrics_address: str = "127.0.0.1"  # http_address by default on the command line, as in Triton
    metrics_port: int = 8002  # 0 = any free port; Triton's
    metrics_use_ssl: bool = False  # metrics over TLS, with the files for HTTP; ours
    allow_gpu_metrics: bool = True  # Triton's
    allow_cpu_metrics: bool = True  # Triton's
    metrics_interval_ms: int = 2000  # ms for which a figure of the system is reused; Triton's
    metrics_config: MetricsConfig = field(default_factory=MetricsConfig)

    # Tracing: (mode or "", setting, value), in the order given; see tracer/command_line.py.
    trace_config: tuple[tuple[str, str, str], ...] = ()

    # Recording: the folder, "" for none, and settings; see recording_settings.py.
    record: str = ""
    record_config: tuple[tuple[str, str], ...] = ()
    #: Where rollouts, and shadows that were begun by request, are kept across restarts; "" = in the state directory
    #: (supervisor/state_file.py).
    rollout_file: str = ""
    shadow_file: str = ""

    # SageMaker. Options without a flag are set by environment variables, as Triton's (cli/environment.py).
    allow_sagemaker: bool = False  # Triton's
    sagemaker_address: str = "127.0.0.1"  # ours, the safe one; tritonserver's is Triton's, 0.0.0.0
    sagemaker_port: int = 8080  # 0 = any free port; Triton's
    sagemaker_safe_port_range: tuple[int, int] | None = None  # range of the other listeners' ports; Triton's
    sagemaker_ping_mode: str = "ready"  # "ready" or "live": what /ping reports; Triton's
    sagemaker_default_model: str = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"  # that /invocations asks; Triton's
    sagemaker_inference_type: str = "infer"  # one of INFERENCE_TYPES, for /invocations; Triton's

    # Vertex AI.
    allow_vertex_ai: bool = False  # Triton's
    vertex_ai_address: str = "127.0.0.1"  # ours, the safe one; tritonserver's is Triton's, 0.0.0.0
    vertex_ai_port: int = 8080  # 0 = any free port; Triton's
    vertex_ai_default_model: str = ""  # "": the only model of the server; Triton's
    vertex_ai_predict_route: str = ""  # required; Triton's
    vertex_ai_health_route: str = ""  # required; Triton's

    # TorchServe. Ports: 0 = any free port; all defaults are TorchServe's. Listeners with one address and port are one.
    allow_torchserve: bool = False
    torchserve_inference_address: str = "127.0.0.1"
    torchserve_inference_port: int = 8080
    torchserve_management_address: str = "127.0.0.1"
    torchserve_management_port: int = 8081
    torchserve_metrics_address: str = "127.0.0.1"
    torchserve_metrics_port: int = 8082
    torchserve_https: tuple[str, ...] = ()  # the TORCHSERVE_APIS that are served over TLS, with the files for HTTP
    allow_torchserve_grpc: bool = True  # takes effect only with allow_torchserve
    torchserve_grpc_inference_address: str = "127.0.0.1"
    torchserve_grpc_inference_port: int = 7070
    torchserve_grpc_management_address: str = "127.0.0.1"
    torchserve_grpc_management_port: int = 7071
    torchserve: TorchServeSettings = field(default_factory=TorchServeSettings)  # the protocol's properties

    # Backends: name → setting → value, as text; the settings of the name "" are for all of them.
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    host_policy: Mapping[str, HostPolicy] = field(default_factory=dict)  # name → cores of instances; Triton's
    cpu_fallback: bool = True  # serve unsupported kinds of instance groups on the CPU; ours
    min_supported_compute_capability: float = 6.0  # the least of the GPUs that are used; Triton's
    backend_directory: str = "/opt/tritonserver/backends"  # directory of backends written in Python; Triton's

    # GPUs.
    cuda_mps: bool = False  # NVIDIA's MPS for the workers on GPUs, of this server's own; ours
    cuda_memory_pool_byte_size: tuple[tuple[int, int], ...] = ()  # a GPU's number → bytes of a worker's pool there
    model_load_gpu_limit: tuple[tuple[int, float], ...] = ()  # a GPU's number → most of its memory in use, 0 to 1

    # The rate limiter.
    rate_limit: str = "off"  # "off" or "execution_count"; Triton's
    rate_limit_resource: tuple[tuple[str, int, int | None], ...] = ()  # name, count, device; None: every device

    # Python environments of models.
    environment_cache_directory: str = ""  # "": systemd's, else the user's cache directory; ours
    install_requirements: bool = True  # in a Python model's requirements.txt; ours; tritonserver's is Triton's, no

    # The response cache: name → settings, as text; {} without one. Names are "local" and "redis" (cache_settings.py).
    cache_config: CacheConfig = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"  # only named in a refusal: caches are built in; Triton's

    # Shared memory.
    allow_client_shm: bool = False  # tensors may lie in clients' own objects in /dev/shm; Triton's
    shm_client_slab_mib: int = 64  # most MiB of requests per front-end process; ours: as http_max_input_size
    shm_worker_slab_mib: int = 64  # MiB of results per instance at most, the size depends on the model; ours
    client_socket: str | None = None  # socket for clients on this host; None: by user and HTTP port; "": none; ours
    client_count: int = 64  # clients at once; each costs the supervisor five descriptors of 1024; ours
    client_slab_mib: int = 16  # MiB of requests per client; its pages are taken as it uses them; ours
    shm_oversize_mib: int = 2048  # MiB of all payloads together that do not fit a slab; ours

    # Bounds.
    max_in_flight: int = 1024  # requests of a model in a front-end process between acceptance and answer; ours
    default_max_queue_size: int = 1024  # queued requests per model whose config has no bound; ours: Triton has none
    request_deadline_ms: int = 0  # ms from a request's arrival to its answer; 0 = no limit; ours
    spin_us: int = 100  # µs, the longest spin of the batcher or an idle instance before it sleeps; 0 = never; ours
    poison_refusal_secs: int = 60  # s for which a request that has ended instances is refused at first; 0 = never; ours
    request_timeout_secs: int = 300  # s from acceptance to answer, then 503; ours: Triton has no limit

    def backend_settings(self, backend: str) -> dict[str, str]:
        """The settings of one backend in --backend-config: its own over those for all backends."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}

    def gpu_pool_nbytes(self, gpu: int) -> int:
        """Most bytes that a worker on a GPU keeps there for other models; Triton's default where none is set."""
        return dict(self.cuda_memory_pool_byte_size).get(gpu, 64 * MIB)

    @property
    def rate_limits(self) -> tuple[tuple[str, int, int | None], ...] | None:
        """The counts of --rate-limit-resource; None where the rate limiter is off."""
        return None if self.rate_limit == "off" else self.rate_limit_resource

    @property
    def cache_bytes(self) -> int:
        """Bytes of the response cache in this server's memory; 0: there is no cache."""
        return cache_bytes(self.cache_config)

    @property
    def has_grpc(self) -> bool:
        """Whether something listens for gRPC."""
        return self.allow_grpc or (self.allow_torchserve and self.allow_torchserve_grpc)

    @property
    def has_grpc_tls(self) -> bool:
        """Whether gRPC takes only clients with TLS; as in Triton, either switch turns TLS on."""
        return self.grpc_use_ssl or self.grpc_use_ssl_mutual

    @property
    def grpc_tls(self) -> tuple[str, str, str, bool]:
        """The files for gRPC over TLS: certificate, key, certificates of those who sign clients' certificates; and
        whether a client must have one."""
        return self.grpc_server_cert, self.grpc_server_key, self.grpc_root_cert, self.grpc_use_ssl_mutual

    @property
    def has_http_tls(self) -> bool:
        """Whether the port of HTTP takes only clients with TLS; either switch turns TLS on, as gRPC's."""
        return self.http_use_ssl or self.http_use_ssl_mutual

    @property
    def http_tls(self) -> tuple[str, str, str, bool]:
        """The files for HTTP over TLS, like `grpc_tls`."""
        return self.http_server_cert, self.http_server_key, self.http_root_cert, self.http_use_ssl_mutual

    @property
    def tls(self) -> dict[str, tuple[str, str, str, bool]]:
        """The files of each protocol that takes TLS somewhere, "grpc" or "http"."""
        found = {"grpc": self.grpc_tls} if self.has_grpc and self.has_grpc_tls else {}
        return found | ({"http": self.http_tls} if https_endpoints(self) else {})


class Endpoint(NamedTuple):
    """A listening socket of the server."""

    name: str  # the beginning of its flags' names
    callers: str  # what Triton's sentences call the requests that come here, such as "HTTP"
    address: str
    port: int
    is_shared: bool = False  # shared with other servers that listen on it


def endpoints(options: ServerOptions) -> tuple[Endpoint, ...]:
    """The listening sockets in use, in the order in which Triton compares them."""
    all_ = (
        (
            options.allow_http,
            Endpoint("http", "HTTP", options.http_address, options.http_port, options.reuse_http_port),
        ),
        (
            options.allow_http and options.openai_port is not None,
            Endpoint("openai", "OpenAI", options.http_address, options.openai_port or 0),
        ),
        (
            options.allow_grpc,
            Endpoint("grpc", "GRPC", options.grpc_address, options.grpc_port, options.reuse_grpc_port),
        ),
        (options.allow_metrics, Endpoint("metrics", "metrics", options.metrics_address, options.metrics_port)),
        (
            options.allow_sagemaker,
            Endpoint("sagemaker", "SageMaker", options.sagemaker_address, options.sagemaker_port),
        ),
        (
            options.allow_vertex_ai,
            Endpoint("vertex-ai", "Vertex AI", options.vertex_ai_address, options.vertex_ai_port),
        ),
    )
    return (*(endpoint for is_wanted, endpoint in all_ if is_wanted), *_torchserve_endpoints(options))


def _torchserve_endpoints(options: ServerOptions) -> list[Endpoint]:
    """The listeners of TorchServe's APIs; one that several APIs share is named after the first of them."""
    http, grpc = torchserve_apis(options), torchserve_grpc_apis(options)
    return [
        Endpoint(name, f"TorchServe {apis[0]}", *_torchserve_address(options, apis[0])) for name, apis in http.items()
    ] + [
        Endpoint(name, f"TorchServe gRPC {apis[0]}", *_torchserve_address(options, f"grpc_{apis[0]}"))
        for name, apis in grpc.items()
    ]


def torchserve_apis(options: ServerOptions) -> dict[str, tuple[str, ...]]:
    """The name of each listener of TorchServe's for HTTP, and which of the TORCHSERVE_APIS it serves."""
    has_metrics = options.torchserve.enable_metrics_api
    wanted = [api for api in TORCHSERVE_APIS if api != "metrics" or has_metrics] if options.allow_torchserve else []
    return {f"torchserve-{apis[0]}": apis for apis in _listeners(options, "", wanted)}


def https_endpoints(options: ServerOptions) -> tuple[str, ...]:
    """The names of the endpoints at which HTTP takes only clients with TLS."""
    http = [each.name for each in endpoints(options) if each.name in ("http", "openai")]
    found = http if options.has_http_tls else []
    found += ["metrics"] if options.allow_metrics and options.metrics_use_ssl else []
    found += [
        name for name, apis in torchserve_apis(options).items() if not set(apis).isdisjoint(options.torchserve_https)
    ]
    return tuple(found)


def torchserve_grpc_apis(options: ServerOptions) -> dict[str, tuple[str, ...]]:
    """The name of each listener of TorchServe's for gRPC, and which of the TORCHSERVE_GRPC_APIS it serves."""
    is_wanted = options.allow_torchserve and options.allow_torchserve_grpc
    wanted = TORCHSERVE_GRPC_APIS if is_wanted else ()
    return {f"torchserve-grpc-{apis[0]}": apis for apis in _listeners(options, "grpc_", wanted)}


def _listeners(options: ServerOptions, protocol: str, wanted: Iterable[str]) -> Iterable[tuple[str, ...]]:
    """The APIs of each listener: APIs with one address and port share a listener."""
    listeners: dict[tuple[str, int], tuple[str, ...]] = {}
    for api in wanted:
        address, port = _torchserve_address(options, protocol + api)
        # Port 0 is a port of the listener's own.
        key = (address, port) if port or address.startswith(UNIX) else (api, 0)
        listeners[key] = (*listeners.get(key, ()), api)
    return listeners.values()


def _torchserve_address(options: ServerOptions, api: str) -> tuple[str, int]:
    return getattr(options, f"torchserve_{api}_address"), getattr(options, f"torchserve_{api}_port")


def largest_request_bytes(options: ServerOptions) -> int:
    """The most bytes of a request that shared memory could hold: a block of the slab, or a segment of its own."""
    shared = (MIB << (options.shm_client_slab_mib.bit_length() - 1)) // SLAB_PARTS  # blocks are powers of two
    return max(shared, min(options.shm_oversize_mib * MIB, MAX_OVERSIZE_BYTES))


def check(options: ServerOptions) -> None:
    """Raise InvalidArgumentError, with a sentence for the command line, where options exclude each other."""
    if not options.model_repository and options.store is None:
        raise InvalidArgumentError("--model-repository must be specified")
    if options.load_model and options.model_control_mode != "explicit":  # Triton's words
        raise InvalidArgumentError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in options.load_model and len(options.load_model) > 1:
        raise InvalidArgumentError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    _check_ports(options)
    _check_tls(options)
    _check_cloud_endpoints(options)
    check_cache(options.cache_config, options.cache_directory)
    read_settings(options.record_config)
    largest = largest_request_bytes(options)
    if options.max_request_bytes > largest:
        raise InvalidArgumentError(
            f"--max-request-bytes is {options.max_request_bytes}, but --shm-oversize-mib={options.shm_oversize_mib} "
            f"has room for requests of at most {largest} bytes; raise the latter"
            if largest < MAX_OVERSIZE_BYTES
            else f"--max-request-bytes is {options.max_request_bytes}; a request can have at most {largest} bytes"
        )


def _check_ports(options: ServerOptions) -> None:
    """Check the ports, with Triton's sentences; 0.0.0.0 conflicts with any address, which Triton finds out later."""
    wanted = endpoints(options)
    for each in wanted:
        if not 0 <= each.port <= MAX_PORT:
            raise InvalidArgumentError(
                f'Bad option: "--{each.name}-port".\nexpected an integer from 0 to {MAX_PORT}, got {each.port}'
            )
    for one, other in combinations(wanted, 2):
        if one.port == other.port != 0 and _meet(one, other):
            raise InvalidArgumentError(
                f"The server cannot listen to {one.callers} requests and {other.callers} requests "
                f"at the same address and port {one.address}:{one.port}"
            )
    if options.allow_sagemaker and options.sagemaker_safe_port_range is not None:
        low, high = options.sagemaker_safe_port_range
        (sagemaker,) = [each for each in wanted if each.name == "sagemaker"]
        for each in wanted:
            if each is not sagemaker and _meet(each, sagemaker) and not low <= each.port <= high:
                raise InvalidArgumentError(
                    f"The server cannot listen to {each.callers} requests at port {each.port}, "
                    f"allowed port range is [{low}, {high}]"
                )


def _meet(one: Endpoint, other: Endpoint) -> bool:
    addresses = {one.address, other.address}
    return len(addresses) == 1 or not addresses.isdisjoint(_WILDCARDS)


def _check_tls(options: ServerOptions) -> None:
    switches = {
        "grpc": "--grpc-use-ssl-mutual" if options.grpc_use_ssl_mutual else "--grpc-use-ssl",
        "http": "--http-use-ssl-mutual" if options.http_use_ssl_mutual else "--http-use-ssl",
    }
    if not options.has_http_tls and options.metrics_use_ssl:
        switches["http"] = "--metrics-use-ssl"
    for protocol, (cert, key, root, must_verify) in options.tls.items():
        for file, path in (("server-cert", cert), ("server-key", key), ("root-cert", root if must_verify else "none")):
            if not path:
                raise InvalidArgumentError(f"{switches[protocol]} needs --{protocol}-{file}, a file in PEM format")


def _check_cloud_endpoints(options: ServerOptions) -> None:
    """Check the options of SageMaker and Vertex AI that environment variables set."""
    if options.allow_sagemaker:
        if options.sagemaker_ping_mode not in ("ready", "live"):
            raise InvalidArgumentError(
                f"SAGEMAKER_TRITON_PING_MODE is '{options.sagemaker_ping_mode}'. Must be one of: ready, live."
            )
        if options.sagemaker_inference_type not in INFERENCE_TYPES:  # Triton's words
            raise InvalidArgumentError(
                f"Server has invalid inference type '{options.sagemaker_inference_type}'. "
                f"Must be one of: {', '.join(INFERENCE_TYPES)}."
            )
    if options.allow_vertex_ai:  # Triton's words, except for a misspelt variable
        if not options.vertex_ai_predict_route:
            raise InvalidArgumentError("AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint")
        if not options.vertex_ai_health_route:
            raise InvalidArgumentError("AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint")

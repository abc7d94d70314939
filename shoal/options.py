"""What a server is told at its start: every number and switch, with its unit and where its default comes from.

`ServerOptions` is built once, by the command line, and passed whole; nobody parses a flag again. A field's name is its
flag's name. Sources of the defaults: *Triton's* (its command line), *measured* (with the figure), or *ours*.
Used in the supervisor; other processes are sent the few values they need. Imports only errors and cloud_url.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError

MIB = 1024 * 1024

#: A request larger than a quarter of the slab's largest block gets a segment of its own (ours). Its block would take at
#: least half of what all requests of a front end share, and had to wait until that much is free in one piece.
SLAB_PARTS = 4
#: The largest payload: references and spans in shared memory count less than 4 GiB.
MAX_OVERSIZE_BYTES = (1 << 32) - 4096

#: The parts of the HTTP API that can be restricted to callers with a header; Triton's words.
RESTRICTED_APIS = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace",
    "logging",
)  # fmt: skip

#: An address that listens on every interface, and so collides with every other one.
_WILDCARDS = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """What --metrics-config chooses; all defaults are Triton's."""

    counter_latencies: bool = True  # cumulative times as counters
    histogram_latencies: bool = False  # nv_inference_first_response_histogram_ms
    summary_latencies: bool = False  # quantiles over the last minute
    #: (quantile, the error of its rank that Triton would allow): Shoal's error is in the value, see docs/metrics.md.
    summary_quantiles: tuple[tuple[float, float], ...] = (
        (0.5, 0.05), (0.9, 0.01), (0.95, 0.001), (0.99, 0.001), (0.999, 0.001),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server's settings. `check` tells whether they fit together."""

    # The server.
    id: str = "triton"  # name in GET /v2; Triton's, since clients' tests compare it
    exit_timeout_secs: int = 30  # s from SIGTERM to giving up on what is in flight; Triton's

    # Logging.
    log_verbose: int = 0  # 0 = none, n = verbose messages up to level n; Triton's
    log_info: bool = True  # Triton's
    log_warning: bool = True  # Triton's
    log_error: bool = True  # Triton's
    log_format: str = "default"  # "default" or "ISO8601"; Triton's
    log_file: str = ""  # everything that is printed goes there; "": to stdout and stderr; Triton's

    # Models.
    model_repository: tuple[Path | CloudUrl, ...] = ()  # directories of models, here or in the cloud, at least one
    exit_on_error: bool = True  # exit 1 where a model fails to load at start; Triton's
    disable_auto_complete_config: bool = False  # True: config.pbtxt must be complete; Triton's
    model_config_name: str = ""  # NAME: a model's configs/NAME.pbtxt before its config.pbtxt; Triton's
    model_namespacing: bool = False  # a model is known by its name and its repository, not by name alone; Triton's
    strict_readiness: bool = True  # ready only when every model is; Triton's
    model_control_mode: str = "none"  # "none", "explicit" or "poll": who decides what is loaded; Triton's
    load_model: tuple[str, ...] = ()  # models loaded at start in control mode "explicit"; Triton's
    repository_poll_secs: int = 15  # s between two looks in control mode "poll"; Triton's
    model_load_retry_count: int = 0  # more attempts to load a version that failed; Triton's
    model_load_thread_count: int = 4  # models loaded at once; Triton's
    model_load_timeout_secs: int = 600  # s from an instance's process to a warm model; ours: a large engine
    model_execution_timeout_secs: int = 60  # s for one batch, then the instance is ended; 0 = no limit; ours

    # HTTP.
    allow_http: bool = True  # Triton's
    http_address: str = "127.0.0.1"  # ours, the safe one; tritonserver's is Triton's, 0.0.0.0
    http_port: int = 8000  # 0 = any free port; Triton's
    http_process_count: int = 2  # lanes; ours: the batcher and the workers want cores, too
    http_thread_count: int = 8  # threads as Triton counts them, each standing for 8 requests at once here; Triton's
    http_max_input_size: int = 64 * MIB  # bytes of a request's JSON, or of a tensor made from it; Triton's
    max_request_bytes: int = 2048 * MIB  # bytes of a request's body; ours: what shared memory could hold at most
    http_header_forward_pattern: str = ""  # headers whose names it finds become request parameters; "": none; Triton's
    http_restricted_api: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # API → header's name and value
    allow_remote_admin: bool = False  # load, unload, scale from other machines; ours, the safe one; tritonserver: yes
    listen_backlog: int = 256  # connections the kernel keeps for us; measured: at 2200 accepts/s 2048 would hide 0.9 s

    # Metrics.
    allow_metrics: bool = True  # Triton's
    metrics_address: str = "127.0.0.1"  # the command line puts http_address here unless told otherwise, as Triton does
    metrics_port: int = 8002  # 0 = any free port; Triton's
    allow_gpu_metrics: bool = True  # Triton's
    allow_cpu_metrics: bool = True  # Triton's
    metrics_interval_ms: int = 2000  # ms that a figure read from the system is told again; Triton's
    metrics_config: MetricsConfig = MetricsConfig()

    # Tracing: (mode or "", setting, value), in the order given; see shoal/tracing/command_line.py.
    trace_config: tuple[tuple[str, str, str], ...] = ()

    # Backends: name → setting → value, as text; the settings of the name "" are for all of them.
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    # Shared memory.
    shm_client_slab_mib: int = 64  # MiB of requests per front-end process; ours: one request of http_max_input_size
    shm_worker_slab_mib: int = 64  # MiB of results per instance at most, the size follows from the model; ours
    shm_oversize_mib: int = 2048  # MiB of all payloads together that no slab takes, made when needed; ours

    # Bounds.
    max_in_flight: int = 1024  # requests of one front-end process between acceptance and answer; ours
    default_max_queue_size: int = 1024  # requests per model whose config has no bound; ours: Triton has none
    request_timeout_secs: int = 300  # s from acceptance to answer, then 503; ours: Triton waits for ever

    def backend_settings(self, backend: str) -> dict[str, str]:
        """What --backend-config says for one backend: its own settings over those for all."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}


def largest_request_bytes(options: ServerOptions) -> int:
    """What shared memory could hold of one request: a block of the slab, or a segment of its own."""
    shared = (MIB << (options.shm_client_slab_mib.bit_length() - 1)) // SLAB_PARTS  # blocks are powers of two
    return max(shared, min(options.shm_oversize_mib * MIB, MAX_OVERSIZE_BYTES))


def check(options: ServerOptions) -> None:
    """Raise InvalidArgumentError, with the sentence for the command line, where options exclude each other."""
    if not options.model_repository:
        raise InvalidArgumentError("--model-repository must be specified")
    if options.load_model and options.model_control_mode != "explicit":  # Triton's sentences
        raise InvalidArgumentError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in options.load_model and len(options.load_model) > 1:
        raise InvalidArgumentError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    _check_ports(options)
    largest = largest_request_bytes(options)
    if options.max_request_bytes > largest:
        raise InvalidArgumentError(
            f"--max-request-bytes is {options.max_request_bytes}, but --shm-oversize-mib={options.shm_oversize_mib} "
            f"has room for requests of at most {largest} bytes; raise the latter"
            if largest < MAX_OVERSIZE_BYTES
            else f"--max-request-bytes is {options.max_request_bytes}; a request can have at most {largest} bytes"
        )


def _check_ports(options: ServerOptions) -> None:
    if not (options.allow_http and options.allow_metrics) or options.http_port == 0:
        return
    addresses = {options.http_address, options.metrics_address}
    if options.http_port == options.metrics_port and (len(addresses) == 1 or addresses & _WILDCARDS):
        raise InvalidArgumentError(  # Triton's sentence
            "The server cannot listen to HTTP requests and metrics requests at the same address and port "
            f"{options.http_address}:{options.http_port}"
        )

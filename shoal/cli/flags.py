"""The flags of `shoal serve` and `tritonserver`: one table, every flag of Triton's command line and Shoal's own.

A flag is *honoured*: it sets the field of ServerOptions with its name, whose default is the flag's. Or it is *ignored*,
with a warning: the server works as well without it. A flag that asks for what the server does anyway (most often
Triton's default) causes no warning. When a feature is added, its flags go from `ignore` to `honour`; nothing else here
knows what a flag means.
"""

from typing import Any, NamedTuple

from shoal.cli.values import (
    ANY_TEXT,
    BACKEND_SETTING,
    BOOLEAN,
    CACHE_BYTES,
    CACHE_SETTING,
    CONFIG_NAME,
    GPU_LIMIT,
    GPU_POOL,
    HOST_POLICY,
    INTEGER,
    LIMIT,
    METRICS_SETTING,
    NUMBER,
    PATTERN,
    PORT_RANGE,
    RECORD_SETTING,
    RELOAD,
    REPOSITORY,
    SWITCH,
    TEXT,
    TRACE_CONFIG,
    VERBOSITY,
    ValueKind,
    choice,
    integer,
    restriction,
    trace_setting,
)
from shoal.model_config.latency_target import MAX_MS


class Flag(NamedTuple):
    """A flag of the command line."""

    name: str  # without the dashes
    value: ValueKind
    text: str  # of an honoured flag, its text in --help; of an ignored flag, the reason, as in the warning
    is_honoured: bool  # whether it has an effect
    default: Any = None  # Triton's default, for an ignored flag; None: there is none
    in_force: Any = None  # the value of an ignored flag that needs no warning: the server does that anyway
    deprecated_for: str = ""  # the flag to use instead
    sets: str = ""  # the field of ServerOptions, where its name is not the flag's

    @property
    def option(self) -> str:
        """The field of ServerOptions that an honoured flag sets."""
        return self.sets or self.name.replace("-", "_")


def honour(name: str, value: ValueKind, text: str, *, deprecated_for: str = "", sets: str = "") -> Flag:
    """A flag of Triton's that has the same effect here, or a flag of Shoal's own."""
    return Flag(name, value, text, True, deprecated_for=deprecated_for, sets=sets)


def ignore(name: str, value: ValueKind, default: Any, text: str, *, in_force: Any = None) -> Flag:
    """A flag that the server does not need; `text` completes "--name is ignored: …"."""
    return Flag(name, value, text, False, default, in_force)


_GRPC_THREADS = "a lane serves all its connections in one thread; --grpc-process-count adds lanes"
_GRPC_POOL = "messages lie in shared memory, whose bounds have flags of their own"
_NO_POOL = "Shoal keeps no such memory pool"
_ROAD_THREADS = "its requests are answered by the threads that --http-thread-count sets"
_REUSE = "let other servers listen at this port, too; connections go to one or the other"

SERVER = (
    honour("id", TEXT, "name of the server in GET /v2"),
    honour(
        "api-keys",
        ANY_TEXT,
        "file of API keys, one of which every request but those about health needs: docs/security.md; read again when "
        "it changes",
    ),
    honour("exit-timeout-secs", integer(0), "seconds to finish what is in flight after SIGTERM, before exit code 1"),
    honour("pid-file", ANY_TEXT, "file for the pid of the server's main process, which changes at an upgrade"),
    honour(
        "spin-us",
        integer(0, 1000),
        "microseconds at most for which batcher and instances look for work before they sleep; 0: they sleep at once",
    ),
    honour(
        "upgrade-timeout-secs",
        integer(1),
        "seconds that an upgrade waits for the new server to be ready; then the old one goes on serving",
    ),
)
LOGGING = (
    honour("log-verbose", VERBOSITY, "verbose messages up to this level; 0 or false for none"),
    honour("log-info", BOOLEAN, "print information messages (stdout)"),
    honour("log-warning", BOOLEAN, "print warnings (stderr)"),
    honour("log-error", BOOLEAN, "print errors (stderr)"),
    honour(
        "log-format",
        choice("default", "ISO8601", "json"),
        "the form of a line, in UTC; json: an object a line, ours; off a terminal the variable SHOAL_LOG_FORMAT sets "
        "the default",
    ),
    honour("log-access", BOOLEAN, "print a line for each request that is answered, among the information messages"),
    honour("log-file", ANY_TEXT, "append everything that is printed to this file instead; logrotate: copytruncate"),
)
MODELS = (
    honour(
        "model-repository",
        REPOSITORY,
        "directory of models, or s3://, gs:// or as:// and where it lies; repeat it for several; required without "
        "--model-store",
    ),
    honour(
        "model-store",
        REPOSITORY,
        "directory of TorchServe's archives, with --models; without, Triton's older name of --model-repository",
    ),
    honour(
        "models",
        TEXT,
        "archive of --model-store that is loaded at start, [NAME=]FILE or [NAME=]URL; repeat it for several, all for "
        "every one, none for none",
        sets="load_models",
    ),
    honour("exit-on-error", BOOLEAN, "exit with code 1 where a model fails to load at start"),
    # Before the flag that replaces it: of two flags for one field the later one in this table wins, as in Triton.
    honour(
        "strict-model-config",
        BOOLEAN,
        "the same, as a boolean",
        deprecated_for="--disable-auto-complete-config",
        sets="disable_auto_complete_config",
    ),
    honour("disable-auto-complete-config", SWITCH, "take nothing from the model file: config.pbtxt must be complete"),
    honour("strict-readiness", BOOLEAN, "the server is ready only when every model is"),
    honour(
        "model-control-mode",
        choice("none", "poll", "explicit"),
        "none: all models, at start; explicit: those of --load-model, then what clients load; poll: what lies on disk",
    ),
    honour(
        "repository-poll-secs",
        integer(0),
        "seconds between two looks at the repositories in mode poll; 0: none after the start",
    ),
    honour(
        "reload",
        RELOAD,
        "while editing: mode poll with a look every second, so that a model whose files change is loaded again",
        sets="repository_poll_secs",
    ),
    honour("load-model", TEXT, "model loaded at start in mode explicit; repeat it for several, * for all"),
    honour("model-config-name", CONFIG_NAME, "a model's configuration is its configs/NAME.pbtxt, where it has one"),
    honour("model-load-thread-count", integer(1), "most models that load at once; a load counts for its first 30 s"),
    honour("model-load-timeout-secs", integer(1), "seconds for one instance to load and warm up"),
    honour(
        "model-execution-timeout-secs",
        integer(0),
        "most seconds for one batch, or one response of a stream; then the instance is restarted; 0: no limit",
    ),
    honour(
        "latency-target",
        integer(0, MAX_MS),
        "milliseconds an answer may take: models with dynamic_batching that set neither sizes nor a delay form batches "
        "that meet it; 0: no target",
    ),
    honour("model-load-retry-count", integer(0), "more attempts to load a model version that failed"),
    honour("model-namespacing", BOOLEAN, "let several repositories have models of the same name"),
    ignore("enable-peer-access", BOOLEAN, True, "backends decide for themselves about access between GPUs"),
)
HTTP = (
    honour("allow-http", BOOLEAN, "serve HTTP"),
    honour("http-address", TEXT, "address to listen on; 0.0.0.0 for all, unix:/path for a socket in the file system"),
    honour("http-port", INTEGER, "port to listen on; 0 for any free one"),
    honour("reuse-http-port", BOOLEAN, _REUSE),
    honour(
        "openai-port",
        INTEGER,
        "a second port for HTTP, for clients of Triton's OpenAI frontend, whose port is 9000; 0 for any free one",
    ),
    honour(
        "default-max-tokens",
        integer(1),
        "most tokens of an answer where a request to OpenAI's endpoints sets no max_tokens: docs/openai.md",
    ),
    honour("http-header-forward-pattern", PATTERN, "request headers whose names match go to the model as parameters"),
    honour(
        "http-process-count",
        integer(0, 64),
        "number of lanes, the HTTP processes, each with a slab of shared memory; 0: half the cores, from 2 to 4",
    ),
    honour(
        "http-thread-count",
        integer(1, 1024),
        "HTTP threads as Triton counts them; each stands for 8 requests at once to a model",
    ),
    honour("http-max-input-size", integer(1), "most bytes of a request's JSON, or of one tensor made from it"),
    honour("max-request-bytes", integer(1), "most bytes of a request's body, binary tensors included"),
    honour("max-control-bytes", integer(1), "most bytes of a body, but for inference and loads of models"),
    honour("max-expansion", integer(0), "most times that a body may grow by decompression beyond 1 MiB; 0: any"),
    honour("http-use-ssl", BOOLEAN, "TLS on HTTP's port"),
    honour("http-use-ssl-mutual", BOOLEAN, "TLS on HTTP's port, and clients must show a certificate"),
    honour("http-server-cert", ANY_TEXT, "file of the server's certificate chain, PEM"),
    honour("http-server-key", ANY_TEXT, "file of the server's private key, PEM"),
    honour("http-root-cert", ANY_TEXT, "file of the certificates that may sign those of clients, PEM"),
    honour("timing-percent", integer(0, 100), "percent of responses with Server-Timing where clients do not ask"),
    honour("ui", BOOLEAN, "serve browsers a page at / and /ui: models, their figures, a form to try them"),
    honour(
        "max-upload-mib",
        integer(0),
        "most MiB for HTTP requests that arrive in chunks, compressed or slowly, until they are whole; 0: a quarter of "
        "what is available at the start, at least 64",
    ),
    honour(
        "upload-timeout-secs",
        integer(1),
        "seconds in which a request's body or a gRPC message must arrive, and one for each --min-upload-rate bytes of "
        "it; then 408, or UNAVAILABLE",
    ),
    honour("min-upload-rate", integer(1), "bytes of a body for which --upload-timeout-secs is a second longer"),
    honour(
        "allow-remote-admin",
        BOOLEAN,
        "let callers on other machines load, unload and scale models, change log and trace settings, register regions",
    ),
    honour("listen-backlog", integer(1, 65535), "connections that may wait to be accepted"),
    honour(
        "http-restricted-api",
        restriction("http-restricted-api", "api"),
        "these parts of the API need this header; repeat it for several",
    ),
)
GRPC = (
    honour("allow-grpc", BOOLEAN, "serve gRPC"),
    honour("grpc-address", TEXT, "address to listen on for gRPC; unix:/path for a socket in the file system"),
    honour("grpc-port", INTEGER, "port to listen on for gRPC; 0 for any free one"),
    honour("reuse-grpc-port", BOOLEAN, _REUSE),
    honour("grpc-header-forward-pattern", PATTERN, "metadata whose keys match go to the model as parameters"),
    honour(
        "grpc-process-count",
        integer(0, 64),
        "lanes, the gRPC processes; each has its own slab of shared memory; 0: 1, from 8 cores on 2",
    ),
    ignore("grpc-infer-thread-count", integer(2, 128), 2, _GRPC_THREADS, in_force=2),
    ignore("grpc-infer-allocation-pool-size", INTEGER, 8, _GRPC_POOL, in_force=8),
    ignore("grpc-max-response-pool-size", INTEGER, 2147483647, _GRPC_POOL, in_force=2147483647),
    honour("grpc-use-ssl", BOOLEAN, "TLS on gRPC's port"),
    honour("grpc-use-ssl-mutual", BOOLEAN, "TLS on gRPC's port, and clients must show a certificate"),
    honour("grpc-server-cert", ANY_TEXT, "file of the server's certificate chain, PEM"),
    honour("grpc-server-key", ANY_TEXT, "file of the server's private key, PEM"),
    honour("grpc-root-cert", ANY_TEXT, "file of the certificates that may sign those of clients, PEM"),
    honour(
        "grpc-infer-response-compression-level", choice("none", "low", "medium", "high"), "how replies are compressed"
    ),
    honour("grpc-keepalive-time", integer(1), "milliseconds of silence after which the server sends a ping"),
    honour("grpc-keepalive-timeout", integer(1), "milliseconds for the answer to a ping; then a connection ends"),
    honour("grpc-keepalive-permit-without-calls", BOOLEAN, "send pings on connections without open calls, too"),
    honour("grpc-http2-max-pings-without-data", integer(0), "pings of the server in a row without data; 0: any"),
    honour(
        "grpc-http2-min-recv-ping-interval-without-data",
        integer(0),
        "least milliseconds between two pings of a client that sends no data; a sooner one is a strike",
    ),
    honour("grpc-http2-max-ping-strikes", integer(0), "too frequent pings that end a connection; 0: any"),
    honour(
        "grpc-max-connections",
        integer(0),
        "most connections of one process, beyond which idle ones are closed; 0: 10,000, or as descriptors allow",
    ),
    honour("grpc-max-connection-age", integer(0), "milliseconds until a connection takes no new calls; 0: no limit"),
    honour("grpc-max-connection-age-grace", integer(0), "milliseconds for its calls beyond that age; 0: no limit"),
    honour(
        "grpc-restricted-protocol",
        restriction("grpc-restricted-protocol", "protocol", "triton-grpc-protocol-"),
        "these parts of the API need this metadata, its key after 'triton-grpc-protocol-'; repeat it for several",
    ),
)
CLOUD_ENDPOINTS = (
    honour("allow-sagemaker", BOOLEAN, "serve SageMaker's endpoints: /ping, /invocations, /models"),
    honour("sagemaker-address", TEXT, "address to listen on for SageMaker"),
    honour("sagemaker-port", INTEGER, "port to listen on for SageMaker; 0 for any free one"),
    honour("sagemaker-safe-port-range", PORT_RANGE, "where the ports of the other endpoints must be"),
    ignore("sagemaker-thread-count", INTEGER, 8, _ROAD_THREADS, in_force=8),
    honour("allow-vertex-ai", BOOLEAN, "serve Vertex AI's routes; true where AIP_MODE is PREDICTION"),
    honour("vertex-ai-address", TEXT, "address to listen on for Vertex AI"),
    honour("vertex-ai-port", INTEGER, "port for Vertex AI; 0 for any free one; else that of AIP_HTTP_PORT"),
    ignore("vertex-ai-thread-count", INTEGER, 8, _ROAD_THREADS, in_force=8),
    honour("vertex-ai-default-model", ANY_TEXT, "model that Vertex AI's predictions ask; empty for the only one"),
)
TORCHSERVE = (
    honour("allow-torchserve", BOOLEAN, "serve TorchServe's APIs: /predictions, /models, its metrics"),
    honour("torchserve-inference-address", TEXT, "address to listen on for TorchServe's inference API"),
    honour("torchserve-inference-port", INTEGER, "port of TorchServe's inference API; 0 for any free one"),
    honour("torchserve-management-address", TEXT, "address to listen on for TorchServe's management API"),
    honour("torchserve-management-port", INTEGER, "port of its management API, which may share a listener"),
    honour("torchserve-metrics-address", TEXT, "address to listen on for TorchServe's metrics"),
    honour("torchserve-metrics-port", INTEGER, "port of TorchServe's metrics; 0 for any free one"),
    honour("allow-torchserve-grpc", BOOLEAN, "serve TorchServe's APIs over gRPC, too"),
    honour("torchserve-grpc-inference-address", TEXT, "address to listen on for TorchServe's inference API over gRPC"),
    honour("torchserve-grpc-inference-port", INTEGER, "port of that API over gRPC; 0 for any free one"),
    honour(
        "torchserve-grpc-management-address", TEXT, "address to listen on for TorchServe's management API over gRPC"
    ),
    honour("torchserve-grpc-management-port", INTEGER, "port of that API over gRPC; 0 for any free one"),
)
METRICS = (
    honour("allow-metrics", BOOLEAN, "serve GET /metrics for Prometheus"),
    honour("allow-gpu-metrics", BOOLEAN, "metrics of the GPUs that nvidia-ml-py (the extra gpu-metrics) finds"),
    honour("allow-cpu-metrics", BOOLEAN, "metrics of the machine's CPU and memory"),
    honour("metrics-address", TEXT, "address to listen on for GET /metrics"),
    honour("metrics-port", INTEGER, "port to listen on for GET /metrics; 0 for any free one"),
    honour("metrics-use-ssl", BOOLEAN, "TLS on the metrics port, with the files of --http-server-cert and its like"),
    honour("metrics-interval-ms", integer(0), "milliseconds for which figures of CPU and GPUs are reused"),
    honour(
        "metrics-config", METRICS_SETTING, "counters, histograms, summaries: docs/metrics.md; repeat it for several"
    ),
)
#: Settings of --trace-config that have older flags of their own: name, mode of tracing, form of the value.
_TRACE_SETTINGS = (
    ("file", "triton", "<string>"),
    ("level", "", "<string>"),
    ("rate", "", "<integer>"),
    ("count", "", "<integer>"),
    ("log-frequency", "triton", "<integer>"),
)
TRACING = (
    # Before the flag that replaces them: of two flags for one setting the later one in this table wins, as in Triton.
    *(
        honour(
            f"trace-{name}",
            trace_setting(mode, name, metavar),
            "one setting of --trace-config",
            deprecated_for="--trace-config",
            sets="trace_config",
        )
        for name, mode, metavar in _TRACE_SETTINGS
    ),
    honour("trace-config", TRACE_CONFIG, "which requests are traced, and where to; repeat it for several settings"),
)
RECORDING = (
    honour("record", ANY_TEXT, "record requests and their answers into files in this directory: docs/recording.md"),
    honour(
        "record-config",
        RECORD_SETTING,
        "which, and how much of them: models=<patterns>, sample=<share>, max-size=<bytes>, max-age=<time>, "
        "redact=<names>, headers=<names>; repeat it for several",
    ),
)
ROLLOUTS = (
    honour(
        "rollout-file",
        ANY_TEXT,
        "keep rollouts across restarts in this file, not in rollouts-<port>.json of the state directory: "
        "docs/rollout.md",
    ),
    honour(
        "shadow-file",
        ANY_TEXT,
        "keep shadows that were begun by request across restarts in this file, not in shadows-<port>.json of the state "
        "directory: docs/shadow.md",
    ),
)
BACKENDS = (
    honour("backend-config", BACKEND_SETTING, "setting of a backend, or of all of them; repeat it for several"),
    honour("backend-directory", TEXT, "directory of backends written in Python: NAME/model.py is the backend NAME"),
    honour(
        "cpu-fallback",
        BOOLEAN,
        "run instances on the CPU, with a warning, where the backend cannot use the kind of their instance_group, as "
        "KIND_GPU of a forest; false: refuse the model",
    ),
    honour("install-requirements", BOOLEAN, "install the requirements.txt beside a Python model, for that model alone"),
    honour(
        "environment-cache-directory",
        ANY_TEXT,
        "where the Python environments of models are made and kept; empty: the user's cache directory, or systemd's",
    ),
    ignore("repoagent-directory", TEXT, "/opt/tritonserver/repoagents", "repository agents are not there yet"),
    honour(
        "cache-config",
        CACHE_SETTING,
        "local,size=N: keep up to N bytes of answers of models with a response_cache; redis,host=NAME: in Redis, too, "
        "for all servers that ask there (redis,port=, user=, password=, db=, ...)",
    ),
    honour("cache-directory", TEXT, "accepted as by Triton, without effect: both caches are built in"),
    honour(
        "rate-limit",
        choice("off", "execution_count"),
        "execution_count: instances execute when there are the resources that their groups ask for",
    ),
    honour("rate-limit-resource", LIMIT, "amount of a resource of the rate limiter; repeat it, and list all"),
    ignore("pinned-memory-pool-byte-size", INTEGER, 268435456, _NO_POOL),
    honour(
        "cuda-memory-pool-byte-size",
        GPU_POOL,
        "0:N: each worker on this GPU keeps up to N bytes of outputs there for other models; repeat it for others",
    ),
    ignore("cuda-virtual-address-size", TEXT, None, _NO_POOL),
    honour("min-supported-compute-capability", NUMBER, "GPUs of a lower CUDA compute capability are not used"),
    ignore("buffer-manager-thread-count", INTEGER, 0, "tensors are gathered by the worker that runs them", in_force=0),
    honour(
        "host-policy",
        HOST_POLICY,
        "numa-node=N or cpu-cores=A-B: where instances of this policy run; repeat it for more",
    ),
    honour(
        "cuda-mps",
        BOOLEAN,
        "start NVIDIA's MPS, and let the work of all instances on a GPU overlap there; it ends with the server",
    ),
    honour(
        "model-load-gpu-limit",
        GPU_LIMIT,
        "no model is loaded on this GPU while more than this fraction of its memory is in use; repeat it for others",
    ),
)
SHARED_MEMORY = (
    honour(
        "allow-client-shm", BOOLEAN, "tensors may lie in shared memory of the clients, which the server opens by name"
    ),
    honour("shm-client-slab-mib", integer(1, 4095), "most MiB of requests per front-end process"),
    honour("shm-worker-slab-mib", integer(1, 4095), "most MiB of results per instance"),
    honour(
        "client-socket",
        ANY_TEXT,
        "path of the socket for shoal.Client, on this host and for this user; empty: none; default: PORT.sock, of the "
        "HTTP port, in $XDG_RUNTIME_DIR/shoal, or in /run/shoal or /tmp/shoal-UID",
    ),
    honour("client-count", integer(0, 128), "most shoal.Client that are connected at once"),
    honour("client-slab-mib", integer(1, 4095), "most MiB of requests per shoal.Client, taken as they are used"),
    honour("shm-oversize-mib", integer(0), "most MiB of all requests and results that are too large for a slab"),
)
BOUNDS = (
    honour(
        "max-in-flight",
        integer(1, 65536),
        "most requests of one model in flight in one front-end process; of all models four times as many, and of one "
        "model less than twice as many as are free; further ones get 503",
    ),
    honour("default-max-queue-size", integer(1), "most waiting requests to a model whose configuration sets no bound"),
    honour(
        "request-deadline-ms",
        integer(0),
        "milliseconds in which each request must be answered; one that cannot be is refused, or leaves the queue; "
        "0: no deadline but those of clients and models",
    ),
    honour(
        "poison-refusal-secs",
        integer(0, 86400),
        "seconds for which a request is refused after equal ones have ended instances, twice as long each further "
        "time; 0: never",
    ),
    honour("request-timeout-secs", integer(1), "seconds from acceptance to answer; then 503"),
)
DEPRECATED = (
    honour(
        "response-cache-byte-size",
        CACHE_BYTES,
        "size of the local cache",
        deprecated_for="--cache-config",
        sets="cache_config",
    ),
)

#: Groups of flags in the order of --help.
GROUPS: dict[str, tuple[Flag, ...]] = {
    "Server": SERVER,
    "Models": MODELS,
    "HTTP": HTTP,
    "gRPC": GRPC,
    "Metrics": METRICS,
    "Logging": LOGGING,
    "Backends": BACKENDS,
    "Shared memory": SHARED_MEMORY,
    "Bounds": BOUNDS,
    "Tracing": TRACING,
    "Recording": RECORDING,
    "Rollouts and shadows": ROLLOUTS,
    "SageMaker and Vertex AI": CLOUD_ENDPOINTS,
    "TorchServe": TORCHSERVE,
    "Deprecated": DEPRECATED,
}

FLAGS: tuple[Flag, ...] = tuple(flag for group in GROUPS.values() for flag in group)

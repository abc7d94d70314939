"""Messages from the supervisor to clients: front ends (frontend/front_end.py), workers whose models call others,
guests.

    ClientWelcomed or GuestWelcomed ─► segments and models that there are ─► ModelsKnown ─► all others, at any time
    Refused, in place of all these

The welcome, ModelsKnown and announcements to all front ends are acknowledged: a front end acknowledges a message after
applying it in its loop, or under its lock. No process waits for a guest's acknowledgement, and only briefly for that of
another client with users' code. Log, traces and clients' regions concern front ends; other clients ignore them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, get_args

from shoal.messages import shared
from shoal.messages.message import Fd, Kinds, Message


class FrontEndSettings(TypedDict):
    """The server's options as front ends use them, most of them fields of ServerState (frontend/state.py)."""

    server_id: str
    strict_readiness: bool
    has_repositories: bool
    endpoints: dict[str, str]
    restrictions: Mapping[str, Sequence[str]]  # protocol of --http-restricted-api → header's name and value
    http_max_input_size: int
    max_request_bytes: int
    max_control_bytes: int
    max_expansion: int
    begun_s: int  # when the server began, in seconds since 1970
    default_max_tokens: int
    max_upload_bytes: int  # most bytes of requests that are arriving in one process
    upload_timeout_s: float
    min_upload_rate: int  # bytes in a second
    header_forward_pattern: str
    recorded_headers: list[str]  # names in lower case
    log_file: str
    log_access: bool
    model_control_mode: str
    allow_remote_admin: bool
    has_page: bool
    timing_share: float
    grpc_port: int  # 0: there is no gRPC
    api_keys: list[Any] | None  # as ApiKeysChanged has them; None: no request needs a key
    allow_client_shm: bool
    has_gpus: bool
    allow_gpu_metrics: bool
    allow_cpu_metrics: bool
    metrics_interval_ms: int
    metrics_config: dict[str, Any]  # fields of MetricsConfig
    grpc: dict[str, Any]  # fields of GrpcSettings
    sagemaker_ping_mode: str
    sagemaker_default_model: str
    sagemaker_inference_type: str
    vertex_ai_default_model: str
    vertex_ai_predict_route: str
    vertex_ai_health_route: str
    torchserve: dict[str, Any]  # fields of TorchServeSettings
    torchserve_apis: Mapping[str, Sequence[str]]  # endpoint's name → the APIs of TorchServe that it serves
    torchserve_grpc_apis: Mapping[str, Sequence[str]]


class ClientWelcomed(Message):
    """A process of the server gets its place in the star; it may submit requests after ModelsKnown."""

    correlation_key: bytes  # for hashing the ids of sequences that are strings (shoal/sequences.py)
    max_in_flight: int  # requests to one model
    model_namespacing: bool
    request_timeout_s: float
    answer_timeout_s: float  # for questions, in seconds
    log: shared.LogSettings
    settings: FrontEndSettings | None  # None: the process runs users' code, which must not read secrets among them
    segment: Fd  # the process's own, writable
    link: Fd  # written by the batcher
    bell: Fd  # wakes the process
    batcher_bell: Fd  # the bell that the process rings at the batcher
    counters: Fd  # the table of counters, to read


class GuestWelcomed(Message):
    """A guest gets its place in the star; it may submit requests after ModelsKnown."""

    correlation_key: bytes
    max_in_flight: int
    model_namespacing: bool
    request_timeout_s: float
    answer_timeout_s: float
    segment: Fd  # the guest's own, writable
    link: Fd  # written by the batcher
    bell: Fd  # wakes the guest, and through it the guest wakes the batcher


class ModelChanged(Message):
    """The state, and the instances, of a version of a model."""

    name: str
    namespace: str
    version: int  # NO_VERSION for a model that has failed before any version was known
    model_id: int
    row: int  # the row of its counters in the table of counters
    state: str  # a word of Triton's repository index
    reason: str
    is_failed: bool  # all its instances have died again and again
    is_polled: bool  # False: its configuration could not be read
    num_instances: int
    num_instances_up: int
    config: shared.Config | None  # sent once for each load, when it is final; None in other messages
    groups: list[str]  # names of its instance groups, by number
    labels: Mapping[str, Sequence[str]]  # label file's lines, by output
    load_seconds: float
    has_ready_check: bool
    is_cached: bool
    is_default: bool = False  # requests that name no version mean this one, not the highest
    split_id: int = 0  # of the default: the model id of requests that name no version, while split (batcher/splits.py)
    sticky_header: str = ""  # with a split: requests with one value of this header go to one version


class ModelForgotten(Message):
    """A version of a model is removed from all lists."""

    name: str
    namespace: str
    version: int


class ModelsKnown(Message):
    """All models have been sent: the client starts."""


class ServerStopping(Message):
    """The server takes no more requests, and ends when it has answered the open ones."""


class ConnectionsEnding(Message):
    """The front ends are about to end, lanes first: the road's connections end with their next response, or when they
    have been idle for a while. Lanes get a signal instead."""


class ExitTimeoutExpired(Message):
    """The time for answering accepted requests is over: front ends refuse those that are open, and end."""


class QuestionAnswered(Message):
    """The answer to a QuestionAsked: a result, in the form that its verb gives it, or, if `wire` is not 0, the
    ShoalError that refuses it."""

    question: int
    wire: int = 0
    sentence: str = ""
    result: Any = None


class TraceSettingsChanged(Message):
    """The trace settings that are in force from now on."""

    settings: dict[str, shared.TraceSettingFields]  # by model; "" for all other models
    outlet: Fd | None  # the socket on which traces go to the tracer, always one and the same; None: no traces


class ApiKeysChanged(Message):
    """The API keys that are admitted from now on, with their digests: fields of ApiKey (shoal/api_keys.py)."""

    keys: list[Any]


class CertificatesChanged(Message):
    """The files of TLS have changed, and can be read: new connections use them."""


class RegionRegistered(Message):
    """A region of clients' shared memory that requests over HTTP and gRPC may name."""

    name: str
    key: str
    offset: int
    byte_size: int
    memory: Fd


class CudaRegionRegistered(Message):
    """A region of clients' memory on a GPU that requests over HTTP and gRPC may name (shm/cuda_regions.py)."""

    name: str
    number: int  # the number of the registration
    device_id: int
    handle: bytes
    byte_size: int


class RegionUnregistered(Message):
    """A region of clients' shared memory is unregistered; all of its kind if the name is ""."""

    kind: str  # "system" or "cuda"
    name: str


#: A change of clients' regions, which the servers of an upgrade send each other.
RegionChange: TypeAlias = RegionRegistered | CudaRegionRegistered | RegionUnregistered


ToClient: TypeAlias = (
    shared.SegmentAnnounced
    | shared.SegmentGone
    | shared.SegmentMissing
    | shared.BatcherReplaced
    | shared.PayloadNews
    | ModelChanged
    | ModelForgotten
    | ModelsKnown
    | ServerStopping
    | ConnectionsEnding
    | ExitTimeoutExpired
    | QuestionAnswered
    | TraceSettingsChanged
    | RegionRegistered
    | CudaRegionRegistered
    | RegionUnregistered
    | ApiKeysChanged
    | CertificatesChanged
    | shared.LedgerWanted
    | shared.LogChanged
    | shared.Ping
)
TO_CLIENT: Kinds[ToClient] = Kinds(*get_args(ToClient))
CLIENT_WELCOME = Kinds[ClientWelcomed | shared.Refused](ClientWelcomed, shared.Refused)
GUEST_WELCOME = Kinds[GuestWelcomed | shared.Refused](GuestWelcomed, shared.Refused)

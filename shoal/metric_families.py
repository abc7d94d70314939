"""All metrics: name, kind, labels and help of each. Triton's families begin with nv_, Shoal's own with shoal_.

Tables only: exposition.py prints them, docs/metrics.md lists them, and a test compares the two. The help texts of
Triton's families are Triton's.
"""

from typing import NamedTuple

from shoal.model_config.model_metrics import FIRST_RESPONSE

MODEL = ("model", "version")
#: Not `instance`: Prometheus adds a label of that name for the scraped server.
INSTANCE = ("model", "version", "model_instance", "device")
GPU = ("gpu_uuid",)
PROCESS = ("process",)


class Family(NamedTuple):
    """A metric. Front ends add the model's `metric_tags` to the labels of figures that they have of a version, not to
    those of the supervisor's (instances, memory, rollouts, shadows)."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Cell(NamedTuple):
    """A family that prints one cell of the batcher's counters, divided by `divisor` to change its unit."""

    family: Family
    cell: str
    divisor: int = 1


class Latency(NamedTuple):
    """A family that prints the distribution of one phase of requests' time. `cell` names the batcher's counter with the
    sum."""

    family: Family
    phase: str
    cell: str


class Figure(NamedTuple):
    """A family that prints a figure from the supervisor or the system, divided by `divisor`."""

    family: Family
    figure: str
    divisor: float = 1


def _counter(name: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(name, "counter", labels, text)


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(name, "gauge", labels, text)


def _cells(*rows: tuple[str, str, str, int]) -> tuple[Cell, ...]:
    """Counters of each model: name, cell, help, divisor."""
    return tuple([Cell(_counter(name, MODEL, text), cell, divisor) for name, cell, text, divisor in rows])


def _figures(labels: tuple[str, ...], *rows: tuple[str, str, str, float]) -> tuple[Figure, ...]:
    """Families with these labels: name, figure, help, divisor. Those whose names end in _total are counters."""
    return tuple(
        [
            Figure(Family(name, "counter" if name.endswith("_total") else "gauge", labels, text), figure, divisor)
            for name, figure, text, divisor in rows
        ]
    )


_US = 1000  # ns in a microsecond
_S = 1e9
_FRESH = "(does not include cached requests)"
_ALL = "(includes cached requests)"

COUNTERS = _cells(
    ("nv_inference_request_success", "success_count", "Number of successful inference requests, all batch sizes", 1),
    ("nv_inference_count", "inference_count", f"Number of inferences performed {_FRESH}", 1),
    ("nv_inference_exec_count", "execution_count", f"Number of model executions performed {_FRESH}", 1),
)
FAILURES = _counter(
    "nv_inference_request_failure", (*MODEL, "reason"), "Number of failed inference requests, all batch sizes"
)
#: Reason of a failure → the cell of the batcher's counters in which such failures are counted.
FAILURE_CELLS = {
    "REJECTED": "failed_rejected",
    "CANCELED": "failed_canceled",
    "BACKEND": "failed_backend",
    "OTHER": "failed_other",
}
#: Not printed with --metrics-config=counter_latencies=false.
DURATIONS = _cells(
    *[
        (f"nv_inference_{phase}_duration_us", cell, f"Cumulative {text} duration in microseconds {which}", _US)
        for phase, cell, text, which in (
            ("request", "success_ns", "inference request", _ALL),
            ("queue", "queue_ns", "inference queuing", _ALL),
            ("compute_input", "compute_input_ns", "compute input", _FRESH),
            ("compute_infer", "compute_infer_ns", "compute inference", _FRESH),
            ("compute_output", "compute_output_ns", "inference compute output", _FRESH),
        )
    ]
)
#: Families of models with a response cache; not printed with --metrics-config=counter_latencies=false either.
MODEL_CACHE = _cells(
    ("nv_cache_num_hits_per_model", "cache_hit_count", "Number of cache hits per model", 1),
    ("nv_cache_hit_duration_per_model", "cache_hit_ns", "Total cache hit duration per model, in microseconds", _US),
    ("nv_cache_num_misses_per_model", "cache_miss_count", "Number of cache misses per model", 1),
    (
        "nv_cache_miss_duration_per_model",
        "cache_miss_ns",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        _US,
    ),
)
PENDING = Cell(
    _gauge(
        "nv_inference_pending_request_count",
        MODEL,
        "Instantaneous number of pending requests awaiting execution per-model.",
    ),
    "pending_count",
)
LOAD_DURATION = _gauge("nv_model_load_duration_secs", MODEL, "Model load time in seconds")


def _summary(name: str, text: str) -> Family:
    return Family(name, "summary", MODEL, text)


#: Printed only with --metrics-config=summary_latencies=true. As in Triton, the three of the computation have the help
#: texts of the counters ("Cumulative … duration").
SUMMARIES: tuple[Latency, ...] = tuple(
    Latency(_summary(f"nv_inference_{phase}_summary_us", text), phase, cell)
    for phase, cell, text in (
        ("request", "success_ns", f"Summary of inference request duration in microseconds {_ALL}"),
        ("queue", "queue_ns", f"Summary of inference queuing duration in microseconds {_ALL}"),
        *[(cell.removesuffix("_ns"), cell, family.help) for family, cell, _ in DURATIONS[2:]],
    )
)
CACHE_SUMMARIES = (
    _summary("nv_cache_hit_summary_per_model", "Summary of cache hit duration in microseconds"),
    _summary("nv_cache_miss_summary_per_model", "Summary of cache miss duration in microseconds"),
)
#: Printed only with --metrics-config=histogram_latencies=true.
FIRST_RESPONSES = Family(FIRST_RESPONSE, "histogram", MODEL, "Duration from request to first response in milliseconds")

#: Always 0: Shoal keeps no pool of pinned memory.
PINNED_MEMORY = (
    _gauge("nv_pinned_memory_pool_total_bytes", (), "Pinned memory pool total memory size, in bytes"),
    _gauge("nv_pinned_memory_pool_used_bytes", (), "Pinned memory pool used memory size, in bytes"),
)
#: Figures of the response cache; always 0 where there is none.
CACHE = _figures(
    (),
    ("nv_cache_num_entries", "num_entries", "Number of responses stored in response cache", 1),
    ("nv_cache_num_lookups", "num_lookups", "Number of cache lookups in response cache", 1),
    ("nv_cache_num_hits", "num_hits", "Number of cache hits in response cache", 1),
    ("nv_cache_num_misses", "num_misses", "Number of cache misses in response cache", 1),
    ("nv_cache_num_evictions", "num_evictions", "Number of cache evictions in response cache", 1),
    ("nv_cache_lookup_duration", "lookup_ns", "Total cache lookup duration (hit and miss), in microseconds", _US),
    ("nv_cache_insertion_duration", "insertion_ns", "Total cache insertion duration, in microseconds", _US),
    ("nv_cache_util", "utilization", "Cache utilization [0.0 - 1.0]", 1),
)
#: Figures of the machine, as `shoal.frontend.metrics.listener.Cpu` reads them.
CPU_FAMILIES = _figures(
    (),
    ("nv_cpu_utilization", "utilization", "CPU utilization rate [0.0 - 1.0]", 1),
    ("nv_cpu_memory_total_bytes", "memory_total_bytes", "CPU total memory (RAM), in bytes", 1),
    ("nv_cpu_memory_used_bytes", "memory_used_bytes", "CPU used memory (RAM), in bytes", 1),
)
#: Figures of each GPU, as `shoal.nvml.Gpus` reads them.
GPU_FAMILIES = (
    *_figures(
        GPU,
        ("nv_gpu_utilization", "utilization", "GPU utilization rate [0.0 - 1.0)", 1),
        ("nv_gpu_memory_total_bytes", "memory_total_bytes", "GPU total memory, in bytes", 1),
        ("nv_gpu_memory_used_bytes", "memory_used_bytes", "GPU used memory, in bytes", 1),
        ("nv_gpu_power_usage", "power_usage_w", "GPU power usage in watts", 1),
        ("nv_gpu_power_limit", "power_limit_w", "GPU power management limit in watts", 1),
    ),
    Figure(
        _counter("nv_energy_consumption", GPU, "GPU energy consumption in joules since the Triton Server started"),
        "energy_j",
    ),
)

# --- Shoal's own, by Prometheus's conventions: base units, counters end in _total ---

HISTOGRAMS = tuple(
    Latency(Family(f"shoal_{phase}_duration_seconds", "histogram", MODEL, text), phase, cell)
    for phase, cell, text in (
        (
            "request",
            "success_ns",
            "Successful requests: from the first byte that was received to the answer's hand-over",
        ),
        ("queue", "queue_ns", "Successful requests: in the model's queue"),
        ("compute_input", "compute_input_ns", "Successful requests: from an instance's taking the batch to its inputs"),
        ("compute_infer", "compute_infer_ns", "Successful requests: execution of the batch they were in"),
        (
            "compute_output",
            "compute_output_ns",
            "Successful requests: from the end of execution to the written outputs",
        ),
    )
)
BATCH_ROWS = Family("shoal_batch_rows", "histogram", MODEL, "Executed batches by their rows")
QUEUE_AGE = _gauge(
    "shoal_queue_oldest_age_seconds", MODEL, "How long the oldest request that awaits execution has waited"
)
#: Figures of requests that end the instances which execute them.
POISON = _cells(
    ("shoal_poison_found_total", "poison_found", "Requests that were found to end instances", 1),
    ("shoal_poison_refused_total", "poison_refused", "Requests that were refused because equal ones end instances", 1),
)
#: Figures of versions that are the new one of a rollout.
ROLLOUT = _cells(
    (
        "shoal_rollout_fallen_back_total",
        "fallen_back",
        "Requests that the version has failed, or had no instance for, and that the old version was given instead, "
        "during a rollout",
        1,
    ),
)
ROLLOUT_WEIGHT = _gauge(
    "shoal_rollout_weight_percent",
    ("model", "version"),
    "Share of the requests naming no version that the version gets, where a rollout has divided or pinned them",
)
ROLLOUT_STATE = _gauge(
    "shoal_rollout_state",
    ("model", "version", "phase"),
    "1 for the last rollout to the version: running, paused, promoted or rolled back",
)
#: Figures of requests that are recorded.
RECORDING = _cells(
    ("shoal_recorded_requests_total", "recorded", "Requests that were given to the recorder, to be written", 1),
    ("shoal_record_dropped_total", "record_dropped", "Requests that were not recorded for lack of room", 1),
)
#: Figures of each pair of versions that is or was mirrored, from the supervisor.
SHADOW_FAMILIES = _figures(
    ("model", "version", "shadow_version"),
    ("shoal_shadow_mirrored_total", "mirrored", "Requests that a version's shadow was given", 1),
    ("shoal_shadow_dropped_total", "dropped", "Requests that were chosen for a shadow and not compared", 1),
    ("shoal_shadow_agreed_total", "agreed", "Requests whose answers agreed", 1),
    ("shoal_shadow_disagreed_total", "disagreed", "Requests whose answers disagreed, or whose shadow failed", 1),
    ("shoal_shadow_failed_total", "failed", "Requests whose shadow failed", 1),
    (
        "shoal_shadow_primary_compute_seconds_total",
        "primary_ns",
        "Time that the mirrored version took for answers that were compared",
        _S,
    ),
    ("shoal_shadow_compute_seconds_total", "shadow_ns", "Time that the shadow took for answers that were compared", _S),
)
INSTANCES_UP = _gauge("shoal_model_instances_up", MODEL, "Instances that can execute batches")
INSTANCES_WANTED = _gauge("shoal_model_instances", MODEL, "Instances that the model is configured or scaled to have")
#: The memory of all processes of a model version, from the supervisor.
MODEL_MEMORY = _gauge("shoal_model_memory_bytes", MODEL, "Proportional set size of the model's processes")
MODEL_GPU_MEMORY = _gauge(
    "shoal_model_gpu_memory_bytes", (*MODEL, *GPU), "Memory of the model's processes on a GPU, as NVIDIA's library says"
)
#: Figures of each instance, from the supervisor; an instance that is not up lacks some.
INSTANCE_FAMILIES = _figures(
    INSTANCE,
    ("shoal_instance_up", "is_up", "1 if the instance can execute batches, else 0", 1),
    ("shoal_instance_busy_seconds_total", "busy_ns", "Time the instance's worker has spent on ended batches", _S),
    (
        "shoal_instance_executing_seconds",
        "executing_ns",
        "How long the batch being executed has taken; 0 when idle",
        _S,
    ),
    ("shoal_instance_batches_total", "batches", "Batches that the instance's worker has ended", 1),
    ("shoal_instance_restarts_total", "restarts", "How often the instance's worker was started again", 1),
    (
        "shoal_instance_recycles_total",
        "recycles",
        "How often the instance's worker was started again because of max_requests or max_rss",
        1,
    ),
    ("shoal_instance_resident_memory_bytes", "rss_bytes", "Memory of the worker, what it shares included", 1),
    ("shoal_instance_slab_used_bytes", "slab_used_bytes", "Bytes of results in the worker's slab", 1),
    ("shoal_instance_slab_total_bytes", "slab_total_bytes", "Size of the worker's slab", 1),
    (
        "shoal_instance_ring_used_ratio",
        "ring_used_ratio",
        "Used share of the fuller of the worker's two rings with the batcher, 0 to 1",
        1,
    ),
)
#: Figures of API keys with limits, which the road counts (frontend/access/key_limits.py).
KEY_FAMILIES = _figures(
    ("api_key",),
    ("shoal_key_requests_total", "num_admitted", "Requests by API keys with limits that were admitted", 1),
    ("shoal_key_refused_total", "num_refused", "Requests that were refused with 429 for a limit of their API key", 1),
    ("shoal_key_in_flight", "num_in_flight", "Requests in flight by API keys with limits", 1),
)
#: Figures of the front ends by kind, the label `process`: http and grpc (the lanes), road. Summed per kind, but the
#: ratio of rings, which is the largest.
FRONT_ENDS = _gauge("shoal_front_ends", PROCESS, "Front-end processes that have joined")
FRONT_END_FAMILIES = _figures(
    PROCESS,
    ("shoal_front_end_slab_used_bytes", "slab_used_bytes", "Bytes of requests in front ends' slabs", 1),
    ("shoal_front_end_slab_total_bytes", "slab_total_bytes", "Size of front ends' slabs", 1),
)
FRONT_END_RINGS = _gauge(
    "shoal_front_end_ring_used_ratio",
    PROCESS,
    "Used share of the fullest of front ends' rings with the batcher, 0 to 1",
)
#: Shoal's version; `version` in GET /v2 is that of the Triton whose protocol Shoal implements.
BUILD_INFO = _gauge("shoal_build_info", ("version",), "Always 1; the label is Shoal's version")
CERTIFICATE_EXPIRY = _gauge(
    "shoal_certificate_expiry_timestamp_seconds",
    ("protocol",),
    "When the server's certificate for http or grpc expires, in seconds since 1970",
)
HANDSHAKES_FAILED = _counter(
    "shoal_tls_handshakes_failed_total",
    ("protocol",),
    "TLS handshakes that failed at listeners of http, metrics included, or grpc",
)
#: Figures of the server.
SERVER_FAMILIES = _figures(
    (),
    ("shoal_shared_memory_bytes", "shared_bytes", "Shared memory of all processes together", 1),
    ("shoal_batcher_takeovers_total", "num_takeovers", "How often a batcher took a dead one's place", 1),
    ("shoal_record_lost_total", "num_records_lost", "Requests that the recorder could not write to the disk", 1),
    (
        "shoal_requests_abandoned_total",
        "num_abandoned",
        "Requests that were dropped before they were begun, because their clients had gone",
        1,
    ),
)

_IN_ORDER: tuple[Family | Cell | Latency | Figure, ...] = (
    *COUNTERS, FAILURES, *DURATIONS, *SUMMARIES, *CACHE_SUMMARIES, FIRST_RESPONSES, PENDING, LOAD_DURATION,
    *MODEL_CACHE, *CACHE, *PINNED_MEMORY, *GPU_FAMILIES, *CPU_FAMILIES, *HISTOGRAMS, BATCH_ROWS, QUEUE_AGE,
    *POISON, *RECORDING, *SHADOW_FAMILIES, *ROLLOUT, INSTANCES_WANTED, INSTANCES_UP, MODEL_MEMORY, MODEL_GPU_MEMORY,
    *INSTANCE_FAMILIES, FRONT_ENDS,
    *FRONT_END_FAMILIES, FRONT_END_RINGS, *KEY_FAMILIES, BUILD_INFO, CERTIFICATE_EXPIRY, HANDSHAKES_FAILED,
    ROLLOUT_WEIGHT, ROLLOUT_STATE,
    *SERVER_FAMILIES,
)  # fmt: skip
ALL = tuple([each if isinstance(each, Family) else each.family for each in _IN_ORDER])

"""Every metric there is: its name, kind, labels and help. Triton's families begin with nv_, Shoal's own with shoal_.

Tables only: exposition.py prints them, docs/metrics.md lists them, and a test holds both together. The help texts of
Triton's families are Triton's.
"""

from typing import NamedTuple

from shoal.model_config.model_metrics import FIRST_RESPONSE

MODEL = ("model", "version")
#: Not `instance`: Prometheus gives that name to the server it asks.
INSTANCE = ("model", "version", "model_instance", "device")
GPU = ("gpu_uuid",)
PROCESS = ("process",)


class Family(NamedTuple):
    """One metric. A model's `metric_tags` are further labels where `labels` begin with the model."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Cell(NamedTuple):
    """A family whose samples are a cell of the batcher's counters, divided by `divisor` to change its unit."""

    family: Family
    cell: str
    divisor: int = 1


class Latency(NamedTuple):
    """A family whose samples tell how one phase of requests' time was distributed; the cell has its sum."""

    family: Family
    phase: str
    cell: str


class Figure(NamedTuple):
    """A family whose samples are a figure of what the supervisor or the system tells, divided by `divisor`."""

    family: Family
    figure: str
    divisor: float = 1


def _counter(name: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(name, "counter", labels, text)


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(name, "gauge", labels, text)


_NS_PER_US = 1000
_NS_PER_S = 1e9
_MODEL_EXECUTIONS = "(does not include cached requests)"

COUNTERS = (
    Cell(
        _counter("nv_inference_request_success", MODEL, "Number of successful inference requests, all batch sizes"),
        "success_count",
    ),
    Cell(
        _counter("nv_inference_count", MODEL, f"Number of inferences performed {_MODEL_EXECUTIONS}"), "inference_count"
    ),
    Cell(
        _counter("nv_inference_exec_count", MODEL, f"Number of model executions performed {_MODEL_EXECUTIONS}"),
        "execution_count",
    ),
)
FAILURES = _counter(
    "nv_inference_request_failure", (*MODEL, "reason"), "Number of failed inference requests, all batch sizes"
)
#: The cell of each reason.
FAILURE_CELLS = {
    "REJECTED": "failed_rejected",
    "CANCELED": "failed_canceled",
    "BACKEND": "failed_backend",
    "OTHER": "failed_other",
}


def _duration(name: str, text: str, cell: str) -> Cell:
    return Cell(_counter(f"nv_inference_{name}_duration_us", MODEL, text), cell, _NS_PER_US)


#: Not printed with --metrics-config=counter_latencies=false.
DURATIONS = (
    _duration(
        "request", "Cumulative inference request duration in microseconds (includes cached requests)", "success_ns"
    ),
    _duration("queue", "Cumulative inference queuing duration in microseconds (includes cached requests)", "queue_ns"),
    _duration(
        "compute_input",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        "compute_input_ns",
    ),
    _duration(
        "compute_infer",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        "compute_infer_ns",
    ),
    _duration(
        "compute_output",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        "compute_output_ns",
    ),
)
#: Of models that have the response cache enabled; not printed with --metrics-config=counter_latencies=false either.
MODEL_CACHE = (
    Cell(_counter("nv_cache_num_hits_per_model", MODEL, "Number of cache hits per model"), "cache_hit_count"),
    Cell(
        _counter("nv_cache_hit_duration_per_model", MODEL, "Total cache hit duration per model, in microseconds"),
        "cache_hit_ns",
        _NS_PER_US,
    ),
    Cell(_counter("nv_cache_num_misses_per_model", MODEL, "Number of cache misses per model"), "cache_miss_count"),
    Cell(
        _counter(
            "nv_cache_miss_duration_per_model",
            MODEL,
            "Total cache miss (insert+lookup) duration per model, in microseconds",
        ),
        "cache_miss_ns",
        _NS_PER_US,
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


#: Only with --metrics-config=summary_latencies=true. Three of the help texts are Triton's slip.
SUMMARIES: tuple[Latency, ...] = (
    Latency(
        _summary(
            "nv_inference_request_summary_us",
            "Summary of inference request duration in microseconds (includes cached requests)",
        ),
        "request",
        "success_ns",
    ),
    Latency(
        _summary(
            "nv_inference_queue_summary_us",
            "Summary of inference queuing duration in microseconds (includes cached requests)",
        ),
        "queue",
        "queue_ns",
    ),
    *(
        Latency(_summary(f"nv_inference_{phase}_summary_us", duration.family.help), phase, duration.cell)
        for phase, duration in zip(("compute_input", "compute_infer", "compute_output"), DURATIONS[2:], strict=True)
    ),
)
CACHE_SUMMARIES = (
    _summary("nv_cache_hit_summary_per_model", "Summary of cache hit duration in microseconds"),
    _summary("nv_cache_miss_summary_per_model", "Summary of cache miss duration in microseconds"),
)
#: Only with --metrics-config=histogram_latencies=true.
FIRST_RESPONSES = Family(FIRST_RESPONSE, "histogram", MODEL, "Duration from request to first response in milliseconds")

#: Always 0: Shoal keeps no such pool.
PINNED_MEMORY = (
    _gauge("nv_pinned_memory_pool_total_bytes", (), "Pinned memory pool total memory size, in bytes"),
    _gauge("nv_pinned_memory_pool_used_bytes", (), "Pinned memory pool used memory size, in bytes"),
)
#: Figures of the response cache; always 0 where there is none.
CACHE = (
    Figure(_gauge("nv_cache_num_entries", (), "Number of responses stored in response cache"), "num_entries"),
    Figure(_gauge("nv_cache_num_lookups", (), "Number of cache lookups in response cache"), "num_lookups"),
    Figure(_gauge("nv_cache_num_hits", (), "Number of cache hits in response cache"), "num_hits"),
    Figure(_gauge("nv_cache_num_misses", (), "Number of cache misses in response cache"), "num_misses"),
    Figure(_gauge("nv_cache_num_evictions", (), "Number of cache evictions in response cache"), "num_evictions"),
    Figure(
        _gauge("nv_cache_lookup_duration", (), "Total cache lookup duration (hit and miss), in microseconds"),
        "lookup_ns",
        _NS_PER_US,
    ),
    Figure(
        _gauge("nv_cache_insertion_duration", (), "Total cache insertion duration, in microseconds"),
        "insertion_ns",
        _NS_PER_US,
    ),
    Figure(_gauge("nv_cache_util", (), "Cache utilization [0.0 - 1.0]"), "utilization"),
)
#: Figures of cpu.py.
CPU_FAMILIES = (
    Figure(_gauge("nv_cpu_utilization", (), "CPU utilization rate [0.0 - 1.0]"), "utilization"),
    Figure(_gauge("nv_cpu_memory_total_bytes", (), "CPU total memory (RAM), in bytes"), "memory_total_bytes"),
    Figure(_gauge("nv_cpu_memory_used_bytes", (), "CPU used memory (RAM), in bytes"), "memory_used_bytes"),
)
#: Figures of gpu.py.
GPU_FAMILIES = (
    Figure(_gauge("nv_gpu_utilization", GPU, "GPU utilization rate [0.0 - 1.0)"), "utilization"),
    Figure(_gauge("nv_gpu_memory_total_bytes", GPU, "GPU total memory, in bytes"), "memory_total_bytes"),
    Figure(_gauge("nv_gpu_memory_used_bytes", GPU, "GPU used memory, in bytes"), "memory_used_bytes"),
    Figure(_gauge("nv_gpu_power_usage", GPU, "GPU power usage in watts"), "power_usage_w"),
    Figure(_gauge("nv_gpu_power_limit", GPU, "GPU power management limit in watts"), "power_limit_w"),
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
INSTANCES_UP = _gauge("shoal_model_instances_up", MODEL, "Instances that batches may go to")
INSTANCES_WANTED = _gauge("shoal_model_instances", MODEL, "Instances that there should be")
#: Figures of each instance that the supervisor tells of; one that is not up lacks some.
INSTANCE_FAMILIES = (
    Figure(_gauge("shoal_instance_up", INSTANCE, "Whether batches may go to the instance"), "is_up"),
    Figure(
        _counter(
            "shoal_instance_busy_seconds_total", INSTANCE, "Time the instance's worker has spent on ended batches"
        ),
        "busy_ns",
        _NS_PER_S,
    ),
    Figure(
        _gauge(
            "shoal_instance_executing_seconds", INSTANCE, "How long the batch being executed has taken; 0 when idle"
        ),
        "executing_ns",
        _NS_PER_S,
    ),
    Figure(
        _counter("shoal_instance_batches_total", INSTANCE, "Batches that the instance's worker has ended"), "batches"
    ),
    Figure(
        _counter("shoal_instance_restarts_total", INSTANCE, "How often the instance's worker was started again"),
        "restarts",
    ),
    Figure(
        _counter("shoal_instance_recycles_total", INSTANCE, "How often that was because of max_requests or max_rss"),
        "recycles",
    ),
    Figure(
        _gauge("shoal_instance_resident_memory_bytes", INSTANCE, "Memory of the worker, what it shares included"),
        "rss_bytes",
    ),
    Figure(_gauge("shoal_instance_slab_used_bytes", INSTANCE, "Results in the worker's slab"), "slab_used_bytes"),
    Figure(_gauge("shoal_instance_slab_total_bytes", INSTANCE, "Size of the worker's slab"), "slab_total_bytes"),
    Figure(
        _gauge("shoal_instance_ring_used_ratio", INSTANCE, "The fuller of the worker's two rings with the batcher"),
        "ring_used_ratio",
    ),
)
#: Figures of the front-end processes, together by title: http and grpc (the lanes), road, grpc road.
FRONT_ENDS = _gauge("shoal_front_ends", PROCESS, "Front-end processes that have joined")
FRONT_END_FAMILIES = (
    Figure(_gauge("shoal_front_end_slab_used_bytes", PROCESS, "Requests in front ends' slabs"), "slab_used_bytes"),
    Figure(_gauge("shoal_front_end_slab_total_bytes", PROCESS, "Size of front ends' slabs"), "slab_total_bytes"),
)
FRONT_END_RINGS = _gauge(
    "shoal_front_end_ring_used_ratio", PROCESS, "The fullest of front ends' rings with the batcher"
)
#: Shoal's version; `version` in GET /v2 is that of the Triton whose protocol Shoal implements.
BUILD_INFO = _gauge("shoal_build_info", ("version",), "Always 1; the label is Shoal's version")
#: Figures of the server.
SERVER_FAMILIES = (
    Figure(_gauge("shoal_shared_memory_bytes", (), "Shared memory of all processes together"), "shared_bytes"),
    Figure(
        _counter("shoal_batcher_takeovers_total", (), "How often a batcher took a dead one's place"), "num_takeovers"
    ),
)

ALL = (
    *(each.family for each in COUNTERS),
    FAILURES,
    *(each.family for each in DURATIONS),
    *(each.family for each in SUMMARIES),
    *CACHE_SUMMARIES,
    FIRST_RESPONSES,
    PENDING.family,
    LOAD_DURATION,
    *(each.family for each in MODEL_CACHE),
    *(each.family for each in CACHE),
    *PINNED_MEMORY,
    *(each.family for each in GPU_FAMILIES),
    *(each.family for each in CPU_FAMILIES),
    *(each.family for each in HISTOGRAMS),
    BATCH_ROWS,
    QUEUE_AGE,
    INSTANCES_WANTED,
    INSTANCES_UP,
    *(each.family for each in INSTANCE_FAMILIES),
    FRONT_ENDS,
    *(each.family for each in FRONT_END_FAMILIES),
    FRONT_END_RINGS,
    BUILD_INFO,
    *(each.family for each in SERVER_FAMILIES),
)

"""The server's state as one of its processes knows it, and what clients are told about it in every protocol: metadata,
statistics, readiness.

Front ends know more (frontend/state.py). The supervisor makes a KnownServer to answer guests. Workers whose models call
others use `is_ready` alone.
"""

from dataclasses import dataclass, field
from typing import Any

from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config.signature import TensorSpec
from shoal.shm.counters import ZERO_ROW, BatchStatistics, CounterTableView, RowView
from shoal.star.models import ModelEntry, ModelTable, parse_version
from shoal.star.questions import Ask

#: The Triton release whose protocol Shoal speaks; clients parse the version as 2.xx.y.
PROTOCOL_VERSION = "2.73.0"


@dataclass(slots=True)
class KnownServer:
    """The server's state. The first three fields are settings; the other fields change while the server runs."""

    server_id: str = "triton"  # Triton's default
    version: str = PROTOCOL_VERSION
    strict_readiness: bool = True
    has_repositories: bool = True  # False: the repositories could not be read at the start, and no model is served
    started: bool = False
    exiting: bool = False
    counters: CounterTableView | None = None
    models: ModelTable = field(default_factory=ModelTable)

    @property
    def num_region_kinds(self) -> int:
        """The number of kinds of registered regions that requests may name: 0, 1 for Triton's system shared memory
        alone, 2 with CUDA shared memory."""
        return 0

    def require_ready(self) -> None:
        """Raise UnavailableError unless the server has started and is not stopping; called for the requests that
        Triton, too, refuses then."""
        if self.exiting or not (self.started and self.has_repositories):
            raise UnavailableError("Server not ready")

    def read_counters(self, entry: ModelEntry) -> RowView:
        """The counters of a version; zeros for a version without a row."""
        if self.counters is None or entry.row < 0:
            return ZERO_ROW
        return self.counters.read(entry.row)


#: The server's extensions, in Triton's order. Clients and perf_analyzer choose by this list which requests they send.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
#: Extensions of a server that allows clients' shared memory; the second only if the server uses a GPU.
REGION_EXTENSIONS = ("system_shared_memory", "cuda_shared_memory")


def describe_server(server: KnownServer) -> dict[str, Any]:
    """The members of the server's metadata, by the names that they have in both protocols."""
    missing = set(REGION_EXTENSIONS[server.num_region_kinds :])
    extensions = [name for name in EXTENSIONS if name not in missing]
    return {"name": server.server_id, "version": server.version, "extensions": extensions}


def describe_model(server: KnownServer, name: str, version: str | None) -> dict[str, Any]:
    """The members of a model's metadata. `versions` has every READY version or, if the request names a version, only
    that one."""
    if not version:
        server.require_ready()  # Triton refuses a list of versions while the server stops
    entry = server.models.lookup(name, version)
    versions = [entry] if version else server.models.ready_entries(name)
    batched = entry.signature.max_batch_size > 0
    return {
        "name": entry.name,
        "versions": [str(each.version) for each in versions],
        "platform": entry.config.get("platform") or entry.config.get("backend", ""),
        "inputs": [_tensor(spec, batched) for spec in entry.signature.inputs.values()],
        "outputs": [_tensor(spec, batched) for spec in entry.signature.outputs.values()],
    }


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    # The shape for clients: `dims`, never `reshape`.
    shape = [-1, *spec.dims] if batched else list(spec.dims)
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": shape}


def collect(server: KnownServer, name: str, version: str | None) -> dict[str, Any]:
    """The members of the statistics extension's answer; the name "" means all models, in all versions. Every key is
    always present: perf_analyzer fails without `cache_hit` and `cache_miss`, even without a cache.

    Raises InvalidArgumentError for an unknown model, in other words than for an inference request; UnavailableError
    unless the server is ready.
    """
    number = parse_version(version) if version else None
    server.require_ready()
    entries = server.models.ready_entries(name or None)
    if name and not entries:
        raise InvalidArgumentError(f"requested model '{name}' is not available")
    if name and number is not None:
        entries = [entry for entry in entries if entry.version == number]
        if not entries:
            raise InvalidArgumentError(f"requested model version is not available for model '{name}'")
    return {"model_stats": [_model(entry, server.read_counters(entry)) for entry in entries]}


def _model(entry: ModelEntry, row: RowView) -> dict[str, Any]:
    cells = row.cells
    success = cells["success_count"]
    computed = success - cells["cache_hit_count"]
    return {
        "name": entry.name,
        "version": str(entry.version),
        "last_inference": cells["last_inference_ms"],
        "inference_count": cells["inference_count"],
        "execution_count": cells["execution_count"],
        "inference_stats": {
            "success": _duration(success, cells["success_ns"]),
            "fail": _duration(cells["fail_count"], cells["fail_ns"]),
            "queue": _duration(success, cells["queue_ns"]),
            "compute_input": _duration(computed, cells["compute_input_ns"]),
            "compute_infer": _duration(computed, cells["compute_infer_ns"]),
            "compute_output": _duration(computed, cells["compute_output_ns"]),
            "cache_hit": _duration(cells["cache_hit_count"], cells["cache_hit_ns"]),
            "cache_miss": _duration(cells["cache_miss_count"], cells["cache_miss_ns"]),
        },
        "response_stats": {},  # filled for decoupled models only
        "batch_stats": [_batch(batch) for batch in row.batches],
        "memory_usage": [],
    }


def _batch(batch: BatchStatistics) -> dict[str, Any]:
    return {
        "batch_size": batch.batch_size,
        "compute_input": _duration(batch.num_executions, batch.compute_input_ns),
        "compute_infer": _duration(batch.num_executions, batch.compute_infer_ns),
        "compute_output": _duration(batch.num_executions, batch.compute_output_ns),
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def is_ready(entry: ModelEntry, ask: Ask) -> bool:
    """Whether an instance is up and, for a model with a readiness method, all instances return true.

    Only a readiness method needs a question to the supervisor, which may take seconds while the model is busy. Raises
    ShoalError.
    """
    return entry.ready and (not entry.has_ready_check or bool(ask("is_ready", {"model": entry.model_id})))


def is_live(server: KnownServer) -> bool:
    """Whether the server has started and read its repositories. Raises UnavailableError while it stops."""
    if server.exiting:
        raise UnavailableError("Server exiting")
    return server.started and server.has_repositories


def is_server_ready(server: KnownServer) -> bool:
    """Whether the server has started and, under strict readiness, all models can answer. Raises like `is_live`."""
    return is_live(server) and (
        not server.strict_readiness or all(is_settled(each) for each in server.models.entries())
    )


def is_model_ready(server: KnownServer, ask: Ask, name: str, version: str | None) -> bool:
    """Whether this version, or the model's default version, is ready. Raises ShoalError."""
    server.require_ready()
    return is_ready(server.models.lookup(name, version), ask)


def asks_model(server: KnownServer, name: str, version: str | None) -> bool:
    """Whether `is_model_ready` calls the model's readiness method."""
    try:
        return server.models.lookup(name, version).has_ready_check
    except ShoalError:
        return False


def is_settled(entry: ModelEntry) -> bool:
    """Whether the server may be ready in view of this version, by Triton's rules."""
    # Triton's readiness does not cover a model whose configuration it could not accept.
    if not entry.is_polled:
        return True
    if entry.state == "READY":
        return entry.ready
    # Unlike Triton, Shoal is ready while a version drains: otherwise a probe would take a server out of service because
    # one of its models has just got a newer version.
    if entry.state == "UNLOADING":
        return True
    return entry.state == "UNAVAILABLE" and entry.reason == "unloaded"

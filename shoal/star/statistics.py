"""The figures of the statistics extension: the batcher's counters, under Triton's names.

Every key is always present: perf_analyzer fails without `cache_hit` and `cache_miss`, even without a cache.
"""

from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.shm.counters import BatchStatistics, RowView
from shoal.star.known_server import KnownServer
from shoal.star.models import ModelEntry, parse_version


def collect(server: KnownServer, name: str, version: str | None) -> dict[str, Any]:
    """The members of the answer, by their names in either protocol; the name "" means all models, in all versions.

    Raises InvalidArgumentError, with a sentence of its own, for an unknown model; UnavailableError unless ready.
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

"""The metrics listener: Triton's nv_ families in Prometheus's text format, read from the batcher's counters.

Written by hand because prometheus-client appends `_total` to the name of every counter and Triton's have none. Every
family is printed from the start, a model's series only while the version is loaded. Pure; front-end processes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from shoal.frontend.response import Response, error_json
from shoal.frontend.state import ModelEntry, ServerState
from shoal.shm.counters import RowView

_CONTENT = (("Content-Type", "text/plain; charset=utf-8"),)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Family(NamedTuple):
    """One metric that is a cell of the counters, divided by `divisor` to change its unit."""

    name: str
    kind: str
    help: str
    cell: str
    divisor: int = 1


_NS_PER_US = 1000

FAMILIES = (
    Family(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        "success_count",
    ),
    Family(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        "inference_count",
    ),
    Family(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        "execution_count",
    ),
    Family(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        "success_ns",
        _NS_PER_US,
    ),
    Family(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        "queue_ns",
        _NS_PER_US,
    ),
    Family(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        "compute_input_ns",
        _NS_PER_US,
    ),
    Family(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        "compute_infer_ns",
        _NS_PER_US,
    ),
    Family(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        "compute_output_ns",
        _NS_PER_US,
    ),
    Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        "pending_count",
    ),
)
_FAILURE_CELLS = {
    "REJECTED": "failed_rejected",
    "CANCELED": "failed_canceled",
    "BACKEND": "failed_backend",
    "OTHER": "failed_other",
}


def metrics_dispatch(state: ServerState, method: str, path: str) -> Response:
    """The whole metrics listener; any path but /metrics is an empty 200, as Triton has it."""
    if method != "GET":
        return error_json(405, "Method Not Allowed", (("Allow", "GET"),))
    if path != "/metrics":
        return Response(200, _CONTENT)
    return Response(200, _CONTENT, (exposition(state).encode(),))


def exposition(state: ServerState) -> str:
    """All families; each row of counters is read once, so that the figures of a model belong together."""
    entries = state.models.ready_entries()
    lines: list[str] = []
    rows = [(entry, _labels(entry), state.read_counters(entry)) for entry in entries]
    for family in FAMILIES:
        lines += _header(family.name, family.kind, family.help)
        for _, labels, row in rows:
            value = row.cells[family.cell] // family.divisor
            lines.append(f"{family.name}{_braces(labels)} {value}")
    lines += _failures([(labels, row) for _, labels, row in rows])
    lines += _header("nv_model_load_duration_secs", "gauge", "Model load time in seconds")
    for entry, labels, _ in rows:
        lines.append(f"nv_model_load_duration_secs{_braces(labels)} {entry.load_seconds!r}")
    return "\n".join(lines) + "\n"


def _failures(rows: list[tuple[dict[str, str], RowView]]) -> Iterator[str]:
    name = "nv_inference_request_failure"
    yield from _header(name, "counter", "Number of failed inference requests, all batch sizes")
    for labels, row in rows:
        for reason, cell in _FAILURE_CELLS.items():
            yield f"{name}{_braces({**labels, 'reason': reason})} {row.cells[cell]}"


def _header(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _labels(entry: ModelEntry) -> dict[str, str]:
    tags = entry.config.get("metric_tags", {})
    return {"model": entry.name, "version": str(entry.version), **{f"_{key}": value for key, value in tags.items()}}


def _braces(labels: dict[str, str]) -> str:
    # Sorted by name: that is how prometheus-cpp, and so Triton, prints them.
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels.items()))
    return f"{{{pairs}}}"

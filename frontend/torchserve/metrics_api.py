"""TorchServe's metrics: GET /metrics[?name[]=A], with the names that its dashboards know.

Written by hand because prometheus-client appends `_total` to the names of counters. By `metrics_mode` of
config.properties the page is empty (`log`), has the counters of inferences (`legacy`) or all metrics (`prometheus`), as
in TorchServe. The batcher counts inferences, failed ones included, as TorchServe does; the supervisor adds up the
responses of all front ends. QueueTime and WorkerThreadTime are means over the requests that have ended since the page
was last read; TorchServe has the times of its last request instead. Runs on the road.
"""

import shutil
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from shoal.frontend.call import HandlerCall, Route, blocking
from shoal.frontend.metrics.exposition import custom_lines
from shoal.frontend.metrics.listener import Cpu, read_gauges
from shoal.frontend.response import Response
from shoal.frontend.torchserve.models import FIRST_WORKER, default_version, version_text
from shoal.shm.counters import RowView
from shoal.star.models import ModelEntry

_CONTENT = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),)
_NS_PER_US, _NS_PER_MS, _MS_PER_S = 1000, 1_000_000, 1000
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_MEGABYTE, _GIGABYTE = 1 << 20, 1 << 30
_BY_STATUS = {2: "Requests2XX", 4: "Requests4XX", 5: "Requests5XX"}


class _Family(NamedTuple):
    """A metric family of Prometheus, and the family's samples, each with labels and a value."""

    name: str
    kind: str  # "counter" or "gauge"
    unit: str
    samples: Iterable[tuple[Mapping[str, str], float]]


class _Counter(NamedTuple):
    """A counter that each model version has, read from the version's row of statistics."""

    name: str
    unit: str
    read: Callable[[RowView], int]


#: The families of mode `legacy`.
_COUNTERS = (
    _Counter("ts_inference_requests_total", "Count", lambda row: row.cells["success_count"] + row.cells["fail_count"]),
    _Counter(
        "ts_inference_latency_microseconds",
        "Microseconds",
        lambda row: (row.cells["success_ns"] + row.cells["fail_ns"]) // _NS_PER_US,
    ),
    _Counter("ts_queue_latency_microseconds", "Microseconds", lambda row: row.cells["queue_ns"] // _NS_PER_US),
)


class RecentMeans:
    """Means of times over the requests that have ended since each mean was last read. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Changed by read. Name of a time → its sum and count at the last call; → its last mean.
        self._totals: dict[str, tuple[int, int]] = {}
        self._means: dict[str, float] = {}

    def read(self, name: str, total_ns: int, count: int) -> float:
        """The recent mean of one time, in ms, from the sum and the number of all its values so far. If no request has
        ended since the last call, the previous mean; 0 before the first request. If the sums have fallen (a version was
        unloaded), the mean is over all values so far."""
        with self._lock:
            seen_ns, seen = self._totals.get(name, (0, 0))
            if count < seen or total_ns < seen_ns:
                seen_ns = seen = 0
            if count > seen:
                self._means[name] = (total_ns - seen_ns) / (count - seen) / _NS_PER_MS
            self._totals[name] = total_ns, count
            return self._means.get(name, 0.0)


_MEANS = RecentMeans()


def metrics(call: HandlerCall) -> Response:
    """The page of metrics; if the query has parameters `name[]`, the families of these names only."""
    mode = call.state.torchserve.metrics_mode
    if mode == "log":
        return Response(200, _CONTENT)
    chosen = {value for name, value in parse_qsl(call.query) if name == "name[]"}
    families = [*_inference_families(call)]
    figures: Mapping[str, Any] = {}
    if mode == "prometheus":
        figures = read_gauges(call.ask) or {}
        families += [*_response_families(figures), *_time_families(call), *_machine_families(call)]
    wanted = [each for each in families if (not chosen or each.name in chosen) and _is_declared(call, each.name)]
    text = "".join(line for each in wanted for line in _lines(each))
    return Response(200, _CONTENT, ((text + _handlers_text(call, figures, chosen)).encode(),))


def _is_declared(call: HandlerCall, name: str) -> bool:
    """Whether metrics.yaml declares a family of the server's own; if there is no such file, all are declared."""
    declared = call.state.torchserve.server_metrics
    return declared is None or name in declared


def _handlers_text(call: HandlerCall, figures: Mapping[str, Any], chosen: Collection[str]) -> str:
    """The text of the metrics that models' handlers have made, HandlerTime and PredictionTime among them. If
    metrics.yaml declares handlers' metrics and model_metrics_auto_detect is off, exactly those are printed, even
    without a sample."""
    made = figures.get("custom", ())
    declared = call.state.torchserve.handler_metrics
    if figures and declared is not None:
        samples = {(name, kind): (text, series) for name, kind, text, series in made}
        made = [(name, kind, *samples.get((name, kind), (_help(kind, unit), ()))) for name, kind, unit in declared]
    wanted = [each for each in made if not chosen or each[0] in chosen]
    lines = custom_lines({"custom": wanted}, (("Hostname", socket.gethostname()),))
    return "".join(f"{line}\n" for line in lines)


def _lines(family: _Family) -> Iterator[str]:
    name, kind = family.name, family.kind
    yield f"# HELP {name} {_help(kind, family.unit)}\n"
    yield f"# TYPE {name} {kind}\n"
    for labels, value in family.samples:
        text = "".join(f'{label}="{each.translate(_ESCAPES)}",' for label, each in labels.items())
        yield f"{name}{{{text}}} {float(value)}\n"


def _help(kind: str, unit: str) -> str:
    return f"Torchserve prometheus {kind} metric with unit: {unit}"


def _host() -> dict[str, str]:
    return {"Level": "Host", "Hostname": socket.gethostname()}


def _inference_families(call: HandlerCall) -> Iterator[_Family]:
    host = socket.gethostname()
    rows = [
        ({"model_name": entry.name, "model_version": _version(call, entry), "hostname": host},
         call.state.read_counters(entry))
        for entry in call.state.models.ready_entries()
    ]  # fmt: skip
    for counter in _COUNTERS:
        yield _Family(counter.name, "counter", counter.unit, [(labels, counter.read(row)) for labels, row in rows])


def _response_families(figures: Mapping[str, Any]) -> Iterator[_Family]:
    """The numbers of responses by status, of front ends that have ended, too."""
    answered = figures.get("answered")
    for digit, name in _BY_STATUS.items():
        yield _Family(name, "counter", "Count", [] if answered is None else [(_host(), answered[digit])])


def _time_families(call: HandlerCall) -> Iterator[_Family]:
    entries = call.state.models.ready_entries()
    cells = [call.state.read_counters(entry).cells for entry in entries]
    count = sum(each["success_count"] for each in cells)
    queued_ns = sum(each["queue_ns"] for each in cells)
    moved_ns = sum(each["compute_input_ns"] + each["compute_output_ns"] for each in cells)
    for name, total_ns in (("QueueTime", queued_ns), ("WorkerThreadTime", moved_ns)):
        yield _Family(name, "gauge", "Milliseconds", [(_host(), _MEANS.read(name, total_ns, count))])
    loaded = [
        ({"WorkerName": f"W-{FIRST_WORKER + number}-{entry.name}_{version_text(entry)}", **_host()},
         entry.load_seconds * _MS_PER_S)
        for entry in entries
        for number in range(entry.num_instances_up)
    ]  # fmt: skip
    yield _Family("WorkerLoadTime", "gauge", "Milliseconds", loaded)


def _machine_families(call: HandlerCall) -> Iterator[_Family]:
    if call.state.torchserve.system_metrics:
        for name, unit, value in system_metrics():
            yield _Family(name, "gauge", unit, [(_host(), value)])


def _version(call: HandlerCall, entry: ModelEntry) -> str:
    """The version's text, or `default` for the default version, as in TorchServe for requests that name no version."""
    return "default" if default_version(call.state, entry.name) is entry else version_text(entry)


@cache
def machine_cpu() -> Cpu:
    """This process's reader of the CPU's utilization, which is the mean since the last reading or, at first, since the
    listener was made."""
    return Cpu()


def system_metrics(
    read: Callable[[], Mapping[str, float]] | None = None,
    disk: Callable[[str], tuple[int, int, int]] = shutil.disk_usage,
) -> Iterator[tuple[str, str, float]]:
    """The gauges of the machine and of its root directory's disk: name, unit and value. `read` is Cpu.read, `disk`
    returns the total, used and free bytes of a path's file system."""
    figures = (read or machine_cpu().read)()
    total, used = figures["memory_total_bytes"], figures["memory_used_bytes"]
    _, disk_used, disk_free = disk("/")
    yield ("CPUUtilization", "Percent", 100 * figures["utilization"])
    yield ("MemoryUtilization", "Percent", 100 * used / total if total else 0.0)
    yield ("MemoryUsed", "Megabytes", used / _MEGABYTE)
    yield ("MemoryAvailable", "Megabytes", (total - used) / _MEGABYTE)
    in_use = disk_used + disk_free
    yield ("DiskUtilization", "Percent", 100 * disk_used / in_use if in_use else 0.0)
    yield ("DiskUsage", "Gigabytes", disk_used / _GIGABYTE)
    yield ("DiskAvailable", "Gigabytes", disk_free / _GIGABYTE)


METRICS_ROUTES = (Route("/metrics", {"GET": blocking(metrics)}, "statistics"),)

"""TorchServe's metrics: GET /metrics[?name[]=A], with the names that its dashboards know. Pure.

Written by hand because prometheus-client appends `_total` to the names of counters. In mode `log` the page is empty, as
TorchServe's; in the others it has the counters of inferences, in mode `prometheus` the figures of the machine, too.
Counters are those of the batcher: a failed request counts as a request of TorchServe's, too.
"""

import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import parse_qsl

from shoal.frontend.call import HandlerCall, Route
from shoal.frontend.response import Response
from shoal.frontend.torchserve.models import default_version, version_text
from shoal.frontend.torchserve.system_metrics import Gauge, system_metrics
from shoal.shm.counters import RowView
from shoal.star.models import ModelEntry

_CONTENT = (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),)
_NS_PER_US = 1000
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class _Counter(NamedTuple):
    """A counter of each version."""

    name: str
    unit: str
    read: Callable[[RowView], int]


#: The families of mode `legacy`, by versions.
_COUNTERS = (
    _Counter("ts_inference_requests_total", "Count", lambda row: row.cells["success_count"] + row.cells["fail_count"]),
    _Counter(
        "ts_inference_latency_microseconds",
        "Microseconds",
        lambda row: (row.cells["success_ns"] + row.cells["fail_ns"]) // _NS_PER_US,
    ),
    _Counter("ts_queue_latency_microseconds", "Microseconds", lambda row: row.cells["queue_ns"] // _NS_PER_US),
)


def metrics(call: HandlerCall) -> Response:
    """The page of metrics, of which the parameters `name[]` may choose families."""
    if call.state.torchserve.metrics_mode == "log":
        return Response(200, _CONTENT)
    chosen = {value for name, value in parse_qsl(call.query) if name == "name[]"}
    text = "".join(
        line for counter in _COUNTERS if not chosen or counter.name in chosen for line in _lines(call, counter)
    )
    settings = call.state.torchserve
    if settings.metrics_mode == "prometheus" and settings.system_metrics:
        text += "".join(_gauge(gauge) for gauge in system_metrics() if not chosen or gauge.name in chosen)
    return Response(200, _CONTENT, (text.encode(),))


def _gauge(gauge: Gauge) -> str:
    name, host = gauge.name, socket.gethostname().translate(_ESCAPES)
    return (
        f"# HELP {name} Torchserve prometheus gauge metric with unit: {gauge.unit}\n# TYPE {name} gauge\n"
        f'{name}{{Level="Host",Hostname="{host}",}} {gauge.value}\n'
    )


def _lines(call: HandlerCall, counter: _Counter) -> Iterator[str]:
    yield f"# HELP {counter.name} Torchserve prometheus counter metric with unit: {counter.unit}\n"
    yield f"# TYPE {counter.name} counter\n"
    host = socket.gethostname()
    for entry in call.state.models.ready_entries():
        labels = {"model_name": entry.name, "model_version": _version(call, entry), "hostname": host}
        text = "".join(f'{name}="{value.translate(_ESCAPES)}",' for name, value in labels.items())
        yield f"{counter.name}{{{text}}} {float(counter.read(call.state.read_counters(entry)))}\n"


def _version(call: HandlerCall, entry: ModelEntry) -> str:
    """The version's text; `default`, as TorchServe has it for requests that name none, for the default version."""
    return "default" if default_version(call.state, entry.name) is entry else version_text(entry)


METRICS_ROUTES = (Route("/metrics", {"GET": metrics}, "statistics"),)

"""frontend/torchserve/metrics_api.py: the page of metrics, line by line."""

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.frontend.call import HandlerCall
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.listener import RoadEndpoint
from shoal.frontend.torchserve.metrics_api import RecentMeans, machine_cpu, metrics
from shoal.frontend.torchserve.metrics_api import system_metrics as gauges
from shoal.torchserve_settings import TorchServeSettings
from tests.messages import model_message

NAMES = ["ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds"]
ALL = ["Requests2XX", "Requests4XX", "Requests5XX", "QueueTime", "WorkerThreadTime", "WorkerLoadTime", "HandlerTime"]


#: What the supervisor says: responses by the first digit of their status, and what a handler has measured.
FIGURES: dict[str, Any] = {
    "answered": [0, 0, 7, 0, 2, 1],
    "custom": [("HandlerTime", "gauge", "Torchserve prometheus gauge metric with unit: Milliseconds",
                [((("ModelName", "m"), ("Level", "Model")), 1.5)])],
}  # fmt: skip


class Supervisor:
    """A supervisor that answers a question for its figures, or does not."""

    def __init__(self, figures: Mapping[str, Any] | None) -> None:
        self._figures = figures

    def ask(self, verb: str, _arguments: Any, _timeout_s: float) -> Any:
        assert verb == "gauges"
        if self._figures is None:
            raise UnavailableError("no answer")
        return self._figures


def page(
    mode: str, query: str = "", *, system_metrics: bool = False, figures: Mapping[str, Any] | None = FIGURES
) -> str:
    state = ServerState(torchserve=TorchServeSettings(metrics_mode=mode, system_metrics=system_metrics))
    for version in (1, 2):
        state.models.apply(model_message("m", version, version, None))
    supervisor: Any = Supervisor(figures)
    response = metrics(HandlerCall(state, supervisor, {}, memoryview(b""), "", None, query))
    assert response.headers == (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),)
    return b"".join(map(bytes, response.chunks)).decode()


def test_the_page_is_empty_in_mode_log() -> None:
    assert page("log") == ""


@pytest.mark.parametrize("mode", ["legacy", "prometheus"])
def test_each_family_has_a_sample_of_each_version(mode: str) -> None:
    lines = page(mode).splitlines()
    host = socket.gethostname()
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert types[:3] == NAMES
    assert types[3:] == ([] if mode == "legacy" else ALL)
    assert lines[0] == "# HELP ts_inference_requests_total Torchserve prometheus counter metric with unit: Count"
    assert lines[1] == "# TYPE ts_inference_requests_total counter"
    assert lines[2] == f'ts_inference_requests_total{{model_name="m",model_version="1",hostname="{host}",}} 0.0'
    assert lines[3] == f'ts_inference_requests_total{{model_name="m",model_version="default",hostname="{host}",}} 0.0'


def test_responses_are_counted_by_status_and_handlers_have_metrics() -> None:
    host = socket.gethostname()
    lines = page("prometheus").splitlines()
    of_host = f'{{Level="Host",Hostname="{host}",}}'
    for name, value in (("Requests2XX", 7.0), ("Requests4XX", 2.0), ("Requests5XX", 1.0), ("QueueTime", 0.0)):
        kind = "gauge" if name == "QueueTime" else "counter"
        unit = "Milliseconds" if name == "QueueTime" else "Count"
        start = lines.index(f"# HELP {name} Torchserve prometheus {kind} metric with unit: {unit}")
        assert lines[start + 1 : start + 3] == [f"# TYPE {name} {kind}", f"{name}{of_host} {value}"]
    assert lines[-1] == f'HandlerTime{{Hostname="{host}",Level="Model",ModelName="m"}} 1.5'


def test_a_worker_that_is_up_has_its_time_to_load() -> None:
    state = ServerState(torchserve=TorchServeSettings(metrics_mode="prometheus", system_metrics=False))
    message = model_message("m", 1, 1, None, load_seconds=0.25, num_instances_up=2)
    state.models.apply(message)
    supervisor: Any = Supervisor(FIGURES)
    call = HandlerCall(state, supervisor, {}, memoryview(b""), "", None, "name[]=WorkerLoadTime")
    _, _, *samples = b"".join(map(bytes, metrics(call).chunks)).decode().splitlines()
    host = socket.gethostname()
    assert samples == [
        f'WorkerLoadTime{{WorkerName="W-{number}-m_1",Level="Host",Hostname="{host}",}} 250.0'
        for number in (9000, 9001)
    ]


def test_without_an_answer_of_the_supervisor_the_page_lacks_what_it_knows() -> None:
    lines = page("prometheus", figures=None).splitlines()
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == NAMES + ALL[:-1]
    assert not any(line.startswith("Requests") for line in lines)


def test_means_are_of_what_has_ended_since_the_last_look() -> None:
    means = RecentMeans()
    looks = [(0, 0), (4_000_000, 2), (4_000_000, 2), (7_000_000, 3), (1_000_000, 1)]
    assert [means.read("a", *look) for look in looks] == [0.0, 2.0, 2.0, 3.0, 1.0]
    assert means.read("b", 0, 0) == 0.0


def test_metrics_yaml_chooses_families_and_shows_those_of_handlers_without_a_sample() -> None:
    handlers = [["HandlerTime", "gauge", "Milliseconds"], ["idle", "counter", "Count"]]
    settings = TorchServeSettings(
        metrics_mode="prometheus", system_metrics=False, server_metrics=["QueueTime"], handler_metrics=handlers
    )
    supervisor: Any = Supervisor({**FIGURES, "custom": [*FIGURES["custom"], ("own", "gauge", "undeclared", [])]})
    call = HandlerCall(ServerState(torchserve=settings), supervisor, {}, memoryview(b""), "", None, "")
    lines = b"".join(map(bytes, metrics(call).chunks)).decode().splitlines()
    types = [line.split()[2:] for line in lines if line.startswith("# TYPE")]
    assert types == [["QueueTime", "gauge"], ["HandlerTime", "gauge"], ["idle", "counter"]]
    assert lines[-3].startswith("HandlerTime{")
    assert lines[-2] == "# HELP idle Torchserve prometheus counter metric with unit: Count"


def test_names_choose_families() -> None:
    lines = page("prometheus", "name[]=ts_queue_latency_microseconds&name[]=none").splitlines()
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == ["ts_queue_latency_microseconds"]


def test_the_machine_is_measured_in_torchserves_units() -> None:
    figures = {"utilization": 0.25, "memory_total_bytes": 8 << 20, "memory_used_bytes": 2 << 20}
    assert list(gauges(lambda: figures, lambda _: (10 << 30, 3 << 30, 1 << 30))) == [
        ("CPUUtilization", "Percent", 25.0),
        ("MemoryUtilization", "Percent", 25.0),
        ("MemoryUsed", "Megabytes", 2.0),
        ("MemoryAvailable", "Megabytes", 6.0),
        ("DiskUtilization", "Percent", 75.0),
        ("DiskUsage", "Gigabytes", 3.0),
        ("DiskAvailable", "Gigabytes", 1.0),
    ]


@pytest.mark.parametrize(("api", "enabled"), [("metrics", True), ("metrics", False), ("inference", True)])
def test_the_first_page_shows_the_cpus_utilization_since_the_listener_was_made(api: str, enabled: bool) -> None:
    machine_cpu.cache_clear()
    RoadEndpoint(ServerState(torchserve=TorchServeSettings(system_metrics=enabled)), [api], lambda _status: None)
    assert machine_cpu.cache_info().currsize == (api == "metrics" and enabled)


@pytest.mark.parametrize(("mode", "enabled"), [("prometheus", True), ("prometheus", False), ("legacy", True)])
def test_the_machines_figures_are_of_mode_prometheus(mode: str, enabled: bool) -> None:
    lines = page(mode, "name[]=MemoryUsed", system_metrics=enabled).splitlines()
    if mode == "prometheus" and enabled:
        help_text, kind, sample = lines
        assert help_text == "# HELP MemoryUsed Torchserve prometheus gauge metric with unit: Megabytes"
        assert kind == "# TYPE MemoryUsed gauge"
        label, value = sample.rsplit(" ", 1)
        assert label == f'MemoryUsed{{Level="Host",Hostname="{socket.gethostname()}",}}'
        assert float(value) > 0
    else:
        assert lines == []

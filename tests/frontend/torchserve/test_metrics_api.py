"""frontend/torchserve/metrics_api.py: the page of metrics, line by line."""

import socket

import pytest

from shoal.frontend.call import HandlerCall
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.metrics_api import metrics
from shoal.frontend.torchserve.system_metrics import Gauge
from shoal.frontend.torchserve.system_metrics import system_metrics as gauges
from shoal.torchserve_settings import TorchServeSettings
from tests.messages import model_message

NAMES = ["ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds"]


def page(mode: str, query: str = "", *, system_metrics: bool = False) -> str:
    state = ServerState(torchserve=TorchServeSettings(metrics_mode=mode, system_metrics=system_metrics))
    for version in (1, 2):
        state.models.apply(model_message("m", version, version, None))
    response = metrics(HandlerCall(state, None, {}, memoryview(b""), "", None, query))
    assert response.headers == (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),)
    return b"".join(map(bytes, response.chunks)).decode()


def test_the_page_is_empty_in_mode_log() -> None:
    assert page("log") == ""


@pytest.mark.parametrize("mode", ["legacy", "prometheus"])
def test_each_family_has_a_sample_of_each_version(mode: str) -> None:
    lines = page(mode).splitlines()
    host = socket.gethostname()
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == NAMES
    assert lines[0] == "# HELP ts_inference_requests_total Torchserve prometheus counter metric with unit: Count"
    assert lines[1] == "# TYPE ts_inference_requests_total counter"
    assert lines[2] == f'ts_inference_requests_total{{model_name="m",model_version="1",hostname="{host}",}} 0.0'
    assert lines[3] == f'ts_inference_requests_total{{model_name="m",model_version="default",hostname="{host}",}} 0.0'
    assert len(lines) == 4 * len(NAMES)


def test_names_choose_families() -> None:
    lines = page("prometheus", "name[]=ts_queue_latency_microseconds&name[]=none").splitlines()
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == ["ts_queue_latency_microseconds"]


def test_the_machine_is_measured_in_torchserves_units() -> None:
    figures = {"utilization": 0.25, "memory_total_bytes": 8 << 20, "memory_used_bytes": 2 << 20}
    assert list(gauges(lambda: figures, lambda _: (10 << 30, 3 << 30, 1 << 30))) == [
        Gauge("CPUUtilization", "Percent", 25.0),
        Gauge("MemoryUtilization", "Percent", 25.0),
        Gauge("MemoryUsed", "Megabytes", 2.0),
        Gauge("MemoryAvailable", "Megabytes", 6.0),
        Gauge("DiskUtilization", "Percent", 75.0),
        Gauge("DiskUsage", "Gigabytes", 3.0),
        Gauge("DiskAvailable", "Gigabytes", 1.0),
    ]


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

"""frontend/torchserve/metrics_api.py: the page of metrics, line by line."""

import socket

import pytest

from shoal.frontend.call import HandlerCall
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.metrics_api import metrics
from shoal.torchserve_settings import TorchServeSettings
from tests.messages import model_message

NAMES = ["ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds"]


def page(mode: str, query: str = "") -> str:
    state = ServerState(torchserve=TorchServeSettings(metrics_mode=mode))
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

"""frontend/metrics/listener.py: the listener's one path, and whom it asks."""

from typing import Any

from shoal.errors import UnavailableError
from shoal.frontend.metrics.listener import MetricsListener
from shoal.frontend.state import ServerState

TEXT = (("Content-Type", "text/plain; charset=utf-8"),)


def text(listener: MetricsListener) -> str:
    (chunk,) = listener.answer("GET", "/metrics").chunks
    return bytes(chunk).decode()


def test_it_has_one_path(state: ServerState, transport: Any) -> None:
    listener = MetricsListener(state, transport)
    response = listener.answer("GET", "/metrics")
    assert (response.status, response.headers) == (200, TEXT)
    assert listener.answer("GET", "/v2/health/live")[:3] == (200, TEXT, ())
    assert listener.answer("GET", "/metrics/")[:3] == (200, TEXT, ())
    refused = listener.answer("POST", "/metrics")
    assert (refused.status, refused.chunks) == (405, (b'{"error":"Method Not Allowed"}',))
    assert ("Allow", "GET") in refused.headers
    assert transport.asked == [("gauges", {})]


def test_it_answers_without_the_supervisor(state: ServerState, transport: Any) -> None:
    listener = MetricsListener(state, transport)
    assert "shoal_shared_memory_bytes 4096\n" in text(listener)
    transport.answers["gauges"] = UnavailableError("no answer from the supervisor within 2 s; it may still come")
    assert "shoal_shared_memory_bytes 4096\n" not in text(listener)
    assert "# TYPE shoal_shared_memory_bytes gauge\n" in text(listener)
    assert 'nv_inference_count{model="simple",version="1"} 0\n' in text(listener)


def test_the_machine_can_be_left_out(state: ServerState, transport: Any) -> None:
    assert "\nnv_cpu_memory_total_bytes " in text(MetricsListener(state, transport))
    state.allow_cpu_metrics = state.allow_gpu_metrics = False
    found = text(MetricsListener(state, transport))
    assert "\nnv_cpu_memory_total_bytes " not in found
    assert "# TYPE nv_cpu_memory_total_bytes gauge\n" in found

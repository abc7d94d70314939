"""frontend/metrics.py: Prometheus text of the counters in shared memory."""

from prometheus_client.parser import text_string_to_metric_families

from shoal.frontend.metrics import exposition, metrics_dispatch
from shoal.frontend.state import ServerState
from shoal.shm.counters import CELL, CounterTable


def test_every_family_is_there_without_a_model() -> None:
    text = exposition(ServerState(started=True))
    assert [line for line in text.splitlines() if not line.startswith("#")] == []
    assert [line for line in text.splitlines() if line.startswith("# TYPE")] == [
        "# TYPE nv_inference_request_success counter",
        "# TYPE nv_inference_count counter",
        "# TYPE nv_inference_exec_count counter",
        "# TYPE nv_inference_request_duration_us counter",
        "# TYPE nv_inference_queue_duration_us counter",
        "# TYPE nv_inference_compute_input_duration_us counter",
        "# TYPE nv_inference_compute_infer_duration_us counter",
        "# TYPE nv_inference_compute_output_duration_us counter",
        "# TYPE nv_inference_pending_request_count gauge",
        "# TYPE nv_inference_request_failure counter",
        "# TYPE nv_model_load_duration_secs gauge",
    ]


def test_what_the_batcher_counted_is_printed(state: ServerState, counters: CounterTable) -> None:
    row = counters.row(3)
    row.cells[CELL["success_count"]] = 5
    row.cells[CELL["success_ns"]] = 1_234_999
    row.cells[CELL["queue_ns"]] = 2_000
    row.cells[CELL["pending_count"]] = 2
    row.cells[CELL["failed_backend"]] = 4
    row.count_execution(8, 0, 0, 0)
    row.publish()
    lines = exposition(state).splitlines()
    assert "# HELP nv_inference_request_success Number of successful inference requests, all batch sizes" in lines
    for line in (
        'nv_inference_request_success{model="simple",version="1"} 0',
        'nv_inference_request_success{model="simple",version="3"} 5',
        'nv_inference_request_duration_us{model="simple",version="3"} 1234',
        'nv_inference_queue_duration_us{model="simple",version="3"} 2',
        'nv_inference_exec_count{model="simple",version="3"} 1',
        'nv_inference_pending_request_count{model="simple",version="3"} 2',
        'nv_inference_request_failure{model="simple",reason="BACKEND",version="3"} 4',
        'nv_inference_request_failure{model="simple",reason="REJECTED",version="3"} 0',
        'nv_inference_request_failure{model="simple",reason="CANCELED",version="3"} 0',
        'nv_inference_request_failure{model="simple",reason="OTHER",version="3"} 0',
        'nv_model_load_duration_secs{model="simple",version="3"} 0.25',
    ):
        assert lines.count(line) == 1, line


def test_only_loaded_versions_have_series(state: ServerState) -> None:
    text = exposition(state)
    assert 'model="simple",version="2"' not in text
    assert 'model="gone"' not in text
    assert 'model="broken"' not in text
    state.models.apply({"op": "model_removed", "name": "simple", "version": 3})
    assert 'model="simple",version="3"' not in exposition(state)


def test_metric_tags_are_labels_and_escaped(state: ServerState) -> None:
    assert 'nv_inference_count{_team="a\\"b\\\\c\\nd",model="écho b",version="1"} 0' in exposition(state).splitlines()


def test_prometheus_reads_it(state: ServerState, counters: CounterTable) -> None:
    row = counters.row(4)
    row.cells[CELL["inference_count"]] = 9
    row.publish()
    families = {family.name: family for family in text_string_to_metric_families(exposition(state))}
    samples = [sample for sample in families["nv_inference_count"].samples if sample.labels["model"] == "écho b"]
    assert [(sample.value, sample.labels["_team"]) for sample in samples] == [(9.0, 'a"b\\c\nd')]


def test_the_listener_has_one_path(state: ServerState) -> None:
    text = (("Content-Type", "text/plain; charset=utf-8"),)
    response = metrics_dispatch(state, "GET", "/metrics")
    assert (response.status, response.headers) == (200, text)
    assert response.chunks == (exposition(state).encode(),)
    assert metrics_dispatch(state, "GET", "/v2/health/live")[:3] == (200, text, ())
    assert metrics_dispatch(state, "GET", "/metrics/")[:3] == (200, text, ())
    refused = metrics_dispatch(state, "POST", "/metrics")
    assert (refused.status, refused.chunks) == (405, (b'{"error":"Method Not Allowed"}',))
    assert ("Allow", "GET") in refused.headers

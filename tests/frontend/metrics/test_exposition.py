"""frontend/metrics/exposition.py: the text, from counters in a real segment and what others tell."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal import __version__
from shoal import metric_families as families
from shoal.frontend.metrics.exposition import ExternalFigures, exposition
from shoal.frontend.state import ServerState
from shoal.messages.to_client import ModelForgotten
from shoal.shared_settings import MetricsConfig
from shoal.shm import counters as layout
from shoal.shm import segment
from shoal.shm.counters import CELL, CounterTable, CounterTableView
from shoal.shm.layout import COUNTERS
from shoal.shm.segment import Segment, SegmentView

NOW_NS = 100 * 10**9
NOTHING = ExternalFigures(None, {}, ())
#: What --metrics-config turns on.
OPTIONAL = {family.name for family in (*[each.family for each in families.SUMMARIES], *families.CACHE_SUMMARIES,
                                       families.FIRST_RESPONSES)}  # fmt: skip
INSTANCE = {
    "model": "simple", "version": 3, "model_instance": "simple_0_1", "device": "CPU", "restarts": 2, "recycles": 1,
    "rss_bytes": 4096, "is_up": True, "busy_ns": 1_500_000_000, "executing_ns": 0, "batches": 7,
    "slab_used_bytes": 8192, "slab_total_bytes": 16384, "ring_used_ratio": 0.25,
}  # fmt: skip
DOWN = {
    "model": "simple", "version": 3, "model_instance": "simple_0_0", "device": "CPU", "restarts": 5, "recycles": 0,
    "rss_bytes": 0, "is_up": False,
}  # fmt: skip
GAUGES: dict[str, Any] = {
    "instances": [INSTANCE, DOWN],
    "front_ends": [
        {"process": "http", "slab_used_bytes": 1, "slab_total_bytes": 10, "ring_used_ratio": 0.5},
        {"process": "road", "slab_used_bytes": 2, "slab_total_bytes": 10, "ring_used_ratio": 0.0},
        {"process": "http", "slab_used_bytes": 4, "slab_total_bytes": 10, "ring_used_ratio": 0.125},
    ],
    "shared_bytes": 99,
    "num_takeovers": 3,
    "num_records_lost": 12,
    "num_abandoned": 6,
    "handshakes_failed": {"http": 7, "grpc": 8},
    "certificates": {"http": 1_800_000_000, "grpc": 1_900_000_000},
}
GPU = {
    "uuid": "GPU-1", "utilization": 0.5, "memory_total_bytes": 8, "memory_used_bytes": 4, "power_usage_w": 70.5,
    "power_limit_w": 700, "energy_j": 12.25,
}  # fmt: skip


def lines(state: ServerState, external: ExternalFigures = NOTHING) -> list[str]:
    return exposition(state, external, NOW_NS).splitlines()


def of(name: str, found: list[str]) -> list[str]:
    """The samples of a family."""
    return [line for line in found if line.startswith(name) and line[len(name)] in "{ _"]


def test_every_family_that_is_on_is_there_without_a_model() -> None:
    found = lines(ServerState(started=True))
    always = [family for family in families.ALL if family.name not in OPTIONAL]
    told = sorted(line.split(" ", 3)[2:] for line in found if line.startswith("# HELP"))
    assert told == sorted([family.name, family.help] for family in always)
    kinds = sorted(line.split(" ", 3)[2:] for line in found if line.startswith("# TYPE"))
    assert kinds == sorted([family.name, family.kind] for family in always)
    zeros = {family.name for family in (*[each.family for each in families.CACHE], *families.PINNED_MEMORY)}
    samples = {line for line in found if not line.startswith("#")}
    assert samples == {f"{name} 0" for name in zeros} | {f'shoal_build_info{{version="{__version__}"}} 1'}


def test_what_the_batcher_counted_is_printed(state: ServerState, counters: CounterTable) -> None:
    row = counters.row(3)
    for name, count in {"success_count": 5, "success_ns": 1_234_999, "queue_ns": 2_000, "failed_backend": 4}.items():
        row.cells[CELL[name]] = count
    row.cells[CELL["pending_count"]], row.cells[CELL["oldest_queued_ns"]] = 2, NOW_NS - 1_500_000_000
    row.count_execution(8, 0, 0, 0)
    row.publish()
    found = lines(state)
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
        'shoal_queue_oldest_age_seconds{model="simple",version="3"} 1.5',
        'shoal_queue_oldest_age_seconds{model="simple",version="1"} 0',
        'shoal_model_instances{model="simple",version="3"} 2',
        'shoal_model_instances_up{model="asleep",version="7"} 0',
    ):
        assert found.count(line) == 1, line


def test_histograms_count_what_is_not_longer_than_their_bounds(state: ServerState, counters: CounterTable) -> None:
    row = counters.row(3)
    for ns in (0, 16_383, 16_384, 1_073_741_823, 10**12):
        row.histograms[0][ns.bit_length()] += 1
    row.cells[CELL["success_count"]], row.cells[CELL["success_ns"]] = 5, 2_500_000_000
    row.publish()
    found = of("shoal_request_duration_seconds", lines(state))
    found = [line for line in found if 'version="3"' in line]
    name, labels = "shoal_request_duration_seconds", 'model="simple",version="3"'
    assert found[:4] == [
        f"{name}_count{{{labels}}} 5",
        f"{name}_sum{{{labels}}} 2.5",
        f'{name}_bucket{{{labels},le="1.6384e-05"}} 2',
        f'{name}_bucket{{{labels},le="3.2768e-05"}} 3',
    ]
    assert f'{name}_bucket{{{labels},le="0.536870912"}} 3' in found
    assert f'{name}_bucket{{{labels},le="1.073741824"}} 4' in found
    assert found[-2:] == [f'{name}_bucket{{{labels},le="137.438953472"}} 4', f'{name}_bucket{{{labels},le="+Inf"}} 5']


def test_batches_are_told_by_their_rows(state: ServerState, counters: CounterTable) -> None:
    row = counters.row(3)
    for rows in (1, 1, 3, 4, 1024, 1025):
        row.count_execution(rows, 0, 0, 0)
    row.publish()
    found = of("shoal_batch_rows", lines(state))
    samples = [line.rpartition(" ")[2] for line in found if 'version="3"' in line]
    assert samples == ["6", "2058", "2", "2", "4", *["4"] * 7, "5", "6"]


def test_first_responses_are_printed_where_they_are_asked_for(state: ServerState, counters: CounterTable) -> None:
    family = "nv_inference_first_response_histogram_ms"
    assert not [line for line in lines(state) if family in line]
    state.metrics_config = MetricsConfig(histogram_latencies=True)
    row = counters.row(3)
    row.first_response_bounds = (100.0, 500.0, 2000.0, 5000.0)
    for ms in (100, 101, 6000.5):
        row.count_first_response(int(ms * 1_000_000))
    row.cells[CELL["success_ns"]], row.cells[CELL["fail_ns"]] = 10**12, 10**12  # of streams: their ends count there
    row.cells[CELL["success_count"]] = 2
    row.publish()
    labels = 'model="simple",version="3"'
    assert [line for line in of(family, lines(state)) if labels in line] == [
        f"{family}_count{{{labels}}} 3",
        f"{family}_sum{{{labels}}} 6201.5",
        f'{family}_bucket{{{labels},le="100"}} 1',
        f'{family}_bucket{{{labels},le="500"}} 2',
        f'{family}_bucket{{{labels},le="2000"}} 2',
        f'{family}_bucket{{{labels},le="5000"}} 2',
        f'{family}_bucket{{{labels},le="+Inf"}} 3',
    ]


def test_a_models_own_buckets_are_its_bounds(state: ServerState, make_message: Any) -> None:
    state.metrics_config = MetricsConfig(histogram_latencies=True)
    control = {"metric_identifier": {"family": "-"}, "histogram_options": {"buckets": [-1.0, 2.5]}}
    config = {"name": "own", "max_batch_size": 0, "input": [], "output": []}
    config["model_metrics"] = {"metric_control": [control]}
    state.models.apply(make_message("own", 1, 2, config))
    found = of("nv_inference_first_response_histogram_ms_bucket", lines(state))
    assert [line.partition('le="')[2] for line in found if '"own"' in line] == ['-1"} 0', '2.5"} 0', '+Inf"} 0']


def test_summaries_are_of_the_last_minute(state: ServerState) -> None:
    assert not [line for line in lines(state) if "_summary" in line]
    fd = segment.create(COUNTERS, 1, layout.GEOMETRY_WITH_WINDOWS, sealed=True)
    view = SegmentView.attach(segment.read_only(fd))
    row = CounterTable(Segment.attach(fd)).row(3)
    assert row.windows is not None
    for us in range(1, 101):
        row.windows.observe(NOW_NS - 10**9, (us * 1000,) * 5)
    row.cells[CELL["success_count"]], row.cells[CELL["success_ns"]] = 100, 5_050_000
    row.publish()
    state.counters = CounterTableView(view)
    state.metrics_config = MetricsConfig(summary_latencies=True, summary_quantiles=((0.1, 0.0), (1.0, 0.0)))
    found = of("nv_inference_request_summary_us", lines(state))
    labels = 'model="simple",version="3"'
    assert [line for line in found if labels in line] == [
        f"nv_inference_request_summary_us_count{{{labels}}} 100",
        f"nv_inference_request_summary_us_sum{{{labels}}} 5050",
        f'nv_inference_request_summary_us{{{labels},quantile="0.1"}} 10.5',
        f'nv_inference_request_summary_us{{{labels},quantile="1"}} 102',
    ]
    assert 'nv_inference_queue_summary_us{model="simple",version="1",quantile="0.1"} NaN' in lines(state)
    assert "# TYPE nv_cache_hit_summary_per_model summary" in lines(state)


def test_counters_of_latencies_can_be_turned_off_and_the_others_go_on(
    state: ServerState, counters: CounterTable
) -> None:
    row = counters.row(3)
    row.cells[CELL["success_count"]] = 5
    row.publish()
    state.metrics_config = MetricsConfig(counter_latencies=False)
    found = lines(state)
    assert not [line for line in found if "_duration_us" in line or "_per_model" in line]
    assert 'nv_inference_request_success{model="simple",version="3"} 5' in found


def test_only_models_with_the_cache_have_its_counters(state: ServerState, make_message: Any) -> None:
    config = {"name": "cached", "max_batch_size": 0, "input": [], "output": []}
    state.models.apply(make_message("cached", 1, 2, config, is_cached=True))
    assert of("nv_cache_num_hits_per_model", lines(state)) == [
        'nv_cache_num_hits_per_model{model="cached",version="1"} 0'
    ]


def test_the_whole_cache_has_its_figures(state: ServerState, counters: CounterTable) -> None:
    figures = counters.cache_figures(total_bytes=4096)
    figures.update(num_lookups=7, num_hits=4, num_misses=3, lookup_ns=5_999, num_entries=2, used_bytes=1024)
    figures.publish()
    told = {"num_entries": 2, "num_lookups": 7, "num_hits": 4, "num_misses": 3, "num_evictions": 0}
    found = lines(state)
    for line in (*[f"nv_cache_{name} {number}" for name, number in told.items()], "nv_cache_util 0.25"):
        assert line in found
    assert of("nv_cache_lookup_duration", found) == ["nv_cache_lookup_duration 5.999"]
    assert dict(counters.cache_figures(8192)) == dict(figures, num_entries=0, used_bytes=0, total_bytes=8192)


def test_the_memory_of_models_is_printed_with_that_on_each_gpu(state: ServerState) -> None:
    memory = [
        {"model": "simple", "version": 3, "nbytes": 4096, "gpus": {"GPU-1": 1 << 30, "GPU-2": 7}},
        {"model": "other", "version": 1, "nbytes": 5, "gpus": {}},
    ]
    found = lines(state, ExternalFigures({**GAUGES, "memory": memory}, {}, ()))
    assert of("shoal_model_memory_bytes", found) == [
        'shoal_model_memory_bytes{model="simple",version="3"} 4096',
        'shoal_model_memory_bytes{model="other",version="1"} 5',
    ]
    assert of("shoal_model_gpu_memory_bytes", found) == [
        'shoal_model_gpu_memory_bytes{gpu_uuid="GPU-1",model="simple",version="3"} 1073741824',
        'shoal_model_gpu_memory_bytes{gpu_uuid="GPU-2",model="simple",version="3"} 7',
    ]


def test_what_the_supervisor_tells_is_printed(state: ServerState) -> None:
    found = lines(state, ExternalFigures(GAUGES, {}, ()))
    labels = 'device="CPU",model="simple",model_instance="simple_0_1",version="3"'
    for line in (
        f"shoal_instance_up{{{labels}}} 1",
        f"shoal_instance_busy_seconds_total{{{labels}}} 1.5",
        f"shoal_instance_executing_seconds{{{labels}}} 0",
        f"shoal_instance_batches_total{{{labels}}} 7",
        f"shoal_instance_restarts_total{{{labels}}} 2",
        f"shoal_instance_resident_memory_bytes{{{labels}}} 4096",
        f"shoal_instance_slab_used_bytes{{{labels}}} 8192",
        f"shoal_instance_slab_total_bytes{{{labels}}} 16384",
        f"shoal_instance_ring_used_ratio{{{labels}}} 0.25",
        'shoal_instance_up{device="CPU",model="simple",model_instance="simple_0_0",version="3"} 0',
        'shoal_instance_restarts_total{device="CPU",model="simple",model_instance="simple_0_0",version="3"} 5',
        'shoal_front_ends{process="http"} 2',
        'shoal_front_ends{process="road"} 1',
        'shoal_front_end_slab_used_bytes{process="http"} 5',
        'shoal_front_end_slab_total_bytes{process="http"} 20',
        'shoal_front_end_ring_used_ratio{process="http"} 0.5',
        "shoal_shared_memory_bytes 99",
        "shoal_batcher_takeovers_total 3",
        "shoal_record_lost_total 12",
        "shoal_requests_abandoned_total 6",
        'shoal_tls_handshakes_failed_total{protocol="http"} 7',
        'shoal_tls_handshakes_failed_total{protocol="grpc"} 8',
        'shoal_certificate_expiry_timestamp_seconds{protocol="http"} 1800000000',
        'shoal_certificate_expiry_timestamp_seconds{protocol="grpc"} 1900000000',
    ):
        assert found.count(line) == 1, line
    assert len(of("shoal_instance_busy_seconds_total", found)) == 1


def test_the_machine_is_told_of(state: ServerState) -> None:
    cpu = {"utilization": 0.125, "memory_total_bytes": 1024, "memory_used_bytes": 512}
    found = lines(state, ExternalFigures(None, cpu, (GPU, {"uuid": "GPU-2", "utilization": 0.0})))
    for line in (
        "nv_cpu_utilization 0.125",
        "nv_cpu_memory_total_bytes 1024",
        "nv_cpu_memory_used_bytes 512",
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5',
        'nv_gpu_utilization{gpu_uuid="GPU-2"} 0',
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 8',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 4',
        'nv_gpu_power_usage{gpu_uuid="GPU-1"} 70.5',
        'nv_gpu_power_limit{gpu_uuid="GPU-1"} 700',
        'nv_energy_consumption{gpu_uuid="GPU-1"} 12.25',
    ):
        assert found.count(line) == 1, line
    assert len(of("nv_energy_consumption", found)) == 1


def test_only_loaded_versions_have_series(state: ServerState) -> None:
    text = exposition(state, NOTHING, NOW_NS)
    assert 'model="simple",version="2"' not in text
    assert 'model="gone"' not in text
    assert 'model="broken"' not in text
    state.models.apply(ModelForgotten(name="simple", namespace="", version=3))
    assert 'model="simple",version="3"' not in exposition(state, NOTHING, NOW_NS)


def test_metric_tags_are_labels_and_escaped(state: ServerState) -> None:
    assert 'nv_inference_count{_team="a\\"b\\\\c\\nd",model="écho b",version="1"} 0' in lines(state)


@pytest.mark.parametrize("metrics_config", [MetricsConfig(), MetricsConfig(False, True, True)])
def test_prometheus_reads_it(state: ServerState, counters: CounterTable, metrics_config: MetricsConfig) -> None:
    row = counters.row(4)
    row.cells[CELL["inference_count"]] = 9
    row.cells[CELL["success_count"]] = 1
    row.publish()
    state.metrics_config = metrics_config
    text = exposition(state, ExternalFigures(GAUGES, {"utilization": 0.5}, (GPU,)), NOW_NS)
    read = {family.name: family for family in text_string_to_metric_families(text)}
    samples = [sample for sample in read["nv_inference_count"].samples if sample.labels["model"] == "écho b"]
    assert [(sample.value, sample.labels["_team"]) for sample in samples] == [(9.0, 'a"b\\c\nd')]
    for family in families.ALL:
        if family.name in read:
            own = {"le", "quantile", "_team"}
            labels = {frozenset(sample.labels) - own for sample in read[family.name].samples}
            assert labels <= {frozenset(family.labels)}, family


def test_models_own_families_are_printed_under_their_own_names(state: ServerState) -> None:
    gauges = {
        **GAUGES,
        "custom": [
            ["tokens", "counter", 'All\nof "them"\\', [[[], 3.0], [[["b", 'x"\n\\'], ["a", "1"]], 0.5]]],
            ["load", "gauge", "", [[[], float("inf")], [[["n", "2"]], float("-inf")], [[["n", "3"]], float("nan")]]],
            ["rows", "histogram", "Rows", [[[], [[1, 2.5], [4, 0, 1], 7.25]], [[["m", "a"]], [[], [2], 1e3]]]],
        ],
    }
    found = lines(state, NOTHING._replace(gauges=gauges))
    assert found[found.index('# HELP tokens All\\nof "them"\\\\') :] == [
        '# HELP tokens All\\nof "them"\\\\',
        "# TYPE tokens counter",
        "tokens 3",
        'tokens{a="1",b="x\\"\\n\\\\"} 0.5',
        "# HELP load ",
        "# TYPE load gauge",
        "load +Inf",
        'load{n="2"} -Inf',
        'load{n="3"} NaN',
        "# HELP rows Rows",
        "# TYPE rows histogram",
        "rows_count 5",
        "rows_sum 7.25",
        'rows_bucket{le="1"} 4',
        'rows_bucket{le="2.5"} 4',
        'rows_bucket{le="+Inf"} 5',
        'rows_count{m="a"} 2',
        'rows_sum{m="a"} 1000',
        'rows_bucket{m="a",le="+Inf"} 2',
    ]
    names = {family.name for family in text_string_to_metric_families("\n".join(found) + "\n")}
    assert {"tokens", "load", "rows"} <= names

"""/metrics of a real server: agrees with /v2/models/stats to the unit, and is read by Prometheus's own tools."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest

from shoal import __version__
from shoal import metric_families as families
from shoal.shm.windows import PHASES
from tests.end_to_end.asking import fetch
from tests.end_to_end.figures import Samples, exposition, samples
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, LOOK_AGAIN_S, SAMPLES, Server, only, serving_to_the_end

#: Ten thousand by hand; these suffice to mix everything with everything.
NUM_REQUESTS = 1500
NUM_THREADS = 4
FLAGS = (
    "--metrics-config=summary_latencies=true",
    "--metrics-config=histogram_latencies=true",
    "--metrics-interval-ms=0",
)
BATCHES = "shoal_instance_batches_total"


def identity(more: str) -> str:
    return config_text("identity", "A INT32 2", "B INT32 2", rows=4, count=1) + more


#: One that is soon full, one that batches, one with a tag and buckets of its own.
IDENTITIES = {
    "busy": identity(
        "dynamic_batching { default_queue_policy { max_queue_size: 1 } } "
        'parameters { key: "execute_delay_ms" value { string_value: "3" } }'
    ),
    "batching": identity("dynamic_batching { max_queue_delay_microseconds: 500 }"),
    "tagged": identity(
        'metric_tags { key: "team" value: "a" } model_metrics { metric_control { '
        'metric_identifier { family: "nv_inference_first_response_histogram_ms" } '
        "histogram_options { buckets: [ 0, 2.5 ] } } }"
    ),
}


def write_picky(directory: Path) -> None:
    """A model that fails where its input has not four elements."""
    shape = onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [2], [2, 2])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Reshape", ["A", "shape"], ["B"])],
        "picky",
        [onnx.helper.make_tensor_value_info("A", onnx.TensorProto.FLOAT, ["n"])],
        [onnx.helper.make_tensor_value_info("B", onnx.TensorProto.FLOAT, [2, 2])],
        [shape],
    )
    (directory / "1").mkdir(parents=True)
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), directory / "1" / "model.onnx")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for name, config in IDENTITIES.items():
        add_model(repository, name, config)
    write_picky(repository / "picky")
    with serving_to_the_end([SAMPLES, repository], *only("digits", "picky", *IDENTITIES), *FLAGS) as running:
        yield running


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> str:
    return json.dumps({"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]})


#: Model, body: what succeeds, what the backend refuses, what the queue refuses, what never gets so far.
REQUESTS = (
    ("batching", tensor("A", "INT32", [1, 2], [1, 2])),
    ("picky", tensor("A", "FP32", [4], [1, 2, 3, 4])),
    ("busy", tensor("A", "INT32", [1, 2], [1, 2])),
    ("batching", tensor("A", "INT32", [3, 2], [1, 2, 3, 4, 5, 6])),
    ("picky", tensor("A", "FP32", [3], [1, 2, 3])),
    ("busy", tensor("A", "INT32", [2, 2], [1, 2, 3, 4])),
    ("tagged", tensor("A", "INT32", [1, 2], [1, 2])),
    ("tagged", tensor("A", "INT32", [1, 3], [1, 2, 3])),
    ("tagged", "{"),
    ("nowhere", "{}"),
)


def ask_many(server: Server, first: int) -> Counter[tuple[str, int]]:
    """Every NUM_THREADS-th request from `first` on; how many of each model got which status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    found: Counter[tuple[str, int]] = Counter()
    for number in range(first, NUM_REQUESTS, NUM_THREADS):
        model, body = REQUESTS[number // NUM_THREADS % len(REQUESTS)]
        connection.request("POST", f"/v2/models/{model}/infer", body)
        response = connection.getresponse()
        response.read()
        found[model, response.status] += 1
    connection.close()
    return found


def by_model(found: Samples, name: str) -> Counter[str]:
    """The sums of a family's samples."""
    sums: Counter[str] = Counter()
    for (its, labels), value in found.items():
        if its == name:
            sums[dict(labels)["model"]] += int(value)
    return sums


def at_rest(server: Server) -> Samples:
    """With the supervisor's figures, without which a scrape is answered rather than late; each worker has put down its
    last batch, which it may after its answers."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = samples(exposition(server))
        executed, put_down = (by_model(found, name) for name in ("nv_inference_exec_count", BATCHES))
        if BATCHES in {name for name, _ in found} and executed == put_down:
            return found
        assert time.monotonic() < end, (executed, put_down)
        time.sleep(LOOK_AGAIN_S)


@pytest.fixture(scope="module")
def answered(server: Server) -> Counter[tuple[str, int]]:
    """How many requests to each model got which status."""
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return sum(threads.map(ask_many, [server] * NUM_THREADS, range(NUM_THREADS)), Counter())


def test_statistics_and_metrics_agree_to_the_unit(server: Server, answered: Counter[tuple[str, int]]) -> None:
    assert answered.total() == NUM_REQUESTS
    assert {status for _, status in answered} >= {200, 404, 500, 503}
    statistics = {row["name"]: row for row in fetch(server.http_port, "/v2/models/stats").json["model_stats"]}
    found = at_rest(server)
    for model, tags in {"batching": {}, "picky": {}, "busy": {}, "tagged": {"_team": "a"}}.items():
        row = statistics[model]
        labels = {"model": model, "version": "1", **tags}
        metrics = {name: value for (name, its), value in found.items() if its == frozenset(labels.items())}
        success, fail = row["inference_stats"]["success"]["count"], row["inference_stats"]["fail"]["count"]
        reasons = {
            reason: found["nv_inference_request_failure", frozenset({**labels, "reason": reason}.items())]
            for reason in families.FAILURE_CELLS
        }
        assert success == answered[model, 200]
        assert fail == sum(reasons.values())
        assert reasons["REJECTED"] == answered[model, 503]
        assert (reasons["BACKEND"] > 0) == (model == "picky")
        expected = {
            "nv_inference_request_success": success,
            "nv_inference_count": row["inference_count"],
            "nv_inference_exec_count": row["execution_count"],
            "nv_inference_pending_request_count": 0,
            "nv_inference_first_response_histogram_ms_count": success + fail,
            "shoal_queue_oldest_age_seconds": 0,
            "shoal_batch_rows_count": row["execution_count"],
            "shoal_batch_rows_sum": sum(
                batch["batch_size"] * batch["compute_infer"]["count"] for batch in row["batch_stats"]
            ),
        }
        for phase in PHASES:
            figures = row["inference_stats"]["success" if phase == "request" else phase]
            expected |= {
                f"nv_inference_{phase}_duration_us": figures["ns"] // 1000,
                f"nv_inference_{phase}_summary_us_count": figures["count"],
                f"nv_inference_{phase}_summary_us_sum": figures["ns"] // 1000,
                f"shoal_{phase}_duration_seconds_count": figures["count"],
                f"shoal_{phase}_duration_seconds_sum": figures["ns"] / 1e9,
            }
        assert {name: metrics[name] for name in expected} == expected
        assert by_model(found, BATCHES)[model] == row["execution_count"]


def test_quantiles_are_those_of_the_requests(server: Server, answered: Counter[tuple[str, int]]) -> None:
    assert answered
    found = samples(exposition(server))
    labels = {"model": "busy", "version": "1"}
    values = [
        found["nv_inference_compute_infer_summary_us", frozenset({**labels, "quantile": quantile}.items())]
        for quantile in ("0.5", "0.9", "0.95", "0.99", "0.999")
    ]
    assert values == sorted(values)
    assert values[0] >= 2_900  # it takes 3 ms
    digits = frozenset({"model": "digits", "version": "1", "quantile": "0.5"}.items())
    assert str(found["nv_inference_request_summary_us", digits]) == "nan"


def test_a_models_buckets_are_printed(server: Server) -> None:
    bounds = {
        dict(labels)["le"]
        for name, labels in samples(exposition(server))
        if name == "nv_inference_first_response_histogram_ms_bucket" and ("model", "tagged") in labels
    }
    assert bounds == {"0", "2.5", "+Inf"}


def test_every_family_has_the_labels_it_is_documented_with(server: Server) -> None:
    found = at_rest(server)
    for family in families.ALL:
        names = {family.name, *(f"{family.name}_{suffix}" for suffix in ("bucket", "count", "sum"))}
        labels = {frozenset(dict(labels)) - {"le", "quantile", "_team"} for name, labels in found if name in names}
        assert labels in ({frozenset(family.labels)}, set()), family
        may_lack = {"gpu_uuid", "api_key", "shadow_version"} & set(family.labels)
        of_few = (families.CERTIFICATE_EXPIRY, families.ROLLOUT_WEIGHT, families.ROLLOUT_STATE)
        if not (may_lack or family in of_few) and not family.name.startswith("nv_cache"):
            assert labels, family


def test_shoals_version_is_told_where_the_protocol_has_tritons(server: Server) -> None:
    assert fetch(server.http_port, "/v2").json["version"].startswith("2.")
    assert at_rest(server)["shoal_build_info", frozenset({("version", __version__)})] == 1


def test_a_workers_busy_time_and_memory_are_told(server: Server, answered: Counter[tuple[str, int]]) -> None:
    found = at_rest(server)
    labels = {"model": "busy", "version": "1", "model_instance": "busy_0_0", "device": "CPU"}

    def metric(name: str) -> float:
        return found[name, frozenset(labels.items())]

    batches = metric(BATCHES)
    assert metric("shoal_instance_up") == 1
    assert batches >= answered["busy", 200] / 2 > 0
    assert metric("shoal_instance_busy_seconds_total") >= 0.0029 * batches
    assert metric("shoal_instance_executing_seconds") == 0
    assert metric("shoal_instance_restarts_total") == 0
    assert metric("shoal_instance_resident_memory_bytes") > 1 << 20
    assert 0 <= metric("shoal_instance_slab_used_bytes") < metric("shoal_instance_slab_total_bytes")
    version = frozenset({("model", "busy"), ("version", "1")})
    assert 1 << 20 < found["shoal_model_memory_bytes", version] <= metric("shoal_instance_resident_memory_bytes")
    assert found["shoal_front_ends", frozenset({("process", "http")})] == 2
    assert found["shoal_front_ends", frozenset({("process", "road")})] == 1


# Only Debian's package has promtool. Without it the names are still held against a real server, and Prometheus's own
# client library reads the exposition, in the tests above.
@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="NOT CHECKED: the exposition by promtool, since it is not installed (Debian's package prometheus)",
)
def test_promtool_complains_of_tritons_names_only(server: Server, answered: Counter[tuple[str, int]]) -> None:
    assert answered
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition(server), capture_output=True, text=True, check=False
    )
    # 3: it has read everything, and finds fault with names; 1: it cannot read it.
    assert checked.returncode == 3, checked.stderr
    complaints = checked.stderr.splitlines()
    assert all(line.startswith("nv_") for line in complaints), checked.stderr


def test_a_supervisor_that_says_nothing_keeps_no_scrape_from_its_answer(server: Server) -> None:
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        found = {name for name, _ in samples(exposition(server))}
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert "nv_inference_request_success" in found
    assert "shoal_shared_memory_bytes" not in found
    assert "shoal_shared_memory_bytes" in {name for name, _ in at_rest(server)}

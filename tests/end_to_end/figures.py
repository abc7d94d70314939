"""What a server says of its models: samples of /metrics and statistics, read, and waited for."""

from typing import Any

import tritonclient.http as triton
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.asking import fetch
from tests.end_to_end.server import Server, wait_until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def metric(server: Server, name: str, **labels: str) -> float:
    """One sample of version 1 of a model."""
    samples = [sample for family in text_string_to_metric_families(exposition(server)) for sample in family.samples]
    # The parser gives counters the suffix of OpenMetrics, which Triton's names lack.
    wanted = [each for each in samples if each.name.removesuffix("_total") == name]
    (value,) = [each.value for each in wanted if each.labels == {**labels, "version": "1"}]
    return float(value)


def wait_for_pending(server: Server, model: str, count: int) -> None:
    """Return when so many requests are accepted and not executing."""

    def pending() -> float:
        return metric(server, "nv_inference_pending_request_count", model=model)

    wait_until(lambda: pending() == count, lambda: f"{pending()} requests of '{model}' pending, expected {count}")


def statistics(server: Server, model: str) -> dict[str, Any]:
    with triton.InferenceServerClient(server.url) as client:
        (found,) = client.get_inference_statistics(model)["model_stats"]
    return dict(found)


def exposition(server: Server) -> str:
    """The text of /metrics."""
    return fetch(server.metrics_port, "/metrics").body.decode()


def samples(text: str) -> Samples:
    """As Prometheus names them: the parser gives counters the suffix of OpenMetrics, which Triton's names lack."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            ((sample,),) = [family.samples for family in text_string_to_metric_families(line + "\n")]
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found

"""Metrics of handlers: their names, dimensions and kinds as they reach the server."""

import pytest
from ts.metrics.caching_metric import Sample
from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore

OWN = (("ModelName", "m"), ("Level", "Model"))


@pytest.fixture
def recorded() -> list[Sample]:
    return []


@pytest.fixture
def store(recorded: list[Sample]) -> MetricsStore:
    return MetricsStore({0: "r0"}, "m", recorded.append)


def test_a_value_has_the_models_dimensions_behind_the_handlers(store: MetricsStore, recorded: list[Sample]) -> None:
    store.add_time("thinking", 2.5, 0, "s", [Dimension("Stage", "first")])
    store.add_counter("seen", 3)
    assert recorded == [
        Sample("thinking", "Seconds", MetricTypes.GAUGE, (("Stage", "first"), *OWN), 2.5),
        Sample("seen", "Count", MetricTypes.COUNTER, OWN, 3),
    ]


def test_values_in_the_order_of_the_names_with_or_without_the_models(
    store: MetricsStore, recorded: list[Sample]
) -> None:
    metric = store.add_metric_to_cache("a", "MB", ["Kind"], MetricTypes.HISTOGRAM)
    assert store.add_metric_to_cache("a", "MB", ["Kind"], MetricTypes.HISTOGRAM) is metric
    assert store.get_metric("a", MetricTypes.HISTOGRAM) is metric
    metric.add_or_update(1, ["x"])
    metric.add_or_update(1, ["x", "other", "Host"])
    given = store.add_metric_to_cache("b", "ms", ["ModelName", "Level"], MetricTypes.GAUGE)
    given.add_or_update(1, ["mine", "Model"])
    assert [sample.dimensions for sample in recorded] == [
        (("Kind", "x"), *OWN),
        (("Kind", "x"), ("ModelName", "other"), ("Level", "Host")),
        (("ModelName", "mine"), ("Level", "Model")),
    ]


def test_dimensions_that_are_given_as_objects_may_have_any_order(store: MetricsStore, recorded: list[Sample]) -> None:
    store.add_metric_to_cache("t", "ms", ["Level", "Stage", "ModelName"], MetricTypes.GAUGE)  # as metrics.yaml may
    store.add_time("t", 1, dimensions=[Dimension("Stage", "first")])
    store.get_metric("t", MetricTypes.GAUGE).add_or_update(2, ["Model", "second", "m"])
    assert [sample.dimensions for sample in recorded] == [
        (("Level", "Model"), ("Stage", "first"), ("ModelName", "m")),
        (("Level", "Model"), ("Stage", "second"), ("ModelName", "m")),
    ]
    with pytest.raises(ValueError, match="has the dimensions"):
        store.add_time("t", 1, dimensions=[Dimension("Other", "x")])
    assert len(recorded) == 2


def test_wrong_uses_change_nothing(store: MetricsStore, recorded: list[Sample]) -> None:
    metric = store.add_metric_to_cache("a", "count", ["Kind"])
    with pytest.raises(ValueError, match="has the dimensions"):
        metric.add_or_update(1, ["x", "y"])
    with pytest.raises(ValueError, match="can only grow"):
        metric.add_or_update(-1, ["x"])
    with pytest.raises(ValueError, match="must be one of ms, s"):
        store.add_time("t", 1, unit="min")
    with pytest.raises(ValueError, match="must be one of MB"):
        store.add_size("t", 1, unit="TB")
    with pytest.raises(KeyError, match="there is no gauge 'a'"):
        store.get_metric("a", MetricTypes.GAUGE)
    with pytest.raises(TypeError, match="must be one of MetricTypes"):
        store.add_metric_to_cache("b", "ms", [], "gauge")  # type: ignore[arg-type]
    assert recorded == []
    assert store.store == [metric]


def test_an_old_metric_prints_as_a_line_of_the_log() -> None:
    metric = Metric("n", 1, "ms", [Dimension("a", "b"), Dimension("c", "d")], "r1", "counter")
    metric.update(2)
    text = str(metric)
    assert text.startswith("n.Milliseconds:3|#a:b,c:d|#hostname:")
    assert text.endswith(",r1")
    assert metric.to_dict()["Dimensions"] == [{"Name": "a", "Value": "b"}, {"Name": "c", "Value": "d"}]

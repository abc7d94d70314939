"""custom_metrics.py: instances' reports become one total, whatever they report when, and whichever dies."""

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_python_backend_utils.metric_registry import MetricRegistry
from triton_python_backend_utils.metrics import MetricFamily, set_registry

from shoal.supervisor.questions.custom_metrics import MAX_SERIES, CustomMetrics

MODEL, OTHER = 3, 4


def change(name: Any, kind: Any, what: Any, labels: Any = ()) -> Any:
    return [name, kind, "text", [[labels, what]]]


def values(metrics: CustomMetrics) -> dict[str, dict[Any, Any]]:
    return {name: {tuple(labels): figures for labels, figures in series} for name, _, _, series in metrics.values()}


def test_counters_add_up_and_outlive_who_counted() -> None:
    metrics = CustomMetrics(())
    metrics.add(MODEL, 1, [change("n", "counter", 2.0, [["a", "x"]])])
    metrics.add(MODEL, 2, [change("n", "counter", 0.5, [["a", "x"]]), change("n", "counter", 1.0, [["a", "y"]])])
    metrics.leave(1)
    assert metrics.values() == [["n", "counter", "text", [[(("a", "x"),), 2.5], [(("a", "y"),), 1.0]]]]


def test_histograms_add_up_where_their_buckets_are_the_same() -> None:
    metrics = CustomMetrics(())
    metrics.add(MODEL, 1, [change("h", "histogram", [[1, 5], [1, 0, 2], 20.0])])
    metrics.add(MODEL, 2, [change("h", "histogram", [[1, 5], [0, 1, 0], 3.0])])
    metrics.add(MODEL, 2, [change("h", "histogram", [[1, 6], [9, 9, 9], 9.0])])
    metrics.leave(2)
    assert values(metrics) == {"h": {(): ((1, 5), [1, 1, 2], 23.0)}}


def test_a_gauge_is_what_was_set_last_and_what_was_added_since() -> None:
    metrics = CustomMetrics(())
    for instance, what, value in [
        (1, (None, 2.0), 2.0),
        (2, (None, 3.0), 5.0),
        (1, (7.0, 1.0), 8.0),
        (2, (None, -3.0), 5.0),
    ]:
        metrics.add(MODEL, instance, [change("g", "gauge", what)])
        assert values(metrics) == {"g": {(): value}}


def test_what_a_dead_instance_had_added_to_a_gauge_goes_and_what_it_had_set_stays() -> None:
    metrics = CustomMetrics(())
    metrics.add(MODEL, 1, [change("in_flight", "gauge", (None, 4.0)), change("size", "gauge", (9.0, 1.0))])
    metrics.add(MODEL, 2, [change("in_flight", "gauge", (None, 1.0))])
    metrics.leave(1)
    metrics.leave(1)
    metrics.leave(3)
    assert values(metrics) == {"in_flight": {(): 1.0}, "size": {(): 9.0}}


def test_series_go_with_the_last_model_that_has_a_part_in_them() -> None:
    metrics = CustomMetrics(())
    metrics.add(MODEL, 1, [change("shared", "counter", 1.0), change("own", "counter", 1.0)])
    metrics.add(OTHER, 2, [change("shared", "counter", 1.0), change("shared", "counter", 1.0, [["o", ""]])])
    metrics.forget(MODEL)
    metrics.leave(1)
    assert values(metrics) == {"shared": {(): 2.0, (("o", ""),): 1.0}}
    metrics.forget(OTHER)
    metrics.forget(5)
    assert metrics.values() == []


def test_a_series_that_is_deleted_goes_with_the_last_instance_that_has_it() -> None:
    metrics = CustomMetrics(())
    for instance, model in ((1, MODEL), (2, MODEL), (3, OTHER)):
        metrics.add(model, instance, [change("shared", "counter", 1.0), change("in_flight", "gauge", (None, 1.0))])
    metrics.leave(3)
    ended = [change("shared", "counter", None), change("in_flight", "gauge", None), change("none", "gauge", None)]
    metrics.add(MODEL, 1, ended)
    metrics.add(MODEL, 1, ended)
    assert values(metrics) == {"shared": {(): 3.0}, "in_flight": {(): 1.0}}
    metrics.add(MODEL, 2, ended)
    assert values(metrics) == {"shared": {(): 3.0}, "in_flight": {(): 0.0}}  # the other model's
    metrics.forget(OTHER)
    assert metrics.values() == []
    assert metrics.has_reported(2)
    assert not metrics.has_reported(3)


def test_a_deleted_name_may_be_of_another_kind_at_once() -> None:
    metrics = CustomMetrics(())
    metrics.add(MODEL, 1, [change("n", "counter", 1.0)])
    metrics.add(MODEL, 1, [change("n", "counter", None), change("n", "gauge", (4.0, 0.0))])
    assert values(metrics) == {"n": {(): 4.0}}
    metrics.forget(MODEL)
    metrics.add(MODEL, 1, [change("n", "gauge", None)])
    assert metrics.values() == []


def test_a_name_has_one_kind_and_the_servers_names_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    metrics = CustomMetrics({"nv_inference_count"})
    metrics.add(MODEL, 1, [change("n", "counter", 1.0)])
    for _ in range(2):
        metrics.add(OTHER, 2, [change("n", "gauge", (1.0, 0.0)), change("nv_inference_count", "counter", 1.0)])
    assert values(metrics) == {"n": {(): 1.0}}
    assert [record.getMessage() for record in caplog.records] == [
        "/metrics does not show all of a model's metric family 'n': another model has made it a counter, not a gauge",
        "/metrics does not show all of a model's metric family 'nv_inference_count': the server has a family of that "
        "name itself",
    ]


def test_a_model_has_so_many_series_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    metrics = CustomMetrics(())
    with caplog.at_level(logging.WARNING):
        for instance, ids in ((1, range(600)), (2, range(500, 1100))):
            metrics.add(MODEL, instance, [change("n", "counter", 1.0, [["id", str(each)]]) for each in ids])
    assert len(values(metrics)["n"]) == MAX_SERIES
    assert values(metrics)["n"][("id", "550"),] == 2.0
    assert len(caplog.records) == 1
    metrics.add(OTHER, 3, [change("n", "counter", 1.0, [["id", "other"]])])
    assert len(values(metrics)["n"]) == MAX_SERIES + 1


def test_a_family_of_which_nothing_is_shown_is_no_family() -> None:
    metrics = CustomMetrics(())
    metrics.add(MODEL, 1, [change("n", "counter", 1.0, [["id", str(each)]]) for each in range(MAX_SERIES)])
    metrics.add(MODEL, 1, [change("late", "counter", 1.0), ["empty", "counter", "text", []]])
    metrics.add(OTHER, 2, [change("late", "gauge", (1.0, 0.0)), change("empty", "gauge", (2.0, 0.0))])
    assert values(metrics)["late"] == {(): 1.0}
    assert values(metrics)["empty"] == {(): 2.0}
    metrics.forget(MODEL)
    metrics.forget(OTHER)
    assert metrics._families == {}


TOO_LONG = 4097 * "x"


@pytest.mark.parametrize(
    "families",
    [
        None,
        7,
        "families",
        [None],
        ["n"],
        [["n", "counter", "text"]],
        [change("no name", "counter", 1.0)],
        [change('n{a="b"} 1\nother', "counter", 1.0)],
        [change(b"n", "counter", 1.0)],
        [change(TOO_LONG, "counter", 1.0)],
        [change("n", "summary", 1.0)],
        [change("n", [], 1.0)],
        [["n", "counter", None, []]],
        [["n", "counter", TOO_LONG, []]],
        [["n", "counter", "text", None]],
        [["n", "counter", "text", [[]]]],
        [change("n", "counter", "many")],
        [change("n", "counter", [1.0])],
        [change("n", "counter", 1.0, [["a"]])],
        [change("n", "counter", 1.0, [["a", 1]])],
        [change("n", "counter", 1.0, [[1, "x"]])],
        [change("n", "counter", 1.0, [["__a", "x"]])],
        [change("n", "counter", 1.0, [["a", TOO_LONG]])],
        [change("n", "histogram", [[1], [1, 0], 1.0], [["le", "1"]])],
        [change("n", "gauge", 1.0)],
        [change("n", "gauge", (None, None))],
        [change("n", "histogram", 1.0)],
        [change("n", "histogram", [[1], [1], 1.0])],
        [change("n", "histogram", [[2, 1], [1, 0, 0], 1.0])],
        [change("n", "histogram", [[math.inf], [1, 0], 1.0])],
        [change("n", "histogram", [[math.nan], [1, 0], 1.0])],
        [change("n", "histogram", [[1], [math.inf, 0], 1.0])],
        [change("n", "histogram", [[1], [-1, 0], 1.0])],
        [change("n", "histogram", [[1], [2**63, 0], 1.0])],
        [change("n", "histogram", [list(range(201)), 202 * [0], 1.0])],
    ],
)
def test_what_is_no_report_is_refused_whole_and_said_once(families: Any, caplog: pytest.LogCaptureFixture) -> None:
    metrics = CustomMetrics(())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            metrics.add(MODEL, 1, families)
            if isinstance(families, list):
                metrics.add(MODEL, 1, [change("good", "counter", 1.0), *families])
    assert metrics.values() == []
    assert len(caplog.records) == 1
    assert (
        caplog.records[0]
        .getMessage()
        .startswith("/metrics does not show all of a model's metrics: what instance 1 says is no report of any, by ")
    )
    metrics.add(MODEL, 1, [change("good", "counter", 1.0)])
    assert values(metrics) == {"good": {(): 1.0}}


def test_a_label_comes_once_and_in_any_order() -> None:
    metrics = CustomMetrics(())
    for labels in ([["a", "x"], ["b", "y"]], [["b", "y"], ["a", "x"]], [["a", "z"], ["b", "y"], ["a", "x"]]):
        metrics.add(MODEL, 1, [change("n", "counter", 1.0, labels)])
    assert values(metrics) == {"n": {(("a", "x"), ("b", "y")): 3.0}}


#: (instance, what it does, the figure); a report of what has changed comes in between, or does not.
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["increment", "set", "observe", "report"]), st.integers(0, 9)),
    max_size=60,
)


class Made:
    """A counter, a gauge and a histogram of one instance, whose families live as long as this."""

    def __init__(self, registry: MetricRegistry) -> None:
        set_registry(registry)
        kinds = ("c", MetricFamily.COUNTER), ("g", MetricFamily.GAUGE), ("h", MetricFamily.HISTOGRAM)
        self.families = [MetricFamily(name, "text", kind) for name, kind in kinds]
        self.counter, self.gauge = self.families[0].Metric(), self.families[1].Metric()
        self.histogram = self.families[2].Metric(buckets=[2, 5])


@given(STEPS)
def test_the_total_does_not_depend_on_when_was_reported(steps: list[tuple[int, str, int]]) -> None:
    registries = [MetricRegistry() for _ in range(3)]
    made = [Made(registry) for registry in registries]
    metrics = CustomMetrics(())
    counted, observed = 0, list[int]()
    for instance, verb, figure in steps:
        if verb == "increment":
            made[instance].counter.increment(figure)
            made[instance].gauge.increment(-figure)
            counted += figure
        elif verb == "set":
            made[instance].gauge.set(figure)
        elif verb == "observe":
            made[instance].histogram.observe(figure)
            observed.append(figure)
        else:
            metrics.add(MODEL, instance, registries[instance].take_changes())
    for instance, registry in enumerate(registries):
        metrics.add(MODEL, instance, registry.take_changes())
    counts = [
        sum(each <= 2 for each in observed),
        sum(2 < each <= 5 for each in observed),
        sum(each > 5 for each in observed),
    ]
    shown = values(metrics)
    assert (shown["c"], shown["h"]) == ({(): counted}, {(): ((2, 5), counts, sum(observed))})


@given(STEPS)
def test_a_gauge_of_one_instance_is_what_the_instance_says(steps: list[tuple[int, str, int]]) -> None:
    registry = MetricRegistry()
    made = Made(registry)
    gauge = made.gauge
    metrics = CustomMetrics(())
    for _, verb, figure in steps:
        if verb == "increment":
            gauge.increment(-figure)
        elif verb == "set":
            gauge.set(figure)
        else:
            metrics.add(MODEL, 1, registry.take_changes())
            assert values(metrics)["g"] == {(): gauge.value()}

"""metrics.py: the figures of a model's own, Triton's sentences, and what a server hears of changes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from triton_python_backend_utils import metrics
from triton_python_backend_utils.errors import TritonModelException
from triton_python_backend_utils.metric_registry import MAX_SERIES, MetricRegistry
from triton_python_backend_utils.metrics import MetricFamily, set_registry

NAN = float("nan")


@pytest.fixture(autouse=True)
def registry() -> Iterator[MetricRegistry]:
    before = metrics.registry
    made = MetricRegistry()
    set_registry(made)
    yield made
    _KEPT.clear()
    set_registry(before)


_KEPT = list[MetricFamily]()  # a family's metrics go with it


def family(kind: Any, name: str = "tokens", description: str = "Tokens") -> MetricFamily:
    made = MetricFamily(name=name, description=description, kind=kind)
    _KEPT.append(made)
    return made


def test_a_counter_counts_and_tells_by_how_much(registry: MetricRegistry) -> None:
    counter = family(MetricFamily.COUNTER).Metric(labels={"model": "m", "device": "cpu"})
    assert counter.value() == 0.0
    labels = (("device", "cpu"), ("model", "m"))
    assert registry.take_changes() == [["tokens", "counter", "Tokens", [[labels, 0.0]]]]
    counter.increment(2)
    counter.increment(0.5)
    assert counter.value() == 2.5
    assert registry.take_changes() == [["tokens", "counter", "Tokens", [[labels, 2.5]]]]
    assert registry.take_changes() == []


def test_a_gauge_tells_what_it_was_set_to_and_what_came_after(registry: MetricRegistry) -> None:
    gauge = family(MetricFamily.GAUGE).Metric()
    gauge.increment(3)
    gauge.set(10)
    gauge.increment(-4)
    assert gauge.value() == 6.0
    assert registry.take_changes() == [["tokens", "gauge", "Tokens", [[(), (10.0, -4.0)]]]]
    gauge.increment(1)
    assert registry.take_changes() == [["tokens", "gauge", "Tokens", [[(), (None, 1.0)]]]]


def test_a_histogram_counts_what_is_not_above_its_bounds(registry: MetricRegistry) -> None:
    histogram = family(MetricFamily.HISTOGRAM).Metric(buckets=[0.1, 1.0, float("inf")])
    for value in (0.1, 0.11, 1.0, 7):
        histogram.observe(value)
    assert registry.take_changes() == [
        ["tokens", "histogram", "Tokens", [[(), ((0.1, 1.0), [1, 2, 1], pytest.approx(8.21))]]]
    ]


def test_the_same_labels_are_the_same_metric(registry: MetricRegistry) -> None:
    counters = [
        family(MetricFamily.COUNTER).Metric({"a": "1", "b": "2"}),
        family(MetricFamily.COUNTER).Metric({"b": "2", "a": "1"}),
    ]
    for counter in counters:
        counter.increment(1)
    assert [counter.value() for counter in counters] == [2.0, 2.0]
    assert registry.take_changes() == [["tokens", "counter", "Tokens", [[(("a", "1"), ("b", "2")), 2.0]]]]


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        ("COUNTER", "set"),
        ("COUNTER", "observe"),
        ("GAUGE", "observe"),
        ("HISTOGRAM", "set"),
        ("HISTOGRAM", "increment"),
    ],
)
def test_what_a_kind_cannot_do(registry: MetricRegistry, kind: str, verb: str) -> None:
    metric = family(getattr(MetricFamily, kind)).Metric(buckets=[1] if kind == "HISTOGRAM" else None)
    registry.take_changes()
    with pytest.raises(TritonModelException) as caught:
        getattr(metric, verb)(1)
    assert str(caught.value) == (
        f"Failed to {verb} metric value: TRITONSERVER_METRIC_KIND_{kind} does not support {verb.title()}"
    )
    assert registry.take_changes() == []


def test_a_counter_does_not_go_down(registry: MetricRegistry) -> None:
    counter = family(MetricFamily.COUNTER).Metric()
    with pytest.raises(TritonModelException) as caught:
        counter.increment(-1)
    assert str(caught.value) == (
        "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by "
        "non-negative values."
    )
    assert counter.value() == 0.0


def test_a_histogram_has_no_single_value() -> None:
    with pytest.raises(TritonModelException, match=r"^Failed to get metric value: .*_HISTOGRAM does not .* Value$"):
        family(MetricFamily.HISTOGRAM).Metric(buckets=[1]).value()


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [
        ("COUNTER", {"labels": [("a", "b")]}, "Failed to create metric. Labels must be a dictionary."),
        ("COUNTER", {"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        ("GAUGE", {"buckets": []}, "Failed to create metric. Unexpected buckets found."),
        ("HISTOGRAM", {}, "Failed to create metric. Missing required buckets."),
        ("HISTOGRAM", {"buckets": (1, 2)}, "Failed to create metric. Buckets must be a list."),
        ("HISTOGRAM", {"buckets": [1, 1]}, "Error when creating Metric: Bucket Boundaries must be strictly sorted"),
        ("HISTOGRAM", {"buckets": [2, 1]}, "Error when creating Metric: Bucket Boundaries must be strictly sorted"),
        ("HISTOGRAM", {"buckets": list(range(201))}, "Error when creating Metric: more than 200 buckets"),
        ("HISTOGRAM", {"buckets": [1], "labels": {"le": "x"}}, "Error when creating Metric: Invalid label name 'le'"),
        ("GAUGE", {"labels": {"a-b": "x"}}, "Error when creating Metric: Invalid label name 'a-b'"),
        ("GAUGE", {"labels": {"__a": "x"}}, "Error when creating Metric: Invalid label name '__a'"),
        ("GAUGE", {"labels": {"a": 1}}, "Error when creating Metric: attempt to access JSON non-string as string"),
        (
            "GAUGE",
            {"labels": {"a": "\udcff"}},
            "Error when creating Metric: the value of label 'a' is not valid Unicode",
        ),
        ("HISTOGRAM", {"buckets": [NAN]}, "Error when creating Metric: Bucket Boundaries must be strictly sorted"),
        ("GAUGE", {"labels": {"a": "x" * 4096}}, "Error when creating Metric: labels of more than 4096 characters"),
    ],
)
def test_labels_and_buckets_are_checked(
    registry: MetricRegistry, kind: str, arguments: dict[str, Any], sentence: str
) -> None:
    made = family(getattr(MetricFamily, kind))
    with pytest.raises(TritonModelException) as caught:
        made.Metric(**arguments)
    assert str(caught.value) == sentence
    assert registry.take_changes() == []


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "é"])
def test_names_are_prometheus_names(name: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        family(MetricFamily.COUNTER, name)
    assert str(caught.value) == f"Error when creating MetricFamily: Invalid metric name '{name}'"


def test_a_description_can_be_sent(registry: MetricRegistry) -> None:
    with pytest.raises(TritonModelException) as caught:
        family(MetricFamily.COUNTER, description="half a pair: \ud83d")
    assert str(caught.value) == "Error when creating MetricFamily: the description of 'tokens' is not valid Unicode"
    with pytest.raises(TritonModelException) as caught:
        family(MetricFamily.COUNTER, description=4091 * "x")
    assert str(caught.value) == "Error when creating MetricFamily: name and description of more than 4096 characters"
    family(MetricFamily.COUNTER, description="\U0001f600").Metric()  # and nothing is left of the others
    assert registry.take_changes() == [["tokens", "counter", "\U0001f600", [[(), 0.0]]]]


def test_a_kind_is_one_of_the_three() -> None:
    with pytest.raises(TypeError, match=r"^Error when creating MetricFamily: Unknown metric kind 'counter': "):
        family("counter")
    assert MetricFamily.MetricKind.GAUGE is MetricFamily.GAUGE


def test_the_first_family_of_a_name_describes_it(registry: MetricRegistry) -> None:
    first, second = family(MetricFamily.COUNTER), family(MetricFamily.COUNTER, description="Words")
    counters = first.Metric(), second.Metric()
    counters[0].increment(1)
    assert counters[1].value() == 1.0
    assert registry.take_changes() == [["tokens", "counter", "Tokens", [[(), 1.0]]]]


def test_series_go_with_the_last_family_object_that_has_them(registry: MetricRegistry) -> None:
    first, second = (MetricFamily("tokens", "Tokens", MetricFamily.COUNTER) for _ in range(2))
    metrics = [first.Metric({"a": "1"}), first.Metric({"a": "2"}), second.Metric({"a": "2"})]
    for metric in metrics:
        metric.increment(1)
    one, two = (("a", "1"),), (("a", "2"),)
    assert registry.take_changes() == [["tokens", "counter", "Tokens", [[one, 1.0], [two, 2.0]]]]
    metrics[0].increment(3)
    del first
    for call in (metrics[0].value, lambda: metrics[1].increment(1)):
        with pytest.raises(
            TritonModelException, match=r"^Invalid metric operation as the corresponding 'MetricFamily'"
        ):
            call()
    assert metrics[2].value() == 2.0
    assert registry.take_changes() == [["tokens", "counter", "Tokens", [[one, 3.0], [one, None]]]]
    del second
    again = family(MetricFamily.GAUGE, description="Of another kind").Metric({"a": "2"})
    assert again.value() == 0.0
    assert registry.take_changes() == [
        ["tokens", "counter", "Tokens", [[two, None]]],
        ["tokens", "gauge", "Of another kind", [[two, (None, 0.0)]]],
    ]


def test_a_family_that_goes_while_the_lock_is_held_waits_for_nothing(registry: MetricRegistry) -> None:
    made = MetricFamily("tokens", "Tokens", MetricFamily.COUNTER)
    made.Metric()
    registry.take_changes()
    gone = threading.Event()
    with registry.lock:

        def let_go(held: list[MetricFamily]) -> None:
            held.clear()
            gone.set()

        thread = threading.Thread(target=let_go, args=([made],))
        del made
        thread.start()
        assert gone.wait(10)
    thread.join()
    assert registry.take_changes() == [["tokens", "counter", "Tokens", [[(), None]]]]


def test_a_name_has_one_kind() -> None:
    family(MetricFamily.COUNTER)
    with pytest.raises(TritonModelException) as caught:
        family(MetricFamily.GAUGE)
    assert str(caught.value) == (
        "Error when creating MetricFamily: metric family 'tokens' exists already, as counter with the description "
        "'Tokens'"
    )


def test_series_without_end_are_counted_here_and_reported_no_more(
    registry: MetricRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    made = family(MetricFamily.COUNTER)
    for number in range(MAX_SERIES + 5):
        counter = made.Metric({"request": str(number)})
        counter.increment(1)
        assert counter.value() == 1.0
    ((_, _, _, series),) = registry.take_changes()
    assert len(series) == MAX_SERIES
    assert len(caplog.records) == 1


def test_the_first_change_calls_and_the_next_ones_do_not(registry: MetricRegistry) -> None:
    calls = list[int]()
    registry.on_change = lambda: calls.append(1)
    counter = family(MetricFamily.COUNTER).Metric()
    counter.increment(1)
    assert len(calls) == 1
    registry.take_changes()
    counter.increment(1)
    counter.increment(1)
    assert len(calls) == 2


def test_no_change_of_any_thread_is_lost(registry: MetricRegistry) -> None:
    counter = family(MetricFamily.COUNTER).Metric()

    def count() -> None:
        for _ in range(2000):
            counter.increment(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    total = 0.0
    while any(thread.is_alive() for thread in threads):
        total += sum(change for _, _, _, series in registry.take_changes() for _, change in series)
    total += sum(change for _, _, _, series in registry.take_changes() for _, change in series)
    assert total == counter.value() == 8000.0

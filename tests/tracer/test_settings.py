"""Layers of settings: what a client may say, what that comes to, and what of it counts on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnsupportedError
from shoal.tracer.settings import GLOBAL, OFF, TENSORS, TIMESTAMPS, TraceSetting, TraceSettings, describe, read_changes

AT_START = TraceSetting(level=TIMESTAMPS, rate=10, count=5, log_frequency=2, file="trace.json")
EMPTY = TraceSetting()


def fields(setting: TraceSetting) -> tuple[int, int, int, int]:
    return setting.level, setting.rate, setting.count, setting.log_frequency


# ---------------------------------------------------------------------------------------------------------------
# What clients send


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ({}, {}),
        ({"trace_mode": "opentelemetry", "color": 1}, {}),
        ({"trace_level": ["TIMESTAMPS"]}, {"level": 1}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS", "TENSORS"]}, {"level": 3}),
        ({"trace_level": ["OFF"]}, {"level": 0}),
        ({"trace_level": ["LOUD", "TENSORS"]}, {"level": 2}),
        ({"trace_level": ["LOUD"]}, {}),
        ({"trace_level": []}, {}),
        ({"trace_rate": "1", "trace_count": "-1", "log_frequency": "0"}, {"rate": 1, "count": -1, "log_frequency": 0}),
        ({"trace_rate": " +007x"}, {"rate": 7}),
        ({"trace_rate": "4294967295", "trace_count": "2147483647"}, {"rate": 4294967295, "count": 2147483647}),
        (
            dict.fromkeys(["trace_level", "trace_rate", "trace_count", "log_frequency"]),
            dict.fromkeys(["level", "rate", "count", "log_frequency"]),
        ),
    ],
)
def test_what_is_understood(body: dict[str, Any], changes: dict[str, Any]) -> None:
    assert read_changes(body) == changes


RANGE = "value is out of range [ 0, 4294967295 ], got: "


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        ([], InternalError, "attempt to get members for non-object"),
        ({"trace_file": None}, UnsupportedError, "trace file location can not be updated through network protocol"),
        ({"trace_level": "OFF"}, InternalError, "attempt to access JSON non-array as array"),
        ({"trace_level": [1]}, InternalError, "attempt to access JSON non-string as string"),
        ({"trace_level": ["OFF", "OFF"]}, InvalidArgumentError, "Expect only one trace level 'OFF' is specified"),
        ({"trace_level": ["LOUD", "OFF"]}, InvalidArgumentError, "Expect only one trace level 'OFF' is specified"),
        ({"trace_rate": 1}, InternalError, "attempt to access JSON non-string as string"),
        ({"trace_rate": "often"}, InvalidArgumentError, "Unable to parse 'trace_rate', got: often"),
        ({"trace_rate": "-1"}, InvalidArgumentError, f"Unable to parse 'trace_rate', {RANGE}-1"),
        ({"trace_rate": "4294967296"}, InvalidArgumentError, f"Unable to parse 'trace_rate', {RANGE}4294967296"),
        ({"log_frequency": ""}, InvalidArgumentError, "Unable to parse 'log_frequency', got: "),
        ({"trace_count": "-2"}, InvalidArgumentError, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (
            {"trace_count": "2147483648"},
            InvalidArgumentError,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648",
        ),
        (
            {"trace_rate": "9" * 5000},
            InvalidArgumentError,
            f"Unable to parse 'trace_rate', {RANGE}{'9' * 5000}",
        ),
    ],
)
def test_what_is_refused(body: Any, kind: type[ShoalError], sentence: str) -> None:
    with pytest.raises(ShoalError) as refusal:
        read_changes(body)
    assert (type(refusal.value), str(refusal.value)) == (kind, sentence)


def test_the_reply_has_strings_and_what_its_mode_has() -> None:
    assert list(describe(AT_START, {"url": "x"}).items()) == [
        ("trace_level", ["TIMESTAMPS"]), ("trace_rate", "10"), ("trace_count", "5"), ("log_frequency", "2"),
        ("trace_file", "trace.json"), ("trace_mode", "triton"),
    ]  # fmt: skip
    assert describe(TraceSetting(level=TIMESTAMPS | TENSORS, mode="opentelemetry"), {"url": "x"}) == {
        "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1000", "trace_count": "-1",
        "trace_mode": "opentelemetry", "url": "x",
    }  # fmt: skip
    assert describe(EMPTY, {})["trace_level"] == ["OFF"]


def test_the_reply_has_no_password() -> None:
    exported = describe(TraceSetting(mode="opentelemetry"), {"url": "http://user:secret@host:4318/v1/traces"})
    assert exported["url"] == "http://user:***@host:4318/v1/traces"


# ---------------------------------------------------------------------------------------------------------------
# Layers


def test_a_model_goes_before_the_runtime_and_that_before_the_start() -> None:
    settings = TraceSettings(AT_START)
    settings.change(GLOBAL, {"rate": 20})
    settings.change("m", {"level": TENSORS})
    assert fields(settings.of("m")) == (TENSORS, 20, 5, 2)
    settings.change(GLOBAL, {"rate": 30, "log_frequency": 3})
    assert fields(settings.of("m")) == (TENSORS, 30, 5, 3)
    settings.change("m", {"rate": 1})
    settings.change(GLOBAL, {"rate": None})
    assert fields(settings.of("m")) == (TENSORS, 1, 5, 3)
    assert fields(settings.of("other")) == (TIMESTAMPS, 10, 5, 3)
    settings.change("m", {"rate": None, "level": None})
    assert settings.of("m") is settings.of("other")
    assert settings.in_force.keys() == {GLOBAL}


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "level": st.none() | st.integers(0, 3),
        "rate": st.none() | st.integers(1, 9),
        "count": st.none() | st.integers(-1, 9),
        "log_frequency": st.none() | st.integers(0, 9),
    },
)


@given(st.lists(st.tuples(st.sampled_from([GLOBAL, "a", "b"]), CHANGES), max_size=12))
def test_what_holds_is_the_last_word_of_the_nearest_layer(said: list[tuple[str, dict[str, Any]]]) -> None:
    settings = TraceSettings(AT_START)
    layers: dict[str, dict[str, Any]] = {GLOBAL: {}, "a": {}, "b": {}}
    for model, changes in said:
        before = settings.of(model).revision
        settings.change(model, changes)
        assert settings.of(model).revision != before or not any(layers[model].values())
        layers[model] |= changes
        for name, layer in layers.items():
            for field in ("level", "rate", "count", "log_frequency"):
                nearest = [each[field] for each in (layer, layers[GLOBAL]) if each.get(field) is not None]
                assert getattr(settings.of(name), field) == [*nearest, getattr(AT_START, field)][0]
        assert len({setting.revision for setting in settings.in_force.values()}) == len(settings.in_force)


@pytest.mark.parametrize(
    ("at_start", "changes", "reason"),
    [
        (AT_START, {"rate": 0}, "sample rate must be non-zero"),
        (EMPTY, {"level": TIMESTAMPS}, "trace file name is not given"),
        (EMPTY, {"level": TENSORS, "rate": 0}, "sample rate must be non-zero"),
    ],
)
@pytest.mark.parametrize("model", [GLOBAL, "m"])
def test_what_cannot_be_traced_is_refused_and_changes_nothing(
    at_start: TraceSetting, changes: dict[str, Any], reason: str, model: str
) -> None:
    settings = TraceSettings(at_start)
    before = dict(settings.in_force)
    with pytest.raises(InvalidArgumentError, match=f"^Attempting to set invalid trace setting :{reason}$"):
        settings.change(model, changes)
    assert settings.in_force == before
    settings.change(model, {"rate": 7})
    assert settings.of(model).rate == 7


def test_a_change_that_makes_a_models_settings_senseless_is_refused() -> None:
    settings = TraceSettings(TraceSetting(file="x"))
    settings.change("m", {"level": TIMESTAMPS})
    with pytest.raises(InvalidArgumentError):
        settings.change(GLOBAL, {"rate": 0})
    assert settings.of(GLOBAL).rate == settings.of("m").rate == 1000


def test_what_is_off_may_be_anything_and_an_exported_rate_may_be_0() -> None:
    settings = TraceSettings(EMPTY)
    settings.change(GLOBAL, {"rate": 0})
    assert not settings.of(GLOBAL).is_on
    assert TraceSetting(level=TIMESTAMPS, rate=0, mode="opentelemetry").is_on
    assert not TraceSetting(level=OFF, rate=0, mode="opentelemetry").is_on
    assert not TraceSetting(level=TIMESTAMPS).is_on


# ---------------------------------------------------------------------------------------------------------------
# Counts


def test_traces_are_counted_down_once_for_each_setting() -> None:
    settings = TraceSettings(AT_START)
    settings.change("m", {"level": TENSORS})
    of_m, of_all = settings.of("m").revision, settings.of(GLOBAL).revision
    assert not settings.collected(of_all, 3)
    assert (settings.of("m").count, settings.of("other").count) == (5, 2)
    assert not settings.collected(of_m, 4)
    assert settings.collected(of_m, 4)
    assert (settings.of("m").count, settings.of("other").count) == (0, 2)
    assert not settings.collected(of_m, 1)
    assert not settings.collected(-1, 1)  # a setting that is gone
    assert settings.of("m").revision == of_m


def test_a_count_that_was_asked_for_goes_on_and_one_that_was_not_begins_again() -> None:
    settings = TraceSettings(AT_START)
    settings.collected(settings.of(GLOBAL).revision, 2)
    settings.change(GLOBAL, {"rate": 1})
    assert settings.of(GLOBAL).count == 5
    settings.change(GLOBAL, {"count": 4})
    settings.collected(settings.of(GLOBAL).revision, 3)
    settings.change(GLOBAL, {"rate": 2})
    assert settings.of(GLOBAL).count == 1


def test_without_a_count_there_is_no_end() -> None:
    settings = TraceSettings(TraceSetting(level=TIMESTAMPS, file="x"))
    assert not settings.collected(settings.of(GLOBAL).revision, 10**6)
    assert settings.of(GLOBAL).count == -1

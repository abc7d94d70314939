"""scaling.py: the parameters, their defaults, and what is wrong with them."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt
from shoal.model_config.checks import check_unfinished
from shoal.model_config.messages import Config
from shoal.model_config.normalise import normalise
from shoal.model_config.scaling import autoscale, bounds, faults, queue_age_ns


def config(**parameters: str) -> Config:
    return {"name": "m", "parameters": {name: {"string_value": text} for name, text in parameters.items()}}


def test_left_to_the_server() -> None:
    assert list(faults(config())) == []
    assert bounds(config()) == (1, 64)
    assert autoscale(config()) is False
    assert queue_age_ns(config()) == 50_000_000


def test_said() -> None:
    said = config(min_instances="2", max_instances="64", autoscale_queue_age_ms="3600000")
    assert list(faults(said)) == []
    assert bounds(said) == (2, 64)
    assert queue_age_ns(said) == 3_600_000_000_000
    assert bounds(config(max_instances="1")) == (1, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("On", True), ("1", True), ("false", False), ("OFF", False), ("0", False)],
)
def test_booleans_as_triton_reads_them(text: str, expected: bool) -> None:
    assert list(faults(config(autoscale=text))) == []
    assert autoscale(config(autoscale=text)) is expected


def test_the_delay_of_batching_is_no_sign_of_too_few_instances() -> None:
    batching = {"dynamic_batching": {"max_queue_delay_microseconds": 70_000}}
    assert queue_age_ns({**config(), **batching}) == 120_000_000
    assert queue_age_ns({**config(autoscale_queue_age_ms="1"), **batching}) == 71_000_000


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "2 ", "٣", "65", "9" * 5000])
@pytest.mark.parametrize("parameter", ["min_instances", "max_instances"])
def test_a_bound_is_a_whole_number_that_a_server_can_start(parameter: str, text: str) -> None:
    assert list(faults(config(**{parameter: text}))) == [
        f"parameter '{parameter}' of model 'm' is '{text}', must be a whole number from 1 to 64"
    ]


@pytest.mark.parametrize("text", ["", "0", "50ms", "3600001"])
def test_a_queue_age_is_a_time_that_can_pass(text: str) -> None:
    assert list(faults(config(autoscale_queue_age_ms=text))) == [
        f"parameter 'autoscale_queue_age_ms' of model 'm' is '{text}', must be a whole number from 1 to 3600000"
    ]


def test_bounds_that_cross() -> None:
    assert list(faults(config(min_instances="3", max_instances="2"))) == [
        "parameter 'min_instances' of model 'm' is 3, more than 'max_instances', 2"
    ]


def test_a_word_that_is_no_boolean() -> None:
    assert list(faults(config(autoscale="yes"))) == [
        "parameter 'autoscale' of model 'm' is 'yes', must be one of true, on, 1, false, off, 0"
    ]


def test_a_model_is_refused_for_it_before_any_process_is_started() -> None:
    text = 'name: "m" backend: "identity" parameters { key: "max_instances" value { string_value: "0" } }'
    with pytest.raises(InvalidArgumentError, match=r"^parameter 'max_instances' of model 'm' is '0'"):
        check_unfinished(normalise(pbtxt.parse(text, Path("config.pbtxt"))))

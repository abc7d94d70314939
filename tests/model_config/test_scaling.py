"""scaling.py: the parameters, their defaults, and what is wrong with them."""

import pytest

from shoal.model_config.messages import Config
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


def test_bounds_that_cross() -> None:
    assert list(faults(config(min_instances="3", max_instances="2"))) == [
        "parameter 'min_instances' of model 'm' is 3, more than 'max_instances', 2"
    ]

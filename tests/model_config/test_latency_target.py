"""latency_target.py: the parameter, what stands beside it, and whom the server's own concerns."""

from typing import Any

import pytest

from shoal.model_config.latency_target import faults, faults_when_finished, latency_target_ms

WHICH = "parameter 'latency_target_ms' of model 'm'"


def config(text: str | None = None, *, max_batch_size: int = 8, **schedulers: Any) -> dict[str, Any]:
    parameters = {} if text is None else {"latency_target_ms": {"string_value": text}}
    return {"name": "m", "max_batch_size": max_batch_size, "parameters": parameters, **schedulers}


@pytest.mark.parametrize(("text", "milliseconds"), [("0", 0), ("50", 50), ("3600000", 3_600_000)])
def test_whole_milliseconds_up_to_an_hour(text: str, milliseconds: int) -> None:
    assert list(faults(config(text))) == []
    assert latency_target_ms(config(text), 7) == milliseconds


@pytest.mark.parametrize(
    ("batching", "knobs"),
    [
        ({}, []),
        ({"preferred_batch_size": [8]}, []),  # what Triton fills in
        ({"preferred_batch_size": [4, 8]}, ["preferred_batch_size"]),
        ({"max_queue_delay_microseconds": 100}, ["max_queue_delay_microseconds"]),
    ],
)
def test_sizes_and_a_delay_say_something_else(batching: dict[str, Any], knobs: list[str]) -> None:
    assert list(faults(config("50", dynamic_batching=batching))) == [
        f"{WHICH} takes the place of '{knob}' in 'dynamic_batching'. Remove one of them" for knob in knobs
    ]
    assert list(faults(config("0", dynamic_batching=batching))) == []
    assert latency_target_ms(config(dynamic_batching=batching), 7) == (0 if knobs else 7)


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_other_schedulers_do_not_batch_so(scheduler: str) -> None:
    sentence = f"{WHICH} is about dynamic batching; the model has '{scheduler}'. Remove one of them"
    assert list(faults(config("50") | {scheduler: {}})) == [sentence]
    assert latency_target_ms(config() | {scheduler: {}}, 7) == 0


def test_who_does_not_batch_is_left_alone_by_the_server() -> None:
    assert latency_target_ms(config(), 7) == 0
    assert latency_target_ms(config(max_batch_size=1, dynamic_batching={}), 7) == 0
    assert list(faults(config())) == list(faults_when_finished(config(max_batch_size=0))) == []


def test_there_must_be_something_to_batch() -> None:
    assert list(faults_when_finished(config("50", max_batch_size=1))) == [
        f"{WHICH} needs batches to choose from: 'max_batch_size' is 1, must be at least 2"
    ]
    assert list(faults_when_finished(config("50", max_batch_size=2))) == []

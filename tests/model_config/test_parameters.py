"""Parameters of a model that are a number, a size or a word: what each may be, and the sentence about anything else."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import (
    determinism,
    execution_timeout,
    latency_target,
    pbtxt,
    recycling,
    scaling,
    shared_process,
)
from shoal.model_config.checks import check_unfinished
from shoal.model_config.messages import Config
from shoal.model_config.normalise import normalise

_HOUR = "a whole number of milliseconds, at most 3600000 (one hour), or 0 for"
_REQUESTS = "a whole number of requests, at most 1000000000, or 0 for no limit"
#: No parameter is any of these.
_NEVER = ("", "-1", "1.5s", "٣", "9" * 5000)


class Row(NamedTuple):
    """One parameter: what it may be, what beside _NEVER it may not, and what the sentence says that it must be."""

    name: str
    faults: Callable[[Config], Iterator[str]]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    must_be: str


ROWS = (
    Row("execution_timeout_ms", execution_timeout.faults, ("0", "3600000"), ("1.5", "3600001"), f"{_HOUR} no limit"),
    Row("latency_target_ms", latency_target.faults, ("0", "3600000"), ("1.5", "50ms", "3600001"), f"{_HOUR} none"),
    Row("max_requests", recycling.faults, ("0", "1000000000"), ("1.5", "2 ", "1000000001"), _REQUESTS),
    Row("max_requests_jitter", recycling.faults, ("0", "1000000000"), ("1.5", "2 ", "1000000001"), _REQUESTS),
    Row(
        "max_rss", recycling.faults, ("0", "2 KiB", "7.25G"), ("1,5G", "GiB", "1 GB", "1gib", "٣M", "1e9"),
        "a size as in 800MiB, 1.5GiB or 2000000000, or 0 for no limit",
    ),
    Row("min_instances", scaling.faults, ("1", "64"), ("0", "1.5", "2 ", "65"), "a whole number from 1 to 64"),
    Row("max_instances", scaling.faults, ("1", "64"), ("0", "1.5", "2 ", "65"), "a whole number from 1 to 64"),
    Row(
        "autoscale_queue_age_ms", scaling.faults, ("1", "3600000"), ("0", "50ms", "3600001"),
        "a whole number from 1 to 3600000",
    ),
    Row("autoscale", scaling.faults, ("true", "On", "0"), ("yes",), "one of true, on, 1, false, off, 0"),
    Row("deterministic", determinism.faults, ("false", "padded"), ("True", "1", "yes"), "'true', 'padded' or 'false'"),
    Row(
        "batch_drift_share", determinism.faults, ("0", "1", "0.01", ".5", "1.0"),
        ("-0.1", "1.5", "2", "1e-3", "nan", "10%"), "a number from 0 to 1",
    ),
    Row("instances_share_process", shared_process.faults, ("true", "false"), ("yes", "True"), "'true' or 'false'"),
)  # fmt: skip


def config(**parameters: str) -> dict[str, Any]:
    said = {name: {"string_value": text} for name, text in parameters.items()}
    return {"name": "m", "backend": "identity", "platform": "", "max_batch_size": 8, "parameters": said}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_a_parameter_may_be(row: Row) -> None:
    assert list(row.faults(config())) == []
    for text in row.good:
        assert list(row.faults(config(**{row.name: text}))) == [], text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_anything_else_is_a_fault(row: Row) -> None:
    for text in (*_NEVER, *row.bad):
        sentence = f"parameter '{row.name}' of model 'm' is '{text}', must be {row.must_be}"
        assert list(row.faults(config(**{row.name: text}))) == [sentence], text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_model_is_refused_for_it_before_any_process_is_started(row: Row) -> None:
    text = f'name: "m" backend: "identity" parameters {{ key: "{row.name}" value {{ string_value: "much" }} }}'
    with pytest.raises(InvalidArgumentError, match=rf"^parameter '{row.name}' of model 'm' is 'much'"):
        check_unfinished(normalise(pbtxt.parse(text, Path("config.pbtxt"))))

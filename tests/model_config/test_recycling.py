"""recycling.py: the parameters, their defaults, and what is wrong with them."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt
from shoal.model_config.checks import check_unfinished
from shoal.model_config.messages import Config
from shoal.model_config.normalise import normalise
from shoal.model_config.recycling import faults, recycling_limits


def config(**parameters: str) -> Config:
    return {"name": "m", "parameters": {name: {"string_value": text} for name, text in parameters.items()}}


def test_nothing_is_recycled_that_does_not_want_it() -> None:
    assert list(faults(config())) == []
    assert recycling_limits(config()) == (0, 0, 0)


def test_said() -> None:
    said = config(max_requests="1000000000", max_requests_jitter="50", max_rss="1.5GiB")
    assert list(faults(said)) == []
    assert recycling_limits(said) == (1_000_000_000, 50, 3 << 29)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2K", 2048),
        ("2 KiB", 2048),
        ("800M", 800 << 20),
        ("7.25G", 29 << 28),
        ("1T", 1 << 40),
    ],
)
def test_sizes_as_systemd_reads_them(text: str, nbytes: int) -> None:
    assert list(faults(config(max_rss=text))) == []
    assert recycling_limits(config(max_rss=text)).max_rss_bytes == nbytes


@pytest.mark.parametrize("text", ["", "-1", "1.5", "2 ", "٣", "1000000001", "9" * 5000])
@pytest.mark.parametrize("parameter", ["max_requests", "max_requests_jitter"])
def test_a_count_is_a_whole_number(parameter: str, text: str) -> None:
    assert list(faults(config(**{parameter: text}))) == [
        f"parameter '{parameter}' of model 'm' is '{text}', must be a whole number of requests, at most 1000000000, or "
        "0 for no limit"
    ]


@pytest.mark.parametrize("text", ["", "-1", "1,5G", "GiB", "1 GB", "1gib", "٣M", "1e9", "9" * 5000])
def test_a_size_is_one(text: str) -> None:
    assert list(faults(config(max_rss=text))) == [
        f"parameter 'max_rss' of model 'm' is '{text}', must be a size as in 800MiB, 1.5GiB or 2000000000, or 0 for no "
        "limit"
    ]


def test_a_model_is_refused_for_it_before_any_process_is_started() -> None:
    text = 'name: "m" backend: "identity" parameters { key: "max_rss" value { string_value: "much" } }'
    with pytest.raises(InvalidArgumentError, match=r"^parameter 'max_rss' of model 'm' is 'much'"):
        check_unfinished(normalise(pbtxt.parse(text, Path("config.pbtxt"))))

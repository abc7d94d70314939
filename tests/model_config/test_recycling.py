"""recycling.py: the parameters and their defaults; test_parameters.py has what is wrong with them."""

import pytest

from shoal.model_config.messages import Config
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

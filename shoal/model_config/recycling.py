"""Recycling of instances: the limits after which an instance is replaced by a fresh one, parameters of a model. Pure.

    parameters { key: "max_requests" value { string_value: "10000" } }
    parameters { key: "max_requests_jitter" value { string_value: "500" } }
    parameters { key: "max_rss" value { string_value: "2GiB" } }

The first two are gunicorn's names: the jitter is the most that is added to an instance's limit, by chance, so that not
all instances are replaced at once. Triton has no recycling, so these are parameters, as any setting that Triton does
not know.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter, whole_number_faults

#: The most requests that a configuration may set (ours).
MAX_REQUESTS = 1_000_000_000
_COUNTS = ("max_requests", "max_requests_jitter")
#: The syntax of systemd's MemoryMax: powers of 1024.
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?(?:([KMGT])(?:iB)?)?")
_FACTORS = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class RecyclingLimits(NamedTuple):
    """The limits of one instance; 0: no limit."""

    max_requests: int
    max_requests_jitter: int
    max_rss_bytes: int


def recycling_limits(config: Config) -> RecyclingLimits:
    """The limits of each instance of a model. The configuration has been checked."""
    max_requests, jitter = (int(parameter(config, name) or 0) for name in _COUNTS)
    return RecyclingLimits(max_requests, jitter, _size(parameter(config, "max_rss") or "0") or 0)


def faults(config: Config) -> Iterator[str]:
    """Check the parameters: whole numbers, and a size."""
    wanted = f"a whole number of requests, at most {MAX_REQUESTS}, or 0 for no limit"
    for name in _COUNTS:
        yield from whole_number_faults(config, name, 0, MAX_REQUESTS, wanted)
    text = parameter(config, "max_rss")
    if text is not None and _size(text) is None:
        yield (
            f"parameter 'max_rss' of model '{config['name']}' is '{text}', must be a size as in 800MiB, 1.5GiB or "
            "2000000000, or 0 for no limit"
        )


def _size(text: str) -> int | None:
    matched = _SIZE.fullmatch(text)
    return int(float(matched[1]) * _FACTORS[matched[2]]) if matched else None

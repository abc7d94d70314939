"""The values of the flags of `bench` and `tune`: levels of load, shapes, and goals."""

import argparse
import re
from dataclasses import dataclass

from shoal.cli.bench.window import Window

#: The most levels of a sweep: each takes seconds (ours).
MAX_LEVELS = 100
_UNITS_MS = {"us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1000.0}
_GOAL = re.compile(r"p([0-9]{1,2}(?:\.[0-9]+)?)=([0-9.]+)(us|µs|ms|s)")


@dataclass(frozen=True, slots=True)
class Goal:
    """A latency that a percentage of the requests must not exceed, as `p99=20ms`; or a least rate."""

    text: str
    percent: float = 0.0
    most_ms: float = 0.0
    least_per_s: float = 0.0

    def is_met(self, window: Window) -> bool:
        """Whether the measured window meets the goal."""
        if self.least_per_s:
            return window.requests_per_s >= self.least_per_s
        latency_ms = window.percentile_ms(self.percent)
        return latency_ms is not None and latency_ms <= self.most_ms


def goal(text: str) -> Goal:
    """The goal in a flag's value. Raises ArgumentTypeError for a text that is no goal."""
    found = _GOAL.fullmatch(text)
    if found is not None:
        percent, number, unit = found.groups()
        if (value := _number(number)) > 0:
            return Goal(text, percent=float(percent), most_ms=value * _UNITS_MS[unit])
    name, _, number = text.partition("=")
    if name == "throughput" and (value := _number(number)) > 0:
        return Goal(text, least_per_s=value)
    raise argparse.ArgumentTypeError(f"a goal is p99=20ms, p50=800us or throughput=500 (requests/s), not '{text}'")


def latency_goal(text: str) -> Goal:
    """The latency goal in a flag's value. Raises ArgumentTypeError for any other text, also for a throughput."""
    parsed = goal(text)
    if parsed.least_per_s:
        raise argparse.ArgumentTypeError(f"a latency is wanted, as in p99=20ms, not '{text}'")
    return parsed


def concurrencies(text: str) -> list[int]:
    """Numbers of requests at a time: `8`, `1:64` by doubling, `8:64:8` by steps. Raises ArgumentTypeError."""
    parts = text.split(":")
    if len(parts) > 3 or not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"expected requests at a time as 8, 1:64 or 8:64:8, got '{text}'")
    low, high = int(parts[0]), int(parts[min(1, len(parts) - 1)])
    if len(parts) == 3:
        found = list(range(low, high + 1, int(parts[2])))
    else:
        found = [low << times for times in range(64) if low << times < high] + [high]
    return _checked(text, low <= high, found)


def rates(text: str) -> list[float]:
    """Requests a second: `500`, or `100:1000:100` by steps. Raises ArgumentTypeError."""
    numbers = [_number(part) for part in text.split(":")]
    if len(numbers) not in (1, 3) or not all(number > 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected requests a second as 500 or 100:1000:100, got '{text}'")
    if len(numbers) == 1:
        return numbers
    low, high, step = numbers
    count = min(MAX_LEVELS + 1, int((high - low) / step + 1e-9) + 1)
    return _checked(text, low <= high, [low + step * index for index in range(count)])


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """An input and its shape, as `image:1,3,224,224`. Raises ArgumentTypeError for any other text."""
    name, _, dims = text.rpartition(":")
    numbers = dims.split(",")
    if not name or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"expected <input>:<size>,<size>,…, got '{text}'")
    return name, tuple(map(int, numbers))


def percent(text: str) -> float:
    """A percentage above 0. Raises ArgumentTypeError for any other text."""
    value = _number(text.removesuffix("%"))
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"expected a percentage, got '{text}'")
    return value


def _checked(text: str, is_ascending: bool, levels: list) -> list:  # type: ignore[type-arg]
    if not is_ascending:
        raise argparse.ArgumentTypeError(f"'{text}' ends below its beginning")
    if len(levels) > MAX_LEVELS:
        raise argparse.ArgumentTypeError(f"'{text}' has more than {MAX_LEVELS} levels")
    return levels


def _number(text: str) -> float:
    """A number above 0 and below 10⁹; 0 for any other text."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value < 1e9 else 0.0

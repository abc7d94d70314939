"""The settings of a rollout: its steps, how long each lasts, and the guards that end it. Pure.

steps   1,10,50,100                 the canary's share of the requests that name no version, in percent
every   10m, or 500requests         how long a step lasts: a time, or requests that the canary has answered or failed
guard   p99=+10%                    at most a tenth slower than the stable version: p50, p90, p95 or p99, of the time
                                    from a request's acceptance to its answer; p99=+5ms likewise
        p99<50ms                    at most so slow, whatever the stable version is
        errors=+0.1%, errors<1%     the share of the canary's requests that it failed; a request that the stable version
                                    failed, too, does not count
        disagree<0.5%               the share of the requests compared by shadow that got another answer
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError

#: Quantiles that a guard can be about.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
ERRORS, DISAGREE = "errors", "disagree"
#: Defaults (ours).
DEFAULT_STEPS, DEFAULT_EVERY, DEFAULT_GUARDS = "1,10,50,100", "10m", "p99=+10%,errors=+0.1%"
#: Requests that a version must have ended in a step before it is compared (ours).
DEFAULT_MIN_REQUESTS = 100
_MAX_STEPS, _MAX_REQUESTS = 100, 10**12
#: Bounds of times (ours), of steps and of latencies.
_MIN_S, _MAX_S = 1e-3, 3650 * 86400.0

#: Fifteen digits on both sides of the point: what `_number` writes, and more than any bound needs.
_GUARD = re.compile(r"([a-z0-9]+)\s*(=\+|<)\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(%|ms|s|us)", re.ASCII)
_TIME = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) *(ms|s|m|h|d)", re.ASCII)
_COUNT = re.compile(r"([0-9]{1,12}) *requests?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_HEADER = re.compile(r"[!#$%&'*+\-.^`|~0-9A-Za-z]{1,100}")


class Guard(NamedTuple):
    """A bound that the canary must keep to."""

    figure: str  # a key of QUANTILES, ERRORS or DISAGREE
    is_relative: bool  # at most `bound` above the stable version's figure; False: below `bound`
    bound: float  # a share, or with `is_time` seconds
    is_time: bool

    def __str__(self) -> str:
        bound = f"{_number(self.bound * 1000)}ms" if self.is_time else f"{_number(self.bound * 100)}%"
        return f"{self.figure}{'=+' if self.is_relative else '<'}{bound}"


class RolloutPlan(NamedTuple):
    """The settings of one rollout."""

    version: int  # the canary
    steps: tuple[float, ...]  # percent, ascending
    every_s: float  # how long a step lasts; 0: `every_requests` says it
    every_requests: int  # 0: `every_s` says it
    guards: tuple[Guard, ...]
    min_requests: int
    sticky_header: str  # lower case; "": requests are divided by correlation id, or one by one
    retries: bool  # whether the stable version executes requests that the canary fails

    def members(self) -> dict[str, Any]:
        """The plan as `read_plan` takes it."""
        return {
            "version": self.version,
            "steps": ",".join([f"{step:g}" for step in self.steps]),
            "every": f"{self.every_requests}requests" if self.every_requests else f"{_number(self.every_s)}s",
            "guard": ",".join(map(str, self.guards)),
            "min_requests": self.min_requests,
            "sticky_header": self.sticky_header,
            "retry": self.retries,
        }


def _number(value: float) -> str:
    """A number as texts of plans have it: without an exponent, and with all digits that were given."""
    digits = max(1, 15 - len(f"{value:.0f}"))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


_MEMBERS = frozenset(RolloutPlan(1, (), 0, 0, (), 0, "", True).members())


def read_plan(said: Mapping[str, Any]) -> RolloutPlan:
    """A plan in JSON. Raises InvalidArgumentError for a member that there is not, or a value that does not fit."""
    if unknown := sorted(said.keys() - _MEMBERS):
        raise InvalidArgumentError(f"a rollout has no '{unknown[0]}'; there are {', '.join(sorted(_MEMBERS))}")
    version = said.get("version")
    if isinstance(version, str) and version.isdecimal() and len(version) < 19:
        version = int(version)
    if type(version) is not int or not 0 < version < 1 << 63:  # the number travels in msgpack
        raise InvalidArgumentError('a rollout needs the number of the new version, as in "version": 3')
    every_s, every_requests = read_every(_text(said, "every", DEFAULT_EVERY))
    min_requests, retries = said.get("min_requests", DEFAULT_MIN_REQUESTS), said.get("retry", True)
    if type(min_requests) is not int or not 0 <= min_requests <= _MAX_REQUESTS:
        raise InvalidArgumentError(f"min_requests is a number of requests, got {str(min_requests)[:40]!r}")
    if type(retries) is not bool:
        raise InvalidArgumentError(f"retry is true or false, got {str(retries)[:40]!r}")
    header = _text(said, "sticky_header", "")
    if header and not _HEADER.fullmatch(header):
        raise InvalidArgumentError(f"sticky_header is the name of a header, as x-user-id; got '{header[:40]}'")
    return RolloutPlan(
        version, read_steps(_text(said, "steps", DEFAULT_STEPS)), every_s, every_requests,
        read_guards(_text(said, "guard", DEFAULT_GUARDS)), min_requests, header.lower(), retries,
    )  # fmt: skip


def _text(said: Mapping[str, Any], name: str, default: str) -> str:
    value = said.get(name, default)
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidArgumentError(f"'{name}' of a rollout is a text, got {type(value).__name__}")
    return str(value)


def read_steps(text: str) -> tuple[float, ...]:
    """The steps, in percent. Raises InvalidArgumentError."""
    words = [each.strip().removesuffix("%") for each in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,2})?", each) for each in words) or len(words) > _MAX_STEPS:
        raise InvalidArgumentError(f"steps are shares in percent, as 1,10,50,100; got '{text[:80]}'")
    steps = tuple([float(each) for each in words])
    if not 0 < steps[0] <= steps[-1] <= 100 or any(after <= before for before, after in pairwise(steps)):
        raise InvalidArgumentError(f"steps ascend, from more than 0 up to at most 100 percent; got '{text[:80]}'")
    return steps


def read_every(text: str) -> tuple[float, int]:
    """How long a step lasts: seconds, or a number of requests; the other is 0. Raises InvalidArgumentError."""
    text = text.strip()
    if found := _COUNT.fullmatch(text):
        if int(found[1]):
            return 0.0, int(found[1])
    elif found := _TIME.fullmatch(text):
        seconds = float(_number(float(found[1]) * _SECONDS[found[2]]))  # equal to what is read back from `members`
        if _MIN_S <= seconds <= _MAX_S:
            return seconds, 0
    raise InvalidArgumentError(
        f"a step lasts for a time from 1ms to 3650d, as 10m, or for a number of requests, as 500requests; got "
        f"'{text[:40]}'"
    )


def read_guards(text: str) -> tuple[Guard, ...]:
    """The guards; none for an empty text or `none`. Raises InvalidArgumentError."""
    if text.strip() in ("", "none"):
        return ()
    return tuple([_guard(each.strip()) for each in text.split(",")])


def _guard(text: str) -> Guard:
    found = _GUARD.fullmatch(text)
    if found is None or found[1] not in (*QUANTILES, ERRORS, DISAGREE):
        raise InvalidArgumentError(
            f"a guard is as p99=+10%, p99<50ms, errors=+0.1% or disagree<0.5%, of {', '.join(QUANTILES)}, errors and "
            f"disagree; got '{text[:40]}'"
        )
    name, is_relative, is_time = found[1], found[2] == "=+", found[4] != "%"
    bound = float(found[3]) * (_SECONDS[found[4]] if is_time else 0.01)
    if is_time and bound > _MAX_S:
        raise InvalidArgumentError(f"'{text[:40]}': a latency is at most 3650 days")
    if name in QUANTILES and not (is_relative or is_time):
        raise InvalidArgumentError(f"'{text[:40]}': a latency is below a time, as {name}<50ms")
    if name not in QUANTILES and is_time:
        raise InvalidArgumentError(f"'{text[:40]}': {name} are a share of the requests, as {name}<1%")
    if name == DISAGREE and is_relative:
        raise InvalidArgumentError(f"'{text[:40]}': the stable version agrees with itself; say disagree<{found[3]}%")
    return Guard(name, is_relative, bound, is_time)

"""The measurement of a level of load: window after window until the last ones agree; several servers take turns."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from shoal.cli.bench.loads import Load, constant_gaps, poisson_gaps
from shoal.cli.bench.targets import Target
from shoal.cli.bench.transport import Transport
from shoal.cli.bench.window import Window, merged
from shoal.cli.top import Figures, StatisticsSample, compare

#: How many windows in a row have to agree, as in perf_analyzer; these windows are reported.
NUM_AGREEING = 3
#: Load before a server's first window, and before each if servers take turns, is not measured for this share of a
#: window's length: client and server have to wake.
_SETTLING = 0.1
#: The busy share above which a client is the bottleneck (ours): beyond it, answers wait in the client, and latencies
#: grow.
BOTTLENECK = 0.85


@dataclass(frozen=True, slots=True)
class Level:
    """A level of load: a number of requests at a time, or a rate and the most connections that it may use."""

    num_slots: int
    rate: float | None = None  # requests a second; None: a closed loop
    is_poisson: bool = True

    @property
    def title(self) -> str:
        """The level in words."""
        if self.rate is None:
            return f"{self.num_slots} at once"
        return f"{self.rate:g}/s {'Poisson' if self.is_poisson else 'constant'}"

    def gaps(self) -> Iterator[int] | None:
        """The times between requests in ns; None for a closed loop."""
        if self.rate is None:
            return None
        return poisson_gaps(self.rate) if self.is_poisson else constant_gaps(self.rate)


@dataclass(frozen=True, slots=True)
class Plan:
    """The lengths of a measurement's parts, in s, and by how many percent windows may differ and still agree.

    A window lasts longer where fewer than `least_requests` have ended in it.
    """

    warm_up_s: float
    window_s: float
    least_requests: int
    most_windows: int
    tolerance_percent: float
    timeout_s: float


@dataclass(slots=True)
class Measured:
    """The figures of one level of one server."""

    level: Level
    windows: list[Window] = field(default_factory=list)
    # The server's own figures, from before the first window until after the last, settling included; None: it has none.
    server: Figures | None = None
    num_waiting: int = 0  # requests of an open loop that were still waiting for a connection at the end
    is_stable: bool = False

    @property
    def whole(self) -> Window:
        """The windows that are reported, the last NUM_AGREEING, as one."""
        return merged(self.windows[-NUM_AGREEING:])

    @property
    def is_clients_limit(self) -> bool:
        """Whether the client, not the server, was the bottleneck."""
        return self.whole.busy_share > BOTTLENECK


def is_stable(windows: Sequence[Window], tolerance_percent: float) -> bool:
    """Whether the last windows agree in throughput and median latency."""
    last = windows[-NUM_AGREEING:]
    if len(last) < NUM_AGREEING:
        return False
    medians = [each.percentile_ms(50) for each in last]
    return _agree([each.requests_per_s for each in last], tolerance_percent) and _agree(
        [each for each in medians if each is not None], tolerance_percent
    )


def _agree(values: Sequence[float], tolerance_percent: float) -> bool:
    middle = sum(values) / max(len(values), 1)
    return bool(values) and all(abs(each - middle) <= middle * tolerance_percent / 100 for each in values)


def measure(
    targets: Sequence[Target],
    transports: Sequence[Transport],
    level: Level,
    plan: Plan,
    on_window: Callable[[int, int, Window], None] = lambda *_: None,
) -> list[Measured]:
    """The figures of a level, by target. Several targets are loaded in turns, a window each, never at the same time.

    `on_window` is called with the target's number, the window's number, and the window. Raises NoResponseError,
    and the targets' errors.
    """
    loads = [Load(each, level.num_slots, level.gaps(), timeout_s=plan.timeout_s) for each in transports]
    found = [Measured(level) for _ in targets]
    samples: list[StatisticsSample] = []
    for load, target in zip(loads, targets, strict=True):
        if plan.warm_up_s:
            load.run(plan.warm_up_s)
            _end_turn(load, loads)
        samples.append(_sample(target))
    settling_s = plan.window_s * _SETTLING
    for number in range(plan.most_windows):
        for index, load in enumerate(loads):
            if number == 0 or len(loads) > 1:
                load.run(settling_s)
            window = load.run(plan.window_s, plan.least_requests)
            found[index].windows.append(window)
            found[index].num_waiting = load.num_waiting
            _end_turn(load, loads)
            on_window(index, number, window)
        for each in found:
            each.is_stable = is_stable(each.windows, plan.tolerance_percent)
        if all(each.is_stable for each in found):
            break
    for each, load, target, before in zip(found, loads, targets, samples, strict=True):
        load.drain()
        each.server = next(iter(compare(before, _sample(target))), None)
    return found


def _end_turn(load: Load, loads: Sequence[Load]) -> None:
    if len(loads) > 1:
        load.drain()


def _sample(target: Target) -> StatisticsSample:
    row = target.statistics()
    return StatisticsSample(time.monotonic(), {(row["name"], row["version"]): row})


@dataclass(frozen=True, slots=True)
class Ratios:
    """The second server's figures as shares of the first's: medians over the pairs of windows; None: not measured."""

    throughput: float | None
    latency: dict[float, float | None]  # by percent


def ratios(first: Measured, second: Measured, percents: Sequence[float]) -> Ratios:
    """The ratios of two servers that were measured in turns. Pure."""
    pairs = list(zip(first.windows, second.windows, strict=True))

    def of(values: Sequence[tuple[float | None, float | None]]) -> float | None:
        found = [new / old for old, new in values if old and new]
        return median(found) if found else None

    return Ratios(
        of([(old.requests_per_s, new.requests_per_s) for old, new in pairs]),
        {each: of([(old.percentile_ms(each), new.percentile_ms(each)) for old, new in pairs]) for each in percents},
    )

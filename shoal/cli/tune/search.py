"""The search for a model's best settings: which settings are tried next, and which trial is the best.

Pure policy: a trial is a function that is handed in.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from shoal.cli.models import counted
from shoal.cli.tune.curve import BatchCurve

#: A setting must gain more than this share to be preferred (ours): less is the noise of short windows.
LEAST_GAIN = 0.03
#: Queue delays in µs that are tried beside the configuration's own: those that are at most _MOST_OF_GOAL of the goal.
DELAYS_US = (0, 100, 500, 1000, 2000, 5000, 10_000, 20_000)
_MOST_OF_GOAL = 0.5
#: The most settings beside the present ones that are measured again (ours): each takes a second or two in each turn.
NUM_FINALISTS = 3
#: The least share of a search's time that is spent on trials, before the best settings are measured again (ours).
TRIALS_SHARE = 0.6
#: Settings are tried only if, by the times that batches have taken, they can reach this share of the best throughput so
#: far (ours): on a busy machine these times are wrong by a tenth.
_REACH = 0.9


#: Backend → the parameter of config.pbtxt with the threads of an instance; 0, or not set: one for each core.
THREADS = {
    "onnxruntime": "intra_op_thread_count",
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "tensorflow": "TF_NUM_INTRA_THREADS",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that are tuned. `delay_us` None: no dynamic batching. `threads` of each instance; 0: one for each
    core; None: the model has no such setting."""

    instances: int
    max_batch: int
    delay_us: int | None
    threads: int | None = None

    def __str__(self) -> str:
        batching = "no batching" if self.delay_us is None else f"batches of {self.max_batch}, delay {self.delay_us} µs"
        threads = f", {counted(self.threads, 'thread')} each" if self.threads else ""
        return f"{counted(self.instances, 'instance')}{threads}, {batching}"


@dataclass(frozen=True, slots=True)
class Point:
    """A level of load under some settings. `latency_ms` is the percentile of the goal; None where no request
    succeeded."""

    concurrency: int
    requests_per_s: float
    latency_ms: float | None
    num_errors: int = 0

    def meets(self, goal_ms: float) -> bool:
        """Whether the goal is met, and no request failed."""
        return self.latency_ms is not None and self.latency_ms <= goal_ms and not self.num_errors


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings, all levels at which they were measured, and the best level that meets the goal; None if none does."""

    settings: Settings
    points: Sequence[Point] = field(default_factory=tuple)
    best: Point | None = None
    refusal: str = ""  # the server's sentence, where it does not load the model with these settings
    curve: BatchCurve = field(default_factory=BatchCurve)

    @property
    def score(self) -> float:
        """Requests a second under the goal; 0 where it is missed."""
        return 0.0 if self.best is None else self.best.requests_per_s


@dataclass(frozen=True, slots=True)
class Space:
    """The values of each setting that are tried."""

    instances: Sequence[int]
    max_batch: Sequence[int]
    delay_us: Sequence[int | None]
    threads: Sequence[int | None] = (None,)
    num_cores: int = 1

    @property
    def num_settings(self) -> int:
        """The number of combinations; those without dynamic batching count once, not for each batch size."""
        num_delays = sum(delay is not None for delay in self.delay_us)
        num_without = len(self.delay_us) - num_delays
        return len(self.instances) * len(self.threads) * (num_delays * len(self.max_batch) + num_without)

    def line(self, settings: Settings, name: str) -> list[Settings]:
        """These settings with each value of the field `name`. Each number of instances also comes with so few threads
        that the instances share the cores."""
        found = [replace(settings, **{name: value}) for value in getattr(self, name)]
        if name == "instances":
            found += [
                replace(each, threads=shared)
                for each in found
                if (shared := max(1, self.num_cores // each.instances)) in self.threads and shared != each.threads
            ]
        return found


def threads_parameter(config: Mapping[str, Any]) -> str:
    """The parameter of a finished configuration that has the threads of an instance; "" for a backend without one, and
    on GPUs, which do not use them."""
    if config["instance_group"][0].get("kind") == "KIND_GPU":
        return ""
    found = THREADS.get(config.get("backend", ""), "")
    return "NUM_THREADS" if found == THREADS["pytorch"] and "NUM_THREADS" in config.get("parameters", {}) else found


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings of a finished configuration."""
    batching = config.get("dynamic_batching")
    delay_us = None if batching is None else int(batching.get("max_queue_delay_microseconds", 0))
    instances = sum(int(group["count"]) for group in config["instance_group"])
    threads = None
    if parameter := threads_parameter(config):
        value = str(config.get("parameters", {}).get(parameter, {}).get("string_value", "")).strip()
        threads = int(value) if value.isdecimal() else 0
    return Settings(instances, int(config["max_batch_size"]), delay_us, threads)


def space_of(config: Mapping[str, Any], goal_ms: float, num_cores: int) -> Space:
    """The values that are tried for a model: the configuration's own are always among them.

    Instances by doubling up to twice the cores, where there is one instance group; threads of an instance by doubling
    up to the cores, where the backend has them; batch sizes by halving, and delays, where the model takes batches and
    its scheduler is not one for sequences.
    """
    own = settings_of(config)
    counts = [1 << power for power in range(20) if 1 << power <= 2 * num_cores]
    instances = sorted({*counts, own.instances}) if len(config["instance_group"]) == 1 else [own.instances]
    threads: list[int | None] = [None]
    if own.threads is not None:
        threads = [*sorted({0, own.threads, *(count for count in counts if count < num_cores)})]
    if own.max_batch < 2 or config.get("sequence_batching") is not None:
        return Space(instances, [own.max_batch], [own.delay_us], threads, num_cores)
    batches = [own.max_batch >> power for power in range(5) if own.max_batch >> power >= 2]
    within = {delay for delay in DELAYS_US if delay / 1000 <= goal_ms * _MOST_OF_GOAL}
    delays = within if own.delay_us is None else within | {own.delay_us}
    return Space(instances, batches, [None, *sorted(delays)], threads, num_cores)


def cannot_win(settings: Settings, trials: Collection[Trial], rows: int = 1) -> bool:
    """Whether settings cannot come near the best throughput so far, by the times of batches in a trial with as many
    instances and threads. `rows`: the rows of each request."""
    best = max((trial.score for trial in trials), default=0.0)
    max_batch = rows if settings.delay_us is None else max(rows, settings.max_batch)
    for trial in trials:
        if (trial.settings.instances, trial.settings.threads) != (settings.instances, settings.threads):
            continue
        most = trial.curve.most_rows_per_s(max_batch)
        if most is not None and settings.instances * most / rows < best * _REACH:
            return True
    return False


def search(
    start: Settings,
    space: Space,
    try_out: Callable[[Settings], Trial],
    is_over: Callable[[], bool],
    may_win: Callable[[Settings, Collection[Trial]], bool] = lambda _settings, _trials: True,
) -> Iterator[Trial]:
    """Try settings, one dimension after the other from the best so far, until no change gains or the time is over.

    The configuration's own settings come first. Each further round begins from the best of the one before, so that
    delays are also tried with the batch size that was best. Settings for which `may_win` is false are left out.
    """
    known: dict[Settings, Trial] = {start: try_out(start)}
    yield known[start]
    best = known[start]
    while True:
        before = best
        for name in ("delay_us", "threads", "instances", "max_batch"):
            line = space.line(best.settings, name)
            for settings in line:
                if settings.delay_us is None and name == "max_batch":
                    continue  # the batch size has no effect without batching
                if settings in known or not may_win(settings, known.values()):
                    continue
                if is_over():
                    return
                known[settings] = trial = try_out(settings)
                yield trial
            best = winner([best, *(known[each] for each in line if each in known)])
        if best is before:
            return


def winner(trials: Sequence[Trial]) -> Trial:
    """The best trial: the first, unless another gains more than noise."""
    best = max(trials, key=lambda trial: trial.score)
    return best if best.score > trials[0].score * (1 + LEAST_GAIN) else trials[0]


def finalists(trials: Sequence[Trial], most: int = NUM_FINALISTS) -> list[Trial]:
    """The trials that are measured again in turns: the configuration's own, if it meets the goal, then at most `most`
    others, the best first. Empty where fewer than two are left.

    They are measured again because a machine whose speed changes favours whatever was tried while it was fast.
    """
    others = sorted((each for each in trials[1:] if each.score), key=lambda each: -each.score)[:most]
    found = [trials[0], *others] if trials[0].score else others
    return found if len(found) > 1 else []


@dataclass(frozen=True, slots=True)
class Budget:
    """The seconds of a search. Trials leave enough of them for the turns, in which the best settings are measured
    again, but get TRIALS_SHARE at least; the turns measure as many settings as fit into the seconds left, two at least.

    `turns`: how often each of these settings is measured again; `level_s`: the seconds of one measurement.
    """

    seconds: float
    turns: int
    level_s: float

    def trials_are_over(self, elapsed_s: float) -> bool:
        """Whether no further trial begins after `elapsed_s`."""
        turns_s = (1 + NUM_FINALISTS) * self.turns * self.level_s
        return elapsed_s >= max(self.seconds - turns_s, self.seconds * TRIALS_SHARE)

    def num_finalists(self, elapsed_s: float) -> int:
        """How many settings are measured again beside the configuration's own."""
        fitting = int((self.seconds - elapsed_s) / (self.turns * self.level_s))
        return max(1, min(NUM_FINALISTS, fitting - 1))


def best_of_turns(turns: Sequence[Sequence[float]], finalists: Sequence[Trial]) -> tuple[int, list[float]]:
    """The index of the best finalist but the first, and its throughput in each turn as a multiple of the first one's;
    `turns` has the throughput of all finalists, turn by turn.

    Of finalists that are equal but for noise, the one with the fewest instances is the best: each takes memory.
    """
    shares = [[turn[index] / max(turn[0], 1e-9) for turn in turns] for index in range(len(turns[0]))]
    medians = [median(each) for each in shares]
    enough = max(medians[1:]) / (1 + LEAST_GAIN)
    equal = [index for index in range(1, len(shares)) if medians[index] >= enough]
    best = min(equal, key=lambda index: (finalists[index].settings.instances, -medians[index]))
    return best, shares[best]


def is_gain(ratios: Sequence[float]) -> bool:
    """Whether the median of ratios that were measured in turns is more than noise."""
    return median(ratios) > 1 + LEAST_GAIN


def climb(
    measure: Callable[[int], Point], goal_ms: float, first: int, most: int, is_over: Callable[[], bool]
) -> list[Point]:
    """Measure levels of concurrency: doubled from `first` while throughput grows and the goal is met; halved where the
    goal is missed at `first`, or where doubling gains nothing."""
    points = [measure(first)]
    if not points[0].meets(goal_ms):
        while points[-1].concurrency > 1 and not points[-1].meets(goal_ms) and not is_over():
            points.append(measure(points[-1].concurrency // 2))
        return points
    while points[-1].concurrency < most and not is_over():
        points.append(measure(min(most, points[-1].concurrency * 2)))
        last, one = points[-1], points[-2]
        if not last.meets(goal_ms) or last.requests_per_s < one.requests_per_s * (1 + LEAST_GAIN):
            break
    if len(points) == 2 and points[1].requests_per_s < points[0].requests_per_s * (1 + LEAST_GAIN):
        # More requests at a time gain nothing: fewer may give as much.
        while points[-1].concurrency > 1 and not is_over():
            points.append(measure(min(point.concurrency for point in points) // 2 or 1))
            if points[-1].requests_per_s < max(point.requests_per_s for point in points):
                break
    return points


def trial_of(settings: Settings, points: Sequence[Point], goal_ms: float) -> Trial:
    """The trial with its best point."""
    good = [point for point in points if point.meets(goal_ms)]
    return Trial(settings, tuple(points), max(good, key=lambda point: point.requests_per_s, default=None))


def applied(config: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """A finished configuration with these settings."""
    changed: dict[str, Any] = {**config, "max_batch_size": settings.max_batch}
    batching = {**(config.get("dynamic_batching") or {})}
    batching.pop("preferred_batch_size", None)
    changed.pop("dynamic_batching", None)
    if settings.delay_us is not None:
        changed["dynamic_batching"] = {**batching, "max_queue_delay_microseconds": settings.delay_us}
    if len(config["instance_group"]) == 1:
        changed["instance_group"] = [{**config["instance_group"][0], "count": settings.instances}]
    if settings.threads is not None and settings.threads != settings_of(config).threads:
        value = {"string_value": str(settings.threads)}
        changed["parameters"] = {**config.get("parameters", {}), threads_parameter(config): value}
    return changed

"""The rows of overload: bench/overload.py's clients, and the bar beside its figures."""

import asyncio
from typing import NamedTuple

from bench import overload as bench
from tests.end_to_end.asking import fetch
from tests.end_to_end.server import serving
from tests.reliability.liveness import watching
from tests.reliability.row import Course, quantile

#: Of the peak, at ten times the capacity and at less; at less than the capacity, of what is asked.
GOODPUT_AT_TEN, GOODPUT = 0.85, 0.95
LIVE_S, REFUSED_S = 0.1, 0.05
#: In the short form clients that wait come at the highest rate alone.
LOADS = [(times, patience_s) for patience_s in (bench.PATIENCE_S, None) for times in bench.TIMES_CAPACITY]
SHORT_LOADS = [(times, patience_s) for times, patience_s in LOADS if patience_s or times == max(bench.TIMES_CAPACITY)]


class Load(NamedTuple):
    """What became of one load."""

    times: float  # the capacity
    patience_s: float | None
    outcome: bench.Outcome

    @property
    def name(self) -> str:
        """The load in a few words."""
        return f"{self.times:g} × {'wait' if self.patience_s is None else 'give up'}"

    def goodput(self, peak: float, seconds: float) -> float:
        """Good answers as a share of as many as there could be: the peak's, or all that was asked for, if that is less.

        What is asked at random times is more or less than its rate says.
        """
        counts = self.outcome.counts
        return counts["good"] / max(1.0, min(peak * seconds, counts.total()))

    @property
    def bar(self) -> float:
        """The least goodput."""
        return GOODPUT_AT_TEN if self.times >= 10 else GOODPUT


def run(course: Course) -> None:
    """Every load, one after the other, on a server with its defaults."""
    seconds = course.pick(3, 8)
    bench.write_model(course.directory / "models")
    loads: list[Load] = []
    with serving(course.directory / "models") as server:
        tensor = {"name": "A", "datatype": "FP32", "shape": [1], "data": [1]}
        assert fetch(server.http_port, "/v2/models/slow/infer", {"inputs": [tensor]}).status == 200
        peak = asyncio.run(bench.peak(server.http_port, seconds))
        with watching(server.http_port) as live_s:
            for times, patience_s in SHORT_LOADS if course.is_short else LOADS:
                outcome = asyncio.run(bench.load(server.http_port, times * peak, patience_s, seconds))
                loads.append(Load(times, patience_s, outcome))
                print(loads[-1].name, outcome.counts, flush=True)
                server.read_on()
        assert server.stop() == 0
    report(course, loads, peak, seconds, live_s)


def report(course: Course, loads: list[Load], peak: float, seconds: float, live_s: list[float]) -> None:
    """Hand over every line."""
    goodput = [load.goodput(peak, seconds) for load in loads]
    told = ", ".join(f"{load.name} {share:.0%}" for load, share in zip(loads, goodput, strict=True))
    is_met = all(share >= load.bar for load, share in zip(loads, goodput, strict=True))
    course.found("goodput", f"of {peak:.0f}/s: {told}", is_met=is_met)
    accepted_s = [each for load in loads if load.patience_s is not None for each in load.outcome.good_s]
    refused_s = [each for load in loads if load.patience_s is None for each in load.outcome.refused_s]
    found(course, "accepted", accepted_s, 0.99, bench.PATIENCE_S)
    found(course, "refused", refused_s, 0.99, REFUSED_S)
    found(course, "live", live_s, 0.999, LIVE_S)
    broken = sum(load.outcome.counts["broken"] for load in loads)
    course.found("broken", f"{broken} cut", is_met=not broken)


def found(course: Course, key: str, values_s: list[float], share: float, bar_s: float) -> None:
    """Hand over a line of latencies; where there are none, its bar is not met."""
    if not values_s:
        course.found(key, "there was none", is_met=False)
        return
    told = ", ".join(f"p{100 * each:g} {1e3 * quantile(values_s, each):.0f} ms" for each in sorted({0.5, 0.99, share}))
    course.found(key, f"{told} of {len(values_s):,}", is_met=quantile(values_s, share) <= bar_s)

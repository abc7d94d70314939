"""The rows of overload: bench/overload.py's clients, and the bar beside its figures."""

import asyncio

from bench import overload as bench
from tests.end_to_end.asking import fetch
from tests.end_to_end.server import serving
from tests.reliability.row import Course, quantile

#: Of the peak, at ten times the capacity and at less; at less than the capacity, of what is asked.
GOODPUT_AT_TEN, GOODPUT = 0.85, 0.95
LIVE_S, REFUSED_S = 0.1, 0.05
#: What the clients do that give up: no connection may end otherwise.
SHORT_LOADS = ((2.0, bench.PATIENCE_S), (10.0, bench.PATIENCE_S), (10.0, None))


def run(course: Course) -> None:
    """Every load, one after the other, on a server with its defaults."""
    seconds = course.pick(3, 8)
    loads = [(times, patience_s) for patience_s in (bench.PATIENCE_S, None) for times in bench.TIMES_CAPACITY]
    bench.write_model(course.directory / "models")
    goodput: dict[str, float] = {}
    accepted_s: list[float] = []
    refused_s: list[float] = []
    live_s: list[float] = []
    broken = 0
    is_met = True
    with serving(course.directory / "models") as server:
        tensor = {"name": "A", "datatype": "FP32", "shape": [1], "data": [1]}
        assert fetch(server.http_port, "/v2/models/slow/infer", {"inputs": [tensor]}).status == 200
        peak = asyncio.run(bench.peak(server.http_port, seconds))
        for times, patience_s in SHORT_LOADS if course.is_short else loads:
            outcome = asyncio.run(bench.load(server.http_port, times * peak, patience_s, seconds))
            name = f"{times:g} × {'wait' if patience_s is None else 'give up'}"
            print(name, outcome.counts, flush=True)
            goodput[name] = outcome.counts["good"] / seconds / peak
            is_met = is_met and goodput[name] >= (GOODPUT_AT_TEN if times >= 10 else GOODPUT) * min(times, 1.0)
            accepted_s += outcome.good_s if patience_s is not None else []
            refused_s += outcome.refused_s if patience_s is None else []
            live_s += outcome.live_s
            broken += outcome.counts["broken"]
            server.read_on()
        assert server.stop() == 0
    told = ", ".join(f"{name} {share:.0%}" for name, share in goodput.items())
    course.found("goodput", f"of {peak:.0f}/s: {told}", is_met=is_met)
    report = f"p99 {1e3 * quantile(accepted_s, 0.99):.0f} ms of {len(accepted_s):,}"
    course.found("accepted", report, is_met=quantile(accepted_s, 0.99) <= bench.PATIENCE_S)
    report = f"p99 {1e3 * quantile(live_s, 0.99):.0f} ms, p99.9 {1e3 * quantile(live_s, 0.999):.0f} ms"
    course.found("live", report, is_met=quantile(live_s, 0.999) <= LIVE_S)
    refused_s = refused_s or [0.0]
    report = f"p99 {1e3 * quantile(refused_s, 0.99):.0f} ms of {len(refused_s):,}"
    course.found("refused", report, is_met=quantile(refused_s, 0.99) <= REFUSED_S)
    course.found("broken", f"{broken} cut", is_met=not broken)

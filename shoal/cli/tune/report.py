"""The report of a search: a line for each trial, a table, an explanation, a picture. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from shoal.cli.bench import picture
from shoal.cli.bench.arguments import Goal
from shoal.cli.bench.report import ms
from shoal.cli.models import table
from shoal.cli.tune.search import LEAST_GAIN, Settings, Trial, is_gain

_HEAD = ["", "INSTANCES", "THREADS", "MAX BATCH", "DELAY", "REQUESTS/S", "AT ONCE", "LATENCY"]
#: A field of Settings → its name in the report.
_TITLES = {
    "instances": "instances",
    "threads": "threads of each",
    "max_batch": "a largest batch",
    "delay_us": "a queue delay",
}


def line(trial: Trial, goal: Goal) -> str:
    """A trial in words."""
    if trial.refusal:
        return f"{trial.settings}: refused: {trial.refusal}"
    if trial.best is None:
        return f"{trial.settings}: misses {goal.text}"
    best = trial.best
    return (
        f"{trial.settings}: {best.requests_per_s:,.1f} requests/s, {best.concurrency} at once, "
        f"p{goal.percent:g} {ms(best.latency_ms)}"
    )


def as_text(trials: Sequence[Trial], best: Trial, goal: Goal, *, num_left: int, gain: float | None = None) -> str:
    """A table of the trials, the most throughput first, and sentences that explain the result.

    `gain` is the best one's throughput as a multiple of the present settings'; None: as measured by the trials.
    """
    start = trials[0]
    rows = []
    for trial in sorted(trials, key=lambda each: -each.score):
        settings, point = trial.settings, trial.best
        delay = "-" if settings.delay_us is None else f"{settings.delay_us} µs"
        found = ["-", "-", "refused" if trial.refusal else f"misses {goal.text}"]
        if point is not None:
            found = [f"{point.requests_per_s:,.1f}", str(point.concurrency), ms(point.latency_ms)]
        mark = "best" if trial is best else "now" if trial is start else ""
        threads = "-" if settings.threads is None else _said("threads", settings.threads)
        rows.append([mark, str(settings.instances), threads, str(settings.max_batch), delay, *found])
    lines = [table(_HEAD, rows), ""]
    if num_left > 0:
        lines.append(
            f"{num_left} of the combinations were not tried: the search did not lead to them, or --budget was used up."
        )
    return "\n".join(lines + explained(trials, best, goal, gain))


def confirmation(ratios: Sequence[float], settings: Settings) -> str:
    """A sentence on the turns in which these settings, the best ones, and the present ones were measured again."""
    measured = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    if is_gain(ratios):
        return f"Measured again in turns: {median(ratios):.2f} times the present throughput (each turn: {measured})."
    return (
        f"Measured again in turns, {settings} is no better ({measured}, times the present throughput under the goal): "
        "the configuration stays as it is. A quieter machine, or a longer --window, says more."
    )


def explained(trials: Sequence[Trial], best: Trial, goal: Goal, gain: float | None = None) -> list[str]:
    """Sentences on the best settings: what each change from the configuration's own is worth, as far as it was
    measured."""
    start = trials[0]
    if best.best is None:
        least = min((p.latency_ms for t in trials for p in t.points if p.latency_ms is not None), default=None)
        return [f"No setting meets {goal.text}: the least p{goal.percent:g} was {ms(least)}."]
    if best is start:
        return [f"The configuration is best as it is: nothing gained more than {LEAST_GAIN:.0%}, which is noise."]
    ratio = gain if gain is not None else best.score / start.score if start.score else None
    said = f"{goal.text} is met" if ratio is None else f"{ratio:.2f} times as many requests/s"
    found = [f"{best.settings}: {said} (now: {start.settings})."]
    by_settings = {trial.settings: trial for trial in trials}
    for name, title in _TITLES.items():
        now, new = getattr(start.settings, name), getattr(best.settings, name)
        if now == new:
            continue
        without = next((t for s, t in by_settings.items() if _differ(s, best) == {name: now}), None)
        if without is not None and without.score:
            # The turns have measured the best settings beside the present ones again.
            times = gain if gain is not None and without is start else best.score / without.score
            change = times - 1
            worth = f"{change:+.0%} requests/s" if abs(change) > LEAST_GAIN else "within the noise"
            found.append(f"  {title}: {_said(name, now)} → {_said(name, new)}, all else equal: {worth}.")
        else:
            found.append(f"  {title}: {_said(name, now)} → {_said(name, new)}.")
    return found


def _differ(settings: object, best: Trial) -> dict[str, object]:
    return {n: getattr(settings, n) for n in _TITLES if getattr(settings, n) != getattr(best.settings, n)}


def _said(name: str, value: object) -> str:
    if name == "threads" and value == 0:
        return "all cores"
    if name != "delay_us":
        return str(value)
    return "no batching" if value is None else f"{value} µs"


def as_json(trials: Sequence[Trial], best: Trial, goal: Goal, ratios: Sequence[float]) -> dict[str, Any]:
    """All trials in their order, the best and the present settings. Latencies in ms, of the goal's percentile."""

    def trial_json(trial: Trial) -> dict[str, Any]:
        found: dict[str, Any] = {"settings": asdict(trial.settings), "points": [asdict(each) for each in trial.points]}
        found["best"] = None if trial.best is None else asdict(trial.best)
        found["batch_ms_by_rows"] = {str(rows): ms for rows, ms in sorted(trial.curve.ms.items())}
        return found | ({"refusal": trial.refusal} if trial.refusal else {})

    return {
        "goal": goal.text,
        "is_met": best.best is not None,
        "now": trial_json(trials[0]),
        "best": trial_json(best),
        "turns": list(ratios),
        "trials": [trial_json(each) for each in trials],
    }


def svg(model: str, trials: Sequence[Trial], best: Trial, goal: Goal) -> str:
    """A picture with a point for each level of load of each trial; lines join the points of the configuration's own
    settings, and those of the best."""

    def points(trial: Trial) -> list[tuple[float, float, str]]:
        inside = sorted(trial.points, key=lambda point: point.concurrency)
        return [(p.requests_per_s, p.latency_ms or 0.0, f"{trial.settings}, {p.concurrency} at once") for p in inside]

    others = [point for trial in trials if trial not in (trials[0], best) for point in points(trial)]
    series = [picture.Series("others", others, is_line=False), picture.Series("now", points(trials[0]))]
    if best is not trials[0]:
        series.append(picture.Series("best", points(best)))
    return picture.svg(f"Model {model}: p{goal.percent:g} against throughput", series, goal.most_ms)

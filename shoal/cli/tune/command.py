"""The verb `tune`: the settings of a model with the most throughput under a latency goal, found by trials."""

import argparse
import difflib
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.cli.bench import arguments as values
from shoal.cli.operate import seconds
from shoal.cli.remote import DEFAULT_URL, NoResponseError, RefusedError, RemoteServer
from shoal.cli.request_arguments import add_requests, count, writable, write
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, not_empty, run_verb, show_before
from shoal.file_kinds import is_dir
from shoal.passwords import shown_url

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.cli.run_inputs import RunRequest
    from shoal.cli.tune.search import Point, Settings, Trial
    from shoal.cli.tune.trial_server import TrialModel

EXIT_MISSED = 4
#: The usual length of one measurement's window in seconds, and the least, for a search with little time (ours).
_WINDOW_S, _LEAST_WINDOW_S = 0.4, 0.1
#: Bounds for the measurement of one level of load (ours): it is short, since a search measures many levels; what noise
#: this leaves is smaller than search.LEAST_GAIN.
_LEAST_REQUESTS, _MOST_WINDOWS, _TOLERANCE_PERCENT, _TIMEOUT_S = 20, 4, 15.0, 60.0
_QUESTION = "Which model, and which goal? As in: shoal tune digits --goal p99=20ms"
_HELP = """\
Search the number of instances, their threads, the batch size and the queue delay with which a model answers the most
requests under a latency goal. A server of its own, on a free port, loads the model from the repository with one setting
after the other, and is loaded as by `shoal bench`; the repository stays as it is. The server has timed batches of each
size: settings that cannot win by these times are not tried. The result is a table of all trials, and the change of
config.pbtxt as a diff.

Examples:
  shoal tune digits --model-repository model_repository --goal p99=20ms
  shoal tune digits --model-repository model_repository --goal p95=5ms --budget 600 --svg digits.svg
  shoal tune digits --model-repository models --goal p99=20ms --apply     # write it, and have the server load it

The search:
  --model-repository <directory>  where the model lies (default: model_repository)
  --goal <goal>               the latency that must be kept: p99=20ms, p50=800us
  --budget <seconds>          time for the search and its turns; the turns of two settings are measured even when it is
                              used up (default: 120)
  --turns <count>             at the end the best settings, two to four with the present ones among them, are measured
                              again, in so many turns; only one whose median is better than that of the present ones
                              is proposed (default: 3)
  --trials <count>            try so many settings at most
  --concurrency <most>        the most requests at a time (default: 64)
  --window <seconds>          length of one window of a trial; longer ones are less noisy (default: 0.4; with a --budget
                              below 40 a hundredth of it, at least 0.1)

The requests are given as to `shoal bench`: <input>=<value>, --data <file>, --sample zeros|ones|random,
--shape <input>:<size>,…, --batch-size <rows>.

The result:
  --apply                     write config.pbtxt, and have the server at --url load the model with it; if it refuses,
                              the file is what it was
  --url <url>                 the URL of that server (default: $SHOAL_URL, or http://127.0.0.1:8000); it needs
                              --model-control-mode=explicit
  --svg <file>                write a picture of all trials
  --json                      print JSON: all trials, the best, and the change of config.pbtxt
  --help                      print this and exit

Run it on the machine that will serve, with nothing else on it. Exit codes: 0 done; 1 the command is wrong; 2 the model
or the change was refused; 3 no answer; 4 no setting meets the goal.
"""


def tune(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Search, print, and apply; returns the exit code."""
    parser = VerbParser("tune", "<model> --model-repository <directory> --goal p99=20ms [options]", _HELP)
    add_requests(parser, _QUESTION, "random", is_whole=False)
    where = not_empty("Where does the model lie? --model-repository names the directory above it.", Path)
    parser.add_argument("--model-repository", type=where, default=Path("model_repository"))
    parser.add_argument("--goal", type=values.latency_goal)
    parser.add_argument("--budget", type=seconds, default=120.0)
    parser.add_argument("--turns", type=count, default=3)
    parser.add_argument("--trials", type=count, default=1000)
    parser.add_argument("--concurrency", type=count, default=64)
    parser.add_argument("--window", type=seconds)
    parser.add_argument("--shape", action="append", default=[], type=values.shape)
    parser.add_argument("--batch-size", type=count, default=1)
    parser.add_argument("--apply", action="store_true")
    parser.add_argument("--url")
    parser.add_argument("--svg", type=writable)
    return run_verb(parser, argv, lambda given: _tune(given, environ))


class _Outcome(NamedTuple):
    """The outcome of a search: all trials, the best one, and the turns in which the best ones were measured again."""

    config: Mapping[str, Any]
    start: "Settings"
    trials: "list[Trial]"
    best: "Trial"
    other: "Trial"  # the best finalist but the first; its gain may be too small to propose it
    ratios: list[float]  # for each turn: the throughput of `other` by that of the first finalist
    is_compared: bool  # whether the present settings are the first finalist
    num_left: int  # settings that were not tried
    num_skipped: int  # settings that cannot win by the times of earlier trials


def _tune(given: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if given.goal is None:
        raise CommandLineError(_QUESTION)
    if not is_dir(given.model_repository / given.model):
        raise CommandLineError(f"There is no model '{given.model}' in {given.model_repository} (--model-repository).")
    given.window = given.window or max(_LEAST_WINDOW_S, min(_WINDOW_S, given.budget / 100))
    from shoal.cli.tune import other_programs, report
    from shoal.cli.tune.trial_server import trial_server

    before = other_programs.read()
    with trial_server(given.model_repository, given.model) as server:
        outcome = _search(given, server)
    num_processors = os.cpu_count() or 1
    others_share = other_programs.share(before, other_programs.read(), num_processors)  # the server has ended
    trials, best = outcome.trials, outcome.best
    text, path = _config_text(given)
    changed = _changed_text(text, outcome.config, outcome.start, best.settings)
    old, new = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    diff = "".join(difflib.unified_diff(old, new, str(path), str(path)))
    document = {"model": given.model, **report.as_json(trials, best, given.goal, outcome.ratios)}
    document |= {"other_programs_share": round(others_share, 3), "diff": diff}

    def use() -> None:
        if given.svg is not None:
            write(given.svg, report.svg(given.model, trials, best, given.goal))
        if given.apply and best.best is not None and changed != text:
            _apply(given, environ, path, text, changed)

    found = _as_text(given, outcome, others_share)
    show_before(use, document, found + f"\n\n{diff}".rstrip("\n"), as_json=given.json)
    return EXIT_MISSED if best.best is None else EXIT_DONE


def _search(given: argparse.Namespace, server: RemoteServer) -> _Outcome:
    """Try settings one after the other on a server that has the model, then measure the best ones again in turns."""
    from shoal.cli.tune import report, search
    from shoal.cli.tune.trial_server import TrialModel

    trials: list[Trial] = []
    skipped: set[Settings] = set()
    config = server.model_config(given.model)
    model = TrialModel(server, config, _requests(given, config))
    start = search.settings_of(config)
    space = search.space_of(config, given.goal.most_ms, len(os.sched_getaffinity(0)))
    budget = search.Budget(given.budget, given.turns, given.window * (_MOST_WINDOWS + 0.5))
    start_s = time.monotonic()

    def is_over() -> bool:
        return budget.trials_are_over(time.monotonic() - start_s)

    def is_enough() -> bool:
        return is_over() or len(trials) >= given.trials

    def may_win(settings: "Settings", so_far: "Collection[Trial]") -> bool:
        if not search.cannot_win(settings, so_far, given.batch_size):
            return True
        skipped.add(settings)
        return False

    try_out = partial(_try_out, given, model, trials, is_over)
    for trial in search.search(start, space, try_out, is_enough, may_win):
        trials.append(trial)
        print(f"{len(trials)}: {report.line(trial, given.goal)}", file=sys.stderr, flush=True)
    best = other = search.winner(trials)
    ratios: list[float] = []
    if again := search.finalists(trials, budget.num_finalists(time.monotonic() - start_s)):
        index, ratios = search.best_of_turns(_in_turns(given, model, again, trials[0]), again)
        other = again[index]
        best = other if search.is_gain(ratios) else again[0]
    is_compared = bool(again) and again[0] is trials[0]
    num_left = space.num_settings - len(trials)
    return _Outcome(config, start, trials, best, other, ratios, is_compared, num_left, len(skipped))


def _as_text(given: argparse.Namespace, outcome: _Outcome, others_share: float) -> str:
    """The report of a search for people."""
    from shoal.cli.tune import curve, other_programs, report

    gain = median(outcome.ratios) if outcome.is_compared else None
    found = report.as_text(outcome.trials, outcome.best, given.goal, num_left=outcome.num_left, gain=gain)
    if said := curve.as_text(outcome.trials[0].curve, outcome.num_skipped):
        found += f"\n{said}"
    if outcome.is_compared:
        found += "\n" + report.confirmation(outcome.ratios, outcome.other.settings)
    if said := other_programs.as_text(others_share):
        found += f"\n{said}"
    return found


def _requests(given: argparse.Namespace, config: Mapping[str, Any]) -> "list[RunRequest]":
    from shoal.cli.run_inputs import read_requests

    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise CommandLineError(f"Model '{given.model}' streams (decoupled): tune measures models that answer once.")
    if config.get("ensemble_scheduling"):
        raise CommandLineError(f"Model '{given.model}' is an ensemble: tune the models of its steps.")
    shapes, rows = dict(given.shape), given.batch_size
    return read_requests(dict(config), given.inputs, given.data, given.sample, shapes=shapes, rows=rows)


def _try_out(
    given: argparse.Namespace,
    model: "TrialModel",
    earlier: "Sequence[Trial]",
    is_over: Callable[[], bool],
    settings: "Settings",
) -> "Trial":
    """Load the model with the settings, and look for the most throughput under the goal."""
    from shoal.cli.tune import search
    from shoal.cli.tune.curve import curve_of

    try:
        wanted = model.load(settings)
    except RefusedError as error:
        if not earlier:
            raise  # these are the model's own settings: without them there is nothing to compare with
        return search.Trial(settings, refusal=str(error))
    measure = partial(_measure, given, model, wanted)
    # Begin at the level of load at which the best earlier trial had its best throughput.
    best = max(earlier, key=lambda trial: trial.score, default=None)
    first = best.best.concurrency if best is not None and best.best is not None else min(4, given.concurrency)
    points = search.climb(measure, given.goal.most_ms, first, given.concurrency, is_over)
    trial = search.trial_of(settings, points, given.goal.most_ms)
    return replace(trial, curve=curve_of(model.server.explanation(given.model)))


def _measure(
    given: argparse.Namespace,
    model: "TrialModel",
    config: dict[str, Any],
    concurrency: int,
) -> "Point":
    """Measure one level of load."""
    from shoal.cli.bench.measurement import Plan
    from shoal.cli.tune.search import Point

    plan = Plan(given.window / 2, given.window, _LEAST_REQUESTS, _MOST_WINDOWS, _TOLERANCE_PERCENT, _TIMEOUT_S)
    whole = model.measure(config, concurrency, plan)
    latency_ms = whole.percentile_ms(given.goal.percent)
    return Point(concurrency, whole.requests_per_s, latency_ms, whole.num_errors)


def _in_turns(
    given: argparse.Namespace,
    model: "TrialModel",
    finalists: "Sequence[Trial]",
    start: "Trial",
) -> list[list[float]]:
    """The throughput of all finalists in each turn, each measured at the level of load that was best for it. Every
    second turn goes through the finalists from the last to the first.

    A finalist that misses the goal counts as 0 in that turn, except the configuration's own settings.
    """
    turns: list[list[float]] = []
    for number in range(given.turns):
        rates: dict[int, float] = {}
        order = range(len(finalists))
        for index in reversed(order) if number % 2 else order:
            trial = finalists[index]
            assert trial.best is not None, "it met the goal"
            point = _measure(given, model, model.load(trial.settings), trial.best.concurrency)
            rates[index] = point.requests_per_s if trial is start or point.meets(given.goal.most_ms) else 0.0
        turns.append([rates[index] for index in order])
        print(f"turn {number + 1}: " + ", ".join(f"{rate:,.0f}" for rate in turns[-1]), file=sys.stderr, flush=True)
    return turns


def _config_text(given: argparse.Namespace) -> tuple[str, Path]:
    """The text of the model's config.pbtxt, "" where it has none, and its path."""
    path: Path = given.model_repository / given.model / "config.pbtxt"
    try:
        return path.read_text(encoding="utf-8"), path
    except FileNotFoundError:
        return "", path


def _changed_text(text: str, config: Mapping[str, Any], start: "Settings", best: "Settings") -> str:
    """The configuration's text with the best settings; only what differs is changed. Raises CommandLineError."""
    from shoal.cli.tune.pbtxt_edit import inside, replaced, with_parameter
    from shoal.cli.tune.search import threads_parameter

    wanted: dict[str, str | None] = {}
    try:
        if best.max_batch != start.max_batch:
            wanted["max_batch_size"] = f"max_batch_size: {best.max_batch}"
        if best.delay_us is None and start.delay_us is not None:
            wanted["dynamic_batching"] = None
        elif best.delay_us is not None and (best.delay_us, best.max_batch) != (start.delay_us, start.max_batch):
            delay = f"max_queue_delay_microseconds: {best.delay_us}"
            within = replaced(
                inside(text, "dynamic_batching"),
                {"preferred_batch_size": None, "max_queue_delay_microseconds": delay},
            )
            body = "".join(f"  {line.strip()}\n" for line in within.splitlines() if line.strip())
            wanted["dynamic_batching"] = f"dynamic_batching {{\n{body}}}"
        if best.instances != start.instances:
            kind = config["instance_group"][0].get("kind", "KIND_CPU")
            group = _group(text)
            group = replaced(
                group, {"count": f"count: {best.instances}"} | ({} if group else {"kind": f"kind: {kind}"})
            )
            body = "".join(f"    {line.strip()}\n" for line in group.splitlines() if line.strip())
            wanted["instance_group"] = f"instance_group [\n  {{\n{body}  }}\n]"
        found = replaced(text, wanted)
        if best.threads is not None and best.threads != start.threads:
            found = with_parameter(found, threads_parameter(config), str(best.threads))
        return found
    except ValueError as error:
        raise CommandLineError(f"config.pbtxt cannot be changed: {error}") from None


def _group(text: str) -> str:
    """The inside of the only instance group; "" where the text has none."""
    from shoal.cli.tune.pbtxt_edit import inside

    within = inside(text, "instance_group").strip()
    return within[1:-1].strip() if within.startswith("{") and within.endswith("}") else within


def _apply(given: argparse.Namespace, environ: Mapping[str, str], path: Path, text: str, changed: str) -> None:
    """Write the configuration, and have the running server load it. Raises RefusedError or NoResponseError; the file
    then has its old contents again."""
    url = given.url or environ.get("SHOAL_URL") or DEFAULT_URL
    try:
        with closing(RemoteServer(url, timeout_s=600, headers={})) as server:
            path.write_text(changed, encoding="utf-8")
            try:
                server.load(given.model)
            except (RefusedError, NoResponseError):
                path.write_text(text, encoding="utf-8") if text else path.unlink()
                raise
    except ValueError as error:
        raise CommandLineError(str(error)) from None
    except OSError as error:
        raise CommandLineError(f"--apply: cannot write {path}: {error.strerror}") from None
    print(f"\nWritten to {path}, and loaded by {shown_url(url)}.", file=sys.stderr if given.json else sys.stdout)

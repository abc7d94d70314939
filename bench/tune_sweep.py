"""Compares `shoal tune` with an exhaustive sweep: python -m bench.tune_sweep MODEL --goal p99=20ms

`shoal tune` searches first. Then every combination of the settings that it chooses from is loaded and measured by short
windows at a few levels of load, and the best of these, with tune's choice and the configuration's own, are measured
again in turns by longer windows. Every other turn decides which setting is the best. In the rest of the turns, the
throughput of tune's choice under the goal is taken as a share of the best's, and the median of these shares is the
result. (If the same turns chose the best and compared it, luck would choose it: of five equal settings whose turns have
a standard deviation of 15 %, tune's would have a share of 0.93.) A turn of a setting in which other programs took more
than MOST_FOREIGN of the machine is measured again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import quiet_turn
from bench.peers import ROOT, SHOAL_PYTHON
from shoal.cli.bench.arguments import Goal, latency_goal
from shoal.cli.bench.measurement import Plan
from shoal.cli.remote import RefusedError, RemoteServer
from shoal.cli.run_inputs import read_requests
from shoal.cli.tune.search import Settings, settings_of, space_of
from shoal.cli.tune.trial_server import TrialModel, trial_server

#: Levels and seconds of a combination's windows in the sweep, and of those that are measured again.
SWEEP_LEVELS, SWEEP_S = (8, 64), 0.12
FINAL_LEVELS, FINAL_S, NUM_FINALISTS = (8, 32, 64), 0.4, 5
#: The largest share of the machine's time that other programs may take in a turn of a setting, and how often such a
#: turn is measured at most (ours).
MOST_FOREIGN, MOST_TRIES = 0.06, 4


class Sweep:
    """A model on a server of its own, loaded with one setting after the other."""

    def __init__(self, server: RemoteServer, model: str, goal: Goal) -> None:
        self.config: dict[str, Any] = server.model_config(model)
        self._model = TrialModel(server, self.config, read_requests(self.config, [], None, "random"))
        self._goal = goal

    def score(self, settings: Settings, levels: Sequence[int], seconds: float) -> float:
        """The most requests a second at one of the levels that meets the goal; 0 if none does."""
        try:
            wanted = self._model.load(settings)
        except RefusedError:
            return 0.0
        return max(self._rate(wanted, level, seconds) for level in levels)

    def turn(self, settings: Settings) -> float:
        """The score by longer windows at more levels, on a machine that is quiet meanwhile or becomes so."""
        found = 0.0
        for _ in range(MOST_TRIES):
            found, is_quiet = quiet_turn(partial(self.score, settings, FINAL_LEVELS, FINAL_S), MOST_FOREIGN)
            if is_quiet:
                break
        return found

    def _rate(self, config: dict[str, Any], level: int, seconds: float) -> float:
        whole = self._model.measure(config, level, Plan(seconds / 2, seconds, 20, 1, 100, 60))
        return whole.requests_per_s if self._goal.is_met(whole) and not whole.num_errors else 0.0


def tuned(model: str, repository: Path, goal: str, budget_s: float) -> tuple[Settings, int]:
    """The settings that `shoal tune` chooses, and the number of its trials."""
    command = [f"{SHOAL_PYTHON.with_name('shoal')}", "tune", model, f"--goal={goal}", f"--budget={budget_s}", "--json"]
    done = subprocess.run([*command, f"--model-repository={repository}"], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    return Settings(**found["best"]["settings"]), len(found["trials"])


def every(config: Mapping[str, Any], goal: Goal) -> list[Settings]:
    """All combinations."""
    space = space_of(config, goal.most_ms, len(os.sched_getaffinity(0)))
    batches = {delay: space.max_batch if delay is not None else space.max_batch[:1] for delay in space.delay_us}
    return [
        Settings(instances, max_batch, delay, threads)
        for instances, threads, delay in product(space.instances, space.threads, space.delay_us)
        for max_batch in batches[delay]
    ]


def main() -> None:
    """Search, sweep, measure again, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--goal", default="p99=20ms")
    parser.add_argument("--model-repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--budget", type=float, default=120)
    parser.add_argument("--turns", type=int, default=8, help="at least two (default: 8)")
    given = parser.parse_args()
    goal, start_s = latency_goal(given.goal), time.monotonic()
    chosen, num_trials = tuned(given.model, given.model_repository, given.goal, given.budget)
    tune_s = time.monotonic() - start_s
    with trial_server(given.model_repository, given.model) as server:
        sweep = Sweep(server, given.model, goal)
        combinations = every(sweep.config, goal)
        print(f"tune: {num_trials} trials, {tune_s:.0f} s: {chosen}; {len(combinations)} combinations", file=sys.stderr)
        scores = {settings: sweep.score(settings, SWEEP_LEVELS, SWEEP_S) for settings in combinations}
        first = sorted(scores, key=lambda each: -scores[each])[:NUM_FINALISTS]
        finalists = list(dict.fromkeys([chosen, settings_of(sweep.config), *first]))
        again: dict[Settings, list[float]] = {each: [] for each in finalists}
        for turn in range(given.turns):
            for each in finalists if turn % 2 else reversed(finalists):
                again[each].append(sweep.turn(each))
    rates = {each: median(found[::2]) for each, found in again.items()}
    best = max(rates, key=lambda each: rates[each])
    # The shares are of neighbours in time, since the machine may be faster in one turn than in another.
    compared = zip(again[chosen][1::2], again[best][1::2], strict=True)
    shares = sorted(mine / max(most, 1e-9) for mine, most in compared)
    found = {
        "model": given.model, "goal": given.goal, "trials": num_trials, "combinations": len(combinations),
        "tune_s": round(tune_s), "all_s": round(time.monotonic() - start_s), "share": median(shares), "shares": shares,
        "finalists": [{**asdict(each), "rate": round(rates[each]), "turns": [round(rate) for rate in again[each]],
                       "is": "tune's" * (each == chosen) or "now" * (each == settings_of(sweep.config))}
                      for each in sorted(finalists, key=lambda each: -rates[each])],
    }  # fmt: skip
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

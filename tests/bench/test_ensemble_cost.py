"""What a step costs the batcher: ensembles are answered for real, and nobody else is counted."""

import cProfile
import pstats

import pytest

from bench.ensemble_cost import CASES, Case, Run
from bench.instructions import find_perf

pytestmark = pytest.mark.skipif(
    find_perf() is None, reason="NOT CHECKED: instruction counts, since perf is missing or this machine has no counters"
)


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.name)
def test_all_are_answered_and_the_batcher_is_counted(case: Case) -> None:
    run = Run(case, 32, None)
    run.run()
    assert run.num_answers >= 32
    assert 10_000 < run.instructions / run.num_answers < 2_000_000


def test_a_profile_is_the_batchers() -> None:
    profile = cProfile.Profile()
    Run(CASES[1], 3, profile).run()
    functions = pstats.Stats(profile).get_stats_profile().func_profiles
    assert "_hear" in functions
    assert "work" not in functions

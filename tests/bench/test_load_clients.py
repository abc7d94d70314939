"""The comparisons of Shoal's own tools with others: what a row says, and that a sweep has every combination."""

import os

from bench.load_clients import SITUATIONS, Seen, row
from bench.tune_sweep import every
from shoal.cli.bench.arguments import latency_goal
from shoal.cli.tune.search import settings_of, space_of

CONFIG = {
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "dynamic_batching": {"max_queue_delay_microseconds": 100},
    "parameters": {},
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}


def test_a_row_has_medians_and_the_ratios_of_pairs() -> None:
    mine = [Seen(1000.0, 0.5, 1.0, 0.2), Seen(2000.0, 0.3, 2.0, 0.4), Seen(1500.0, 0.4, 1.5, 0.3)]
    theirs = [Seen(1000.0, 0.5, 1.0, 0.1), Seen(1000.0, 0.6, 1.0, 0.1), Seen(1000.0, 0.8, 1.0, 0.1)]
    cells = [cell.strip() for cell in row(SITUATIONS[0], mine, theirs).split("|")]
    assert cells[1:] == [
        "identity_16, 1 at once, a core each", "1,500", "0.400", "1.50", "30%", "1,000", "0.600", "1.00", "10%",
        "1.500 (1.000–2.000)", "0.500", "3", "",
    ]  # fmt: skip


def test_a_sweep_has_every_combination_once() -> None:
    goal = latency_goal("p99=4ms")
    found, space = every(CONFIG, goal), space_of(CONFIG, goal.most_ms, len(os.sched_getaffinity(0)))
    assert len(set(found)) == len(found)
    assert settings_of(CONFIG) in found
    assert len(found) == space.num_settings

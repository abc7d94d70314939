"""batch_account.py: why batches of the dynamic batcher had their size, by example."""

import pytest

from shoal.batcher.scheduling.batch_account import (
    MEANINGS,
    NUM_COUNTED,
    NUM_LISTED,
    BatchReason,
    account,
    noted,
    summary,
)
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler
from tests.batcher.scheduling.bench import D_US, Bench, D, busy


def reasons(bench: Bench) -> list[tuple[int, str]]:
    """Rows and reason of each batch so far."""
    assert isinstance(bench.scheduler, DynamicBatchScheduler)
    return [(each["rows"], each["reason"]) for each in summary(bench.scheduler.account)["last_batches"]]


def test_an_idle_instance() -> None:
    bench = busy()
    bench.trickle(1, 2)
    bench.complete()
    assert reasons(bench) == [(1, "instance_idle"), (3, "instance_idle")]


@pytest.mark.parametrize("sizes", [(4, 4), (6, 3)])
def test_a_full_batch(sizes: tuple[int, ...]) -> None:
    bench = busy()
    bench.trickle(*sizes)
    bench.complete()
    assert reasons(bench)[1] == (8 if sum(sizes) == 8 else 6, "full")


def test_a_preferred_size() -> None:
    bench = Bench(preferred=(4, 8))
    bench.add(*[1] * 6)
    bench.take()
    assert reasons(bench) == [(4, "preferred_size")]


def test_the_delay() -> None:
    bench = Bench(delay_us=D_US)
    bench.trickle(1, 1)
    bench.take(at=D)
    assert reasons(bench) == [(2, "delay_over")]


def test_another_shape() -> None:
    bench = Bench()
    bench.add(1, 1, shape_key=1)
    bench.add(1, shape_key=2)
    bench.take()
    assert reasons(bench) == [(2, "shapes_differ")]


def test_a_request_that_an_instance_died_with() -> None:
    bench = busy()
    bench.add(1)
    (died,) = bench.scheduler.drain()
    bench.scheduler.add_first(died)
    bench.complete()
    assert reasons(bench)[1] == (1, "run_again")


def test_as_much_is_told_as_fits() -> None:
    batches = account()
    batches.extend([noted(3, BatchReason.FULL)] * 10 + [noted(70, BatchReason.NO_GAIN)] * NUM_COUNTED)
    assert summary(batches) == {
        "reasons": [{"reason": "no_gain", "meaning": MEANINGS[BatchReason.NO_GAIN], "batches": NUM_COUNTED}],
        "last_batches": [{"rows": 70, "reason": "no_gain"}] * NUM_LISTED,
    }
    assert set(MEANINGS) == set(BatchReason)

"""Batching by length: by example, and in any schedule what may never happen."""

from random import Random
from typing import Any

import pytest

from shoal.batcher.scheduling.lengths import KNOWN, CostLine, LengthBatchScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config
from shoal.deterministic import ALONE_KEY
from shoal.errors import UnavailableError

#: What an execution of these models takes: so long, and so long per element (ns).
FIXED_NS, ELEMENT_NS = 1_000_000, 1_000


def scheduler_of(strategy: str = "pad", delay_us: int = 0, max_batch_size: int = 8, **parameters: Any) -> Any:
    given = {"ragged": strategy, **parameters}
    config = {
        "name": "m",
        "max_batch_size": max_batch_size,
        "dynamic_batching": {"max_queue_delay_microseconds": delay_us},
        "parameters": {key: {"string_value": str(text)} for key, text in given.items()},
    }
    scheduler = from_config(config, 1000)
    assert type(scheduler) is LengthBatchScheduler
    scheduler.add_instance(0)
    return scheduler


def add(scheduler: Any, *lengths: int, first: int = 0, rows: int = 1, at: int = 0) -> None:
    """Requests of these lengths, numbered from `first` on."""
    for number, length in enumerate(lengths, first):
        scheduler.add(QueuedRequest(number, rows, length, at), at)


def run(scheduler: Any, at: int = 0) -> list[list[int]]:
    """The batches that the only instance executes one after the other, until nothing waits or nothing may run."""
    batches = []
    while (batch := scheduler.take(at)) is not None:
        batches.append([request.key for request in batch.requests])
        elements = batch.rows * max(request.shape_key for request in batch.requests)
        scheduler.complete(0, at, FIXED_NS + ELEMENT_NS * elements)
    return batches


def practise(scheduler: Any) -> Any:
    """Let it see executions of many sizes: then it knows that 1,000 elements take as long as an execution besides."""
    for number in range(KNOWN):
        add(scheduler, 100 * (number + 1), first=1000 + number)
        run(scheduler, at=10**12)
    return scheduler


class TestPadding:
    def test_lengths_that_cost_little_padding_share_a_batch(self) -> None:
        assert run_after(practise(scheduler_of()), 100, 90, 110, 80) == [[0, 2, 1, 3]]

    def test_a_short_one_does_not_wait_for_a_long_one_to_be_executed_with_it(self) -> None:
        assert run_after(practise(scheduler_of()), 10, 5000, 12) == [[0, 2], [1]]

    def test_short_ones_are_left_out_of_a_long_ones_batch_where_an_execution_costs_less(self) -> None:
        assert run_after(practise(scheduler_of()), 5000, 10, 12, 4500) == [[0, 3], [1, 2]]

    def test_where_elements_cost_nothing_all_go_together(self) -> None:
        scheduler = scheduler_of()
        for number in range(KNOWN):
            add(scheduler, 100 * (number + 1), first=1000 + number)
            assert scheduler.take(0) is not None
            scheduler.complete(0, 0, FIXED_NS)
        assert run_after(scheduler, 10, 300, 12) == [[0, 2, 1]]

    def test_no_short_one_is_padded_to_a_length_that_nothing_is_known_of(self) -> None:
        """Seven rows of ten elements, padded to the million of an eighth, would take 32 MB."""
        scheduler = scheduler_of()
        for number in range(KNOWN):
            add(scheduler, 100 * (number + 1), first=1000 + number)
            assert scheduler.take(0) is not None
            scheduler.complete(0, 0, FIXED_NS)
        assert run_after(scheduler, *[10] * 6, 1_000_000, 10) == [[0, 1, 2, 3, 4, 5, 7], [6]]

    def test_before_anything_is_known_half_of_a_batch_may_be_padding(self) -> None:
        assert run_after(scheduler_of(), 10, 20) == [[0, 1]]
        assert run_after(scheduler_of(), 10, 21) == [[0], [1]]

    def test_lengths_of_one_bucket_cost_nothing(self) -> None:
        assert run_after(scheduler_of(ragged_buckets="64,512"), 1, 64, 60, 500) == [[0, 1, 2], [3]]

    def test_a_length_beyond_all_buckets_is_one_by_itself(self) -> None:
        scheduler = scheduler_of("bucket", ragged_buckets="64,128")
        assert run_after(scheduler, 200, 129, 200) == [[0, 2], [1]]


class TestBuckets:
    def test_powers_of_two_are_buckets_where_none_are_named(self) -> None:
        assert run_after(scheduler_of("bucket"), 5, 9, 8, 16, 7, 4) == [[0, 2, 4], [1, 3], [5]]

    def test_no_request_joins_another_bucket_however_cheap(self) -> None:
        assert run_after(practise(scheduler_of("bucket", ragged_buckets="8,9")), 8, 9) == [[0], [1]]


class TestPacking:
    def test_all_lengths_go_together_up_to_so_many_elements(self) -> None:
        assert run_after(scheduler_of("pack", max_batch_elements=100), 1, 90, 9, 1, 99) == [[0, 1, 2], [3, 4]]

    def test_a_request_that_has_more_by_itself_goes_alone(self) -> None:
        assert run_after(scheduler_of("pack", max_batch_elements=100), 500, 1) == [[0], [1]]


def run_after(scheduler: Any, *lengths: int) -> list[list[int]]:
    add(scheduler, *lengths)
    return run(scheduler)


def test_elements_are_bounded_padding_included() -> None:
    assert run_after(scheduler_of(max_batch_elements=40, ragged_buckets="10"), *[3] * 6) == [[0, 1, 2, 3], [4, 5]]


def test_rows_are_bounded() -> None:
    scheduler = scheduler_of()
    add(scheduler, 5, 5, 5, rows=3)
    assert run(scheduler) == [[0, 1], [2]]


def test_a_batch_waits_for_the_delay_unless_it_is_full() -> None:
    scheduler = scheduler_of(delay_us=100, max_batch_size=2)
    add(scheduler, 5, at=0)
    assert (run(scheduler, at=99_999), scheduler.next_deadline_ns()) == ([], 100_000)
    assert run(scheduler, at=100_000) == [[0]]
    add(scheduler, 5, 5, at=100_000, first=1)
    assert run(scheduler, at=100_000) == [[1, 2]]
    assert [each["reason"] for each in scheduler.explain()["last_batches"]] == ["delay_over", "full"]
    assert scheduler.next_deadline_ns() is None


def test_a_full_batch_of_the_oldests_length_does_not_wait_for_its_neighbours() -> None:
    scheduler = scheduler_of(delay_us=100, max_batch_elements=20)
    add(scheduler, 10, 10, 1)
    assert run(scheduler) == [[0, 1]]
    assert scheduler.pending == 1


def test_what_ran_when_an_instance_died_runs_again_first_and_alone() -> None:
    scheduler = scheduler_of(delay_us=100)
    add(scheduler, 5)
    scheduler.add_first(QueuedRequest(9, 1, 5, 0))
    assert (scheduler.pending, run(scheduler)) == (2, [[9]])


def test_a_request_alone_shares_no_batch_and_does_not_wait() -> None:
    scheduler = scheduler_of(delay_us=100)
    scheduler.add(QueuedRequest(0, 1, ALONE_KEY, 0), 0)
    add(scheduler, 5, 5, first=1)
    assert run(scheduler) == [[0]]
    scheduler.add(QueuedRequest(3, 1, ALONE_KEY | 3, 0), 0)
    add(scheduler, 5, first=4)
    assert run(scheduler) == [[1, 2, 4], [3]]  # those before it do not wait either


def test_what_was_wasted_is_told() -> None:
    scheduler = scheduler_of(ragged_buckets="10")
    assert run_after(scheduler, 4, 6) == [[0, 1]]
    told = scheduler.explain()
    assert (told["scheduler"], told["strategy"], told["padding_share"], told["fixed_elements"]) == (
        "lengths", "pad", 0.5, None,
    )  # fmt: skip


def test_requests_are_cancelled_drained_and_refused() -> None:
    scheduler = scheduler_of()
    add(scheduler, 5, 6, 7)
    scheduler.add_first(QueuedRequest(8, 1, 5, 0))
    assert scheduler.cancel(1)
    assert scheduler.cancel(8)
    assert not scheduler.cancel(1)
    assert [request.key for request in scheduler.drain()] == [0, 2]
    assert scheduler.pending == scheduler.oldest_ns() == 0
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        add(scheduler, *[1] * 1001)


def test_the_line_through_executions() -> None:
    line = CostLine()
    for elements in (100, 5000, 300, 2000, 50, 800, 4000):
        line.learn(elements, FIXED_NS + ELEMENT_NS * elements)
    assert line.fixed_elements() is None  # one too few
    line.learn(10, FIXED_NS + ELEMENT_NS * 10)
    assert line.fixed_elements() == pytest.approx(FIXED_NS / ELEMENT_NS)
    same = CostLine()
    for _ in range(100):
        same.learn(64, 5)
    assert same.fixed_elements() is None  # one size tells nothing


@pytest.mark.parametrize("strategy", ["pad", "bucket", "pack"])
@pytest.mark.parametrize("seed", range(40))
def test_in_any_schedule_each_request_runs_once_and_no_bound_is_exceeded(strategy: str, seed: int) -> None:
    random = Random(seed)
    most = random.choice((0, 60, 400))
    more = {"max_batch_elements": most} if most else {}
    if strategy != "pack" and random.random() < 0.5:
        more["ragged_buckets"] = "8,32,100"  # type: ignore[assignment]
    scheduler = scheduler_of(strategy, delay_us=random.choice((0, 50)), max_batch_size=random.choice((2, 8)), **more)
    scheduler.add_instance(1)
    now_ns, served, running, cancelled = 0, list[int](), list[tuple[int, int]](), set[int]()

    def take() -> None:
        while (batch := scheduler.take(now_ns)) is not None:
            lengths = [request.shape_key for request in batch.requests]
            padded = [scheduler.lengths.padded(length) for length in lengths]
            elements = sum(lengths) if strategy == "pack" else batch.rows * max(padded)
            running.append((batch.instance, elements))
            served.extend(request.key for request in batch.requests)
            assert batch.rows == sum(request.rows for request in batch.requests)
            if len(batch.requests) > 1:
                assert batch.rows <= scheduler.max_rows
                assert not most or elements <= most
            assert strategy != "bucket" or len(set(padded)) == 1

    for key in range(150):
        now_ns += random.choice((0, 1_000, 100_000))
        add(scheduler, random.choice((1, 7, 8, 9, 30, 99, 300)), first=key, rows=random.choice((1, 1, 2)), at=now_ns)
        if random.random() < 0.1 and scheduler.cancel(gone := random.randrange(key + 1)):
            cancelled.add(gone)
        if running and random.random() < 0.7:
            instance, elements = running.pop(0)
            scheduler.complete(instance, now_ns, FIXED_NS + ELEMENT_NS * elements)
        take()
        if scheduler.next_deadline_ns() is None:
            assert not scheduler.pending or len(running) == 2
    while scheduler.pending:
        now_ns += 10**9
        for instance, elements in running:
            scheduler.complete(instance, now_ns, FIXED_NS + ELEMENT_NS * elements)
        running.clear()
        take()
    assert sorted([*served, *cancelled]) == list(range(150))


@pytest.mark.parametrize("strategy", ["pad", "bucket", "pack"])
def test_the_oldest_is_always_next(strategy: str) -> None:
    random, scheduler = Random(7), scheduler_of(strategy)
    add(scheduler, *[random.choice((1, 10, 500)) for _ in range(100)])
    waiting = list(range(100))
    for batch in run(scheduler):
        assert batch[0] == waiting[0]
        waiting = [key for key in waiting if key not in batch]
    assert waiting == []

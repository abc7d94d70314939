"""The sequence batcher: by example, and over generated schedules."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.scheduling.sequence import SequenceScheduler
from shoal.batcher.scheduling.sequence_values import MAX_LOST, SequenceError
from shoal.errors import UnavailableError
from shoal.reasons import Reason
from tests.batcher.scheduling import sequence_schedules as schedules
from tests.batcher.scheduling.many_seeds import FIRST, Told, numbers_of, run_seeds

#: As many as take a second; the module can be asked for more.
NUM_SEEDED = 2000
START, END = 1, 2
#: Nanoseconds.
IDLE = 1_000_000


def scheduler(max_batch_size: int = 4, num_instances: int = 1, **batching: Any) -> SequenceScheduler:
    config = {"max_sequence_idle_microseconds": IDLE // 1000, "iterative_sequence": False, **batching}
    made = from_config({"max_batch_size": max_batch_size, "sequence_batching": config}, 100)
    assert isinstance(made, SequenceScheduler)
    for instance in range(num_instances):
        made.add_instance(instance)
    return made


def oldest(**fields: Any) -> dict[str, Any]:
    return {"max_candidate_sequences": 0, "preferred_batch_size": [], "max_queue_delay_microseconds": 0, **fields}


def add(to: SequenceScheduler, key: int, correlation: int, flags: int = 0, at: int = 0, **more: int) -> None:
    to.add(QueuedRequest(key, 1, more.pop("shape_key", 0), at, correlation=correlation, flags=flags, **more), at)


def take(of: SequenceScheduler, at: int = 0) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Batches: instance, rows, and of each request its key and slot."""
    of.expire(at)
    batches = []
    while (batch := of.take(at)) is not None:
        slots = [(request.key, (request.flags >> 8) - 1) for request in batch.requests]
        batches.append((batch.instance, batch.rows, slots))
    return batches


def test_requests_of_a_sequence_run_one_after_the_other_in_its_slot() -> None:
    tested = scheduler()
    add(tested, 1, 7, START)
    add(tested, 2, 7)
    add(tested, 3, 7, END)
    assert take(tested) == [(0, 1, [(1, 0)])]
    for key in (2, 3):
        tested.complete(0, 0, 0)
        assert take(tested) == [(0, 1, [(key, 0)])]
    tested.complete(0, 0, 0)
    assert tested.next_deadline_ns() is None


def test_a_request_belongs_to_a_sequence_or_begins_one() -> None:
    tested = scheduler()
    for correlation, flags, reason in ((7, 0, Reason.NOT_STARTED), (0, START, Reason.NO_CORRELATION)):
        with pytest.raises(SequenceError) as refusal:
            add(tested, 1, correlation, flags)
        assert refusal.value.reason is reason
    assert tested.pending == 0


def test_sequences_spread_over_instances() -> None:
    tested = scheduler(max_batch_size=2, num_instances=2)
    for correlation in range(1, 6):
        add(tested, correlation, correlation, START)
    assert take(tested) == [(0, 2, [(1, 0), (3, 1)]), (1, 2, [(2, 0), (4, 1)])]
    assert tested.pending == 1  # in the backlog


def test_a_row_without_a_request_stands_between_others() -> None:
    tested = scheduler()
    for correlation in (1, 2, 3):
        add(tested, correlation, correlation, START)
    take(tested)
    tested.complete(0, 0, 0)
    add(tested, 4, 3)
    add(tested, 5, 1)
    assert take(tested) == [(0, 3, [(5, 0), (4, 2)])]


def test_rows_of_other_shapes_wait_and_the_oldest_decides() -> None:
    tested = scheduler()
    add(tested, 1, 1, START, at=5, shape_key=1)
    add(tested, 2, 2, START, at=3, shape_key=2)
    add(tested, 3, 3, START, at=6, shape_key=2)
    assert take(tested, 6) == [(0, 3, [(2, 1), (3, 2)])]
    tested.complete(0, 6, 0)
    assert take(tested, 6) == [(0, 1, [(1, 0)])]


def test_direct_waits_for_slots_or_the_delay() -> None:
    tested = scheduler(direct={"max_queue_delay_microseconds": 5, "minimum_slot_utilization": 0.5})
    add(tested, 1, 1, START)
    assert take(tested) == []
    assert tested.next_deadline_ns() == 5000
    assert take(tested, 5000) == [(0, 1, [(1, 0)])]
    tested.complete(0, 5000, 0)
    add(tested, 2, 1, at=5001)
    add(tested, 3, 2, START, at=5001)
    assert take(tested, 5001) == [(0, 2, [(2, 0), (3, 1)])]


def test_oldest_joins_requests_of_candidates() -> None:
    tested = scheduler(
        oldest=oldest(max_candidate_sequences=6, preferred_batch_size=[2], max_queue_delay_microseconds=5)
    )
    for correlation in range(1, 8):
        add(tested, correlation, correlation, START)
    assert take(tested) == [(0, 2, [(1, 0), (2, 1)])]
    tested.complete(0, 0, 0)
    assert take(tested) == [(0, 2, [(3, 2), (4, 3)])]
    tested.complete(0, 0, 0)
    take(tested)
    tested.complete(0, 0, 0)
    add(tested, 8, 6, END, at=1)
    assert take(tested, 1) == []
    assert take(tested, 5001) == [(0, 1, [(8, 5)])]
    tested.complete(0, 5001, 0)
    assert take(tested, 5001) == [(0, 1, [(7, 5)])]  # the seventh sequence has got the slot


def test_the_end_frees_the_id_at_once_and_the_slot_when_it_has_run() -> None:
    tested = scheduler(max_batch_size=1)
    add(tested, 1, 7, START | END)
    add(tested, 2, 7, START)
    assert take(tested) == [(0, 1, [(1, 0)])]
    assert tested.pending == 1
    tested.complete(0, 0, 0)
    assert take(tested) == [(0, 1, [(2, 0)])]


def test_an_idle_sequence_ends_and_one_that_waits_or_runs_does_not() -> None:
    tested = scheduler(max_batch_size=1)
    add(tested, 1, 7, START)
    take(tested)
    add(tested, 2, 8, START)
    assert take(tested, 5 * IDLE) == []
    tested.complete(0, 5 * IDLE, 0)
    assert tested.next_deadline_ns() == 6 * IDLE
    assert take(tested, 6 * IDLE - 1) == []
    assert take(tested, 6 * IDLE) == [(0, 1, [(2, 0)])]
    with pytest.raises(SequenceError):
        add(tested, 3, 7)


def test_a_timeout_counts_in_the_backlog() -> None:
    tested = scheduler(max_batch_size=1)
    add(tested, 1, 7, START, timeout_us=1)
    add(tested, 2, 8, START)
    add(tested, 3, 8, timeout_us=1)
    assert tested.next_deadline_ns() == 1000
    tested.expire(1000)
    assert tested.refused() == [(2, Reason.SEQUENCE_TIMED_OUT), (3, Reason.SEQUENCE_TIMED_OUT)]
    assert tested.pending == 1


def test_a_cancelled_request_ends_its_sequence() -> None:
    tested = scheduler()
    add(tested, 1, 7, START)
    take(tested)
    add(tested, 2, 7)
    add(tested, 3, 7)
    assert not tested.cancel(1)
    assert tested.cancel(2)
    assert tested.refused() == [(3, Reason.CANCELLED)]
    with pytest.raises(SequenceError):
        add(tested, 4, 7)


def test_an_instances_death_ends_what_it_has_begun_only() -> None:
    tested = scheduler(max_batch_size=2)
    add(tested, 1, 7, START)
    take(tested)
    add(tested, 2, 7)
    add(tested, 3, 8, START)
    tested.remove_instance(0)
    assert tested.refused() == [(2, Reason.SEQUENCE_LOST)]
    tested.add_first(QueuedRequest(1, 1, 0, 0, correlation=7, flags=START))  # given to it, and not begun
    assert tested.refused() == [(1, Reason.SEQUENCE_LOST)]
    tested.add_instance(1)
    assert take(tested) == [(1, 1, [(3, 0)])]


def test_a_sequence_lost_with_its_instance_is_refused_until_it_begins_again() -> None:
    tested = scheduler(max_batch_size=2)
    add(tested, 1, 7, START)
    add(tested, 2, 8, START | END)
    take(tested)
    tested.remove_instance(0)
    tested.add_instance(1)
    for key, correlation, reason in (
        (3, 7, Reason.SEQUENCE_LOST), (4, 7, Reason.SEQUENCE_LOST), (5, 8, Reason.NOT_STARTED),
    ):  # fmt: skip
        with pytest.raises(SequenceError) as refusal:
            add(tested, key, correlation)
        assert refusal.value.reason is reason
    add(tested, 6, 7, START)
    assert take(tested) == [(1, 1, [(6, 0)])]


def test_what_is_remembered_of_lost_sequences_is_bounded() -> None:
    tested = scheduler(max_batch_size=1)
    for number in range(MAX_LOST + 1):
        tested.add_instance(number + 1)
        tested.remove_instance(number)
        add(tested, number, 1 + number, START)
        take(tested)
    tested.remove_instance(MAX_LOST + 1)
    reasons = []
    for correlation in (1, 2):
        with pytest.raises(SequenceError) as refusal:
            add(tested, 9999, correlation)
        reasons.append(refusal.value.reason)
    assert reasons == [Reason.NOT_STARTED, Reason.SEQUENCE_LOST]


def test_the_servers_bound_holds() -> None:
    tested = scheduler(max_batch_size=1)
    for key in range(100):
        add(tested, key, key + 1, START)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        add(tested, 100, 1)
    assert tested.pending == 100


def torchserves(num_instances: int = 1, *, batch_size: int = 4, **settings: str) -> SequenceScheduler:
    """The scheduler of an archive with sequenceBatching; `settings` are its configuration's parameters."""
    given = {"ts_sequence": "true", "ts_max_num_sequence": "2", "ts_max_sequence_queue_size": "1", **settings}
    batching = {"max_sequence_idle_microseconds": IDLE // 1000, "iterative_sequence": False, "oldest": oldest()}
    parameters = {name: {"string_value": text} for name, text in given.items()}
    made = from_config({"max_batch_size": batch_size, "sequence_batching": batching, "parameters": parameters}, 100)
    assert isinstance(made, SequenceScheduler)
    for instance in range(num_instances):
        made.add_instance(instance)
    return made


def test_torchserves_sequences_begin_with_any_request_and_are_bounded() -> None:
    tested = torchserves()
    add(tested, 1, 7)
    add(tested, 2, 8, START)
    assert take(tested) == [(0, 2, [(1, 0), (2, 1)])]
    add(tested, 3, 7)
    for key, correlation in ((4, 9), (5, 7)):  # a third sequence, and a second request that waits in one
        with pytest.raises(UnavailableError):
            add(tested, key, correlation)
    tested.complete(0, 0, 0)
    assert take(tested) == [(0, 1, [(3, 0)])]
    tested.complete(0, 0, 0)
    tested.expire(IDLE)
    add(tested, 6, 9, at=IDLE)
    assert take(tested, IDLE) == [(0, 1, [(6, 0)])]


def test_a_model_ends_its_sequence_with_all_that_waits_behind() -> None:
    tested = torchserves()
    add(tested, 1, 7)
    take(tested)
    add(tested, 2, 7)
    tested.end(0, 1)
    assert tested.refused() == [(2, Reason.QUEUE_FULL)]
    tested.end(0, 1)  # read twice, where its first reader has died
    tested.end(3, 1)
    add(tested, 3, 7)  # begins another of this id, which has no slot of the first one
    assert take(tested) == []
    tested.complete(0, 0, 0)
    assert take(tested) == [(0, 1, [(3, 1)])]
    tested.end(0, 1)
    assert tested.refused() == []


def test_a_sequence_does_not_outlive_its_time() -> None:
    tested = torchserves(ts_sequence_timeout_ms="3")
    lifetime = 3_000_000
    add(tested, 1, 7)
    take(tested)
    add(tested, 2, 7, at=10)
    add(tested, 3, 8, at=20)
    assert tested.next_deadline_ns() == lifetime
    tested.expire(lifetime)
    assert tested.refused() == [(2, Reason.SEQUENCE_TIMED_OUT)]
    assert tested.next_deadline_ns() == 20 + lifetime
    add(tested, 4, 9, at=lifetime)
    tested.complete(0, lifetime, 0)
    assert take(tested, lifetime) == [(0, 2, [(3, 1), (4, 2)])]


def test_a_client_of_torchserves_is_told_once_of_a_sequence_that_was_lost() -> None:
    tested = torchserves(num_instances=2)
    add(tested, 1, 7)
    take(tested)
    tested.remove_instance(0)
    with pytest.raises(SequenceError) as refusal:
        add(tested, 2, 7)
    assert refusal.value.reason is Reason.SEQUENCE_LOST
    add(tested, 3, 7)
    assert take(tested) == [(1, 1, [(3, 0)])]


def test_an_archive_bounds_all_requests_that_wait() -> None:
    tested = torchserves(ts_job_queue_size="1", ts_max_sequence_queue_size="0")
    add(tested, 1, 7)
    with pytest.raises(UnavailableError):
        add(tested, 2, 7)


def test_an_iterative_request_runs_until_it_is_not_given_back() -> None:
    tested = scheduler(max_batch_size=1, iterative_sequence=True)
    request = QueuedRequest(1, 1, 0, 0)
    tested.add(request, 0)
    flags = []
    for _ in range(3):
        batch = tested.take(0)
        assert batch is not None
        flags.append(batch.requests[0].flags & START)
        if len(flags) < 3:
            tested.add_again(request)
        tested.complete(0, 0, 0)
    assert flags == [START, 0, 0]
    assert tested.take(0) is None
    assert tested.next_deadline_ns() is None


def test_seeded_schedules_keep_the_promises_and_everything_comes_to_pass() -> None:
    told = run_seeds(schedules.run_any, range(FIRST, FIRST + NUM_SEEDED))
    assert told.keys() == {
        "begun", "backlog", "not started", "full", "cancelled", "idle", "timed out", "lost", "null rows", "full rows",
        "batch of one", "batch of several",
    }  # fmt: skip


@settings(max_examples=100)
@given(st.binary(min_size=2, max_size=122))
def test_any_schedule_keeps_the_promises(some_bytes: bytes) -> None:
    schedules.run_any(numbers_of(some_bytes), Told())

"""The rate limiter: who may execute, in which order, and how much there is of what."""

from collections import Counter, deque
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.scheduling.sequence_values import SequenceError
from shoal.model_config.rate_limiter import GLOBAL, Demand, Limit, Resource
from shoal.reasons import Reason
from shoal.sequences import FLAGS, START
from tests.batcher.scheduling import rate_schedules
from tests.batcher.scheduling.many_seeds import FIRST, Told, numbers_of, run_seeds

#: Of the seeded schedules, as many as take a second; the module can be asked for more.
NUM_SEEDED = 2000
R, S = Resource("R", 0), Resource("S", GLOBAL)


def demand(priority: int = 1, **counts: int) -> Demand:
    return Demand(priority, tuple((Resource(name, 0), count) for name, count in counts.items()))


def limiter(*demands: Demand, limits: Sequence[Limit] = ()) -> RateLimiter:
    """One with instances 0, 1 … that demand this; each is staged."""
    made = RateLimiter(limits)
    for instance, each in enumerate(demands):
        made.add(instance, each)
    for instance in range(len(demands)):
        made.stage(instance)
    return made


def begin(made: RateLimiter) -> list[int]:
    """Whoever may begin does."""
    allocated = made.allocate()
    assert all(made.begin(instance) for instance in allocated)
    return allocated


def again(made: RateLimiter, instance: int) -> list[int]:
    """An instance that always has something to do has executed something; who begins now."""
    made.stage(instance)
    made.release(instance)
    return begin(made)


def test_an_instance_waits_until_there_is_as_much_as_it_needs() -> None:
    made = limiter(demand(R=2), demand(R=1), demand(R=1))
    assert begin(made) == [0]
    made.release(0)
    assert begin(made) == [1, 2]


def test_there_is_as_much_as_the_neediest_needs_while_it_is_there() -> None:
    made = limiter(demand(R=1), demand(R=1))
    assert begin(made) == [0]
    made.add(7, demand(R=2))
    assert begin(made) == [1]
    made.remove(7)
    assert again(made, 0) == []
    assert again(made, 1) == [0]


def test_what_the_command_line_says_counts_instead() -> None:
    assert begin(limiter(*[demand(R=1)] * 4, limits=[("R", 3, None), ("R", 2, 0), ("R", 9, 1)])) == [0, 1, 2]


def test_devices_have_resources_of_their_own_and_share_global_ones() -> None:
    made = limiter(*[Demand(1, ((Resource("R", device), 1),)) for device in (0, 1, 0)])
    assert begin(made) == [0, 1]
    made = limiter(*[Demand(1, ((Resource("R", GLOBAL), 1),)) for _ in range(2)])
    assert begin(made) == [0]


def test_who_needs_nothing_is_not_limited() -> None:
    made = limiter(demand(), demand(R=1))
    assert [made.is_limited(instance) for instance in (0, 1, 2)] == [False, True, False]


@pytest.mark.parametrize("priorities", [(1, 1), (1, 2), (3, 1), (1, 2, 4)])
def test_turns_are_shared_by_priority(priorities: Sequence[int]) -> None:
    made = limiter(*[demand(priority, R=1) for priority in priorities])
    turns, (last,) = Counter[int](), begin(made)
    for _ in range(700):
        turns[last] += 1
        (last,) = again(made, last)
    whole = sum(1 / priority for priority in priorities)
    for instance, priority in enumerate(priorities):
        assert abs(turns[instance] - 700 / priority / whole) <= 2


def turns_of(made: RateLimiter, first: int, count: int) -> str:
    """Who executes in turn, from an instance that has begun, while all have something to do."""
    turns = [first]
    while len(turns) < count:
        turns += again(made, turns[-1])
    return "".join("AB"[each] for each in turns)


def test_new_instances_take_turns_as_tritons_do() -> None:
    made = limiter(demand(1, R=1), demand(2, R=1))
    (first,) = begin(made)
    assert turns_of(made, first, 9) == "AABAABAAB"


def test_who_asked_later_gets_the_turn_back() -> None:
    made = limiter(demand(1, R=1), demand(2, R=1))
    made.unstage(0)
    (first,) = begin(made)
    made.stage(0)
    assert turns_of(made, first, 11) == "BAAAABAABAA"


def test_who_was_idle_catches_up_on_two_turns() -> None:
    made = limiter(demand(R=1))
    made.add(1, demand(R=1))
    assert begin(made) == [0]
    for _ in range(50):
        assert again(made, 0) == [0]
    made.stage(1)
    assert turns_of(made, 0, 9) == "ABBABABAB"


def test_who_needs_much_is_not_overtaken_for_ever() -> None:
    made = limiter(demand(R=2), demand(R=1), demand(R=1), demand(R=1))
    assert begin(made) == [0]
    made.release(0)
    assert begin(made) == [1, 2]
    made.stage(0)
    assert again(made, 1) == [3]  # it comes first: 0 has had a turn
    assert again(made, 2) == []  # now 0 does, and keeps what there is
    assert again(made, 3) == [0]


def test_an_instance_takes_resources_that_no_earlier_one_waits_for() -> None:
    made = limiter(demand(R=1, S=1), demand(R=1), demand(S=1))
    made.release(begin(made)[0])
    made.stage(0)
    assert begin(made) == [1, 2]
    made.stage(2)
    made.release(2)
    assert begin(made) == []  # 0 is before it
    made.release(1)
    assert begin(made) == [0]


def test_a_death_gives_back_what_the_instance_had_and_what_it_wanted() -> None:
    made = limiter(demand(R=1), demand(R=1), demand(R=1))
    assert begin(made) == [0]
    made.remove(1)
    made.remove(0)
    assert begin(made) == [2]
    made.release(0)
    made.unstage(0)
    made.remove(0)  # it is forgotten: nothing happens


def test_a_successor_holds_what_is_being_executed() -> None:
    made = RateLimiter()
    for instance in (0, 1):
        made.add(instance, demand(R=1))
    made.hold(0, 2)
    made.stage(1)
    made.release(0)
    assert begin(made) == []
    made.release(0)
    assert begin(made) == [1]


def test_an_allocation_that_nothing_is_left_for_goes_to_another() -> None:
    made = limiter(demand(R=1), demand(R=1))
    assert made.allocate() == [0]
    made.unstage(0)
    assert begin(made) == [1]


def test_whose_timeout_is_over_leaves_its_staged_batch_and_the_others_stay() -> None:
    shared = limiter(demand(R=1), demand(R=1))
    assert shared.allocate() == [0]
    shared.unstage(1)  # which is a model's of its own:
    policy = {"default_timeout_microseconds": 1000, "allow_timeout_override": True}
    batching = {"max_batch_size": 4, "dynamic_batching": {"default_queue_policy": policy}}
    scheduler = RateLimitedScheduler(from_config(batching, 100), shared)
    scheduler.add_instance(1)
    for key, timeout_us in enumerate((0, 500, 0)):
        scheduler.add(QueuedRequest(key, 1, 0, 0, timeout_us=timeout_us), 0)
    assert scheduler.take(0) is None
    assert scheduler.next_deadline_ns() == 500_000
    assert [request.key for request in scheduler.expire(500_000)] == [1]
    assert scheduler.next_deadline_ns() == 1_000_000
    assert shared.begin(0)
    shared.release(0)
    assert shared.allocate() == [1]
    batch = scheduler.take(600_000)
    assert batch is not None
    assert ([request.key for request in batch.requests], batch.rows) == ([0, 2], 2)
    assert scheduler.next_deadline_ns() is None


def test_a_staged_batch_that_has_expired_as_a_whole_makes_way() -> None:
    shared = limiter(demand(R=1), demand(R=1))
    shared.unstage(0)
    shared.unstage(1)
    policy = {"default_timeout_microseconds": 1000}
    batching = {"max_batch_size": 4, "dynamic_batching": {"default_queue_policy": policy}}
    scheduler = RateLimitedScheduler(from_config(batching, 100), shared)
    scheduler.add_instance(0)
    scheduler.add(QueuedRequest(7, 1, 0, 0), 0)
    assert scheduler.take(0) is None
    assert shared.allocate() == [0]
    assert [request.key for request in scheduler.expire(1_000_000)] == [7]
    assert scheduler.pending == 0
    shared.stage(1)
    assert begin(shared) == [1]
    scheduler.add(QueuedRequest(8, 1, 0, 2_000_000), 2_000_000)
    assert scheduler.take(2_000_000) is None
    assert scheduler.pending == 1  # staged again: the instance counts as idle


def sequences_beside_a_busy_model() -> tuple[RateLimiter, RateLimitedScheduler]:
    """A sequence batcher with instances 1 and 2, and a limiter whose only resource another model's instance has."""
    config = {
        "max_batch_size": 4, "input": [],
        "sequence_batching": {"max_sequence_idle_microseconds": 1000, "iterative_sequence": False, "direct": {}},
    }  # fmt: skip
    made = limiter(demand(R=1))
    assert begin(made) == [0]
    scheduler = RateLimitedScheduler(from_config(config, 100), made)
    for instance in (1, 2):
        made.add(instance, demand(R=1))
        scheduler.add_instance(instance)
    return made, scheduler


def in_sequence(key: int, correlation: int, flags: int = 0) -> QueuedRequest:
    return QueuedRequest(key, 1, 0, 0, correlation=correlation, flags=flags)


def begun_when_free(made: RateLimiter, scheduler: RateLimitedScheduler) -> list[tuple[int, list[tuple[int, int]]]]:
    """The other model's execution ends: the batches that begin, with each request's key and flags."""
    made.release(0)
    batches = []
    for _ in range(2):
        for instance in made.allocate():
            batch = scheduler.take(0)
            assert batch is not None
            batches.append((instance, [(each.key, each.flags & FLAGS) for each in batch.requests]))
            scheduler.complete(instance, 0, 1)
        assert scheduler.take(0) is None
    return batches


def test_a_sequence_ends_with_a_request_that_is_cancelled_while_its_batch_is_staged() -> None:
    """Its model would go on without the part that it has missed, and without START in the state of another one."""
    made, scheduler = sequences_beside_a_busy_model()
    assert scheduler.sequences is not None
    scheduler.add(in_sequence(1, 7, START), 0)
    scheduler.add(in_sequence(2, 7), 0)
    assert scheduler.take(0) is None  # staged
    assert scheduler.cancel(1)
    assert scheduler.sequences.refused() == [(2, Reason.CANCELLED)]
    with pytest.raises(SequenceError) as refusal:
        scheduler.add(in_sequence(3, 7), 0)
    assert refusal.value.reason is Reason.NOT_STARTED
    scheduler.add(in_sequence(4, 7, START), 0)
    assert scheduler.take(0) is None
    assert [requests for _, requests in begun_when_free(made, scheduler)] == [[(4, START)]]
    assert scheduler.pending == 0


def test_a_sequence_that_was_staged_only_goes_to_another_instance() -> None:
    made, scheduler = sequences_beside_a_busy_model()
    assert scheduler.sequences is not None
    scheduler.add(in_sequence(1, 7, START), 0)
    scheduler.add(in_sequence(2, 7), 0)
    assert scheduler.take(0) is None  # staged
    staged = next(iter(scheduler.sequences.changes)).instance
    made.remove(staged)
    scheduler.remove_instance(staged)
    assert scheduler.sequences.refused() == []
    assert scheduler.take(0) is None
    other = 3 - staged
    assert begun_when_free(made, scheduler) == [(other, [(1, START)]), (other, [(2, 0)])]


def test_every_instance_gets_a_turn_before_long() -> None:
    """Whoever always has something to do, whatever the others need, and whoever finishes first."""
    for seed in range(100):
        random = Random(seed)
        demands = [
            Demand(random.choice((1, 2, 3)), tuple((each, random.randint(1, 3)) for each in random.sample((R, S), k)))
            for k in random.choices((1, 1, 2), k=6)
        ]
        made, last = limiter(*demands), dict.fromkeys(range(6), 0)
        running = deque(begin(made))
        for turn in range(300):
            if random.random() < 0.5:
                running.rotate(random.randrange(len(running)))
            for instance in again(made, running.popleft()):
                running.append(instance)
                last[instance] = turn
            assert turn - min(last.values()) < 60, (seed, demands)


def test_seeded_schedules_keep_the_promises_and_everything_comes_to_pass() -> None:
    told = run_seeds(rate_schedules.run_any, range(FIRST, FIRST + NUM_SEEDED))
    assert set(told) == {"allocated", "expired", "waited"}


@settings(max_examples=100)
@given(st.binary(min_size=22, max_size=82))
def test_any_schedule_keeps_the_promises(some_bytes: bytes) -> None:
    rate_schedules.run_any(numbers_of(some_bytes), Told())

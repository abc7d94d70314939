"""Trials: generated schedules of a model that dies of some contents, and single rules of the wait for a trial."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.scheduling.suspects import PoisonError, Suspects
from shoal.batcher.scheduling.trials import LONGEST_NS, MAX_WAITING, TrialScheduler
from shoal.errors import UnavailableError
from tests.batcher.scheduling.test_suspects import Bytes

REFUSAL_NS = 10**15
SINGLE: dict[str, Any] = {"max_batch_size": 0}
BATCHING: dict[str, Any] = {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [4]}}
CONTENTS = [Bytes((5, number)) for number in range(6)]


class Model:
    """A model that dies of every content below `num_poisonous`, beside the part of the batcher around its scheduler."""

    def __init__(self, config: dict[str, Any], num_instances: int, num_poisonous: int, *, may_run_again: bool) -> None:
        self.contents: dict[int, int] = {}
        self.tried: dict[int, TrialScheduler | None] = {}
        self.trials = TrialScheduler(
            from_config(config, 1000), Suspects(REFUSAL_NS), lambda key: CONTENTS[self.contents[key]], self.tried
        )
        self.num_poisonous, self.may_run_again = num_poisonous, may_run_again
        self.now_ns = 1
        self.running: dict[int, list[Batch]] = {}
        self.requests: dict[int, QueuedRequest] = {}
        self.outcomes: dict[int, str] = {}
        self.deaths = Counter[int]()
        self.num_instances = 0
        for _ in range(num_instances):
            self.start()

    def start(self) -> None:
        self.num_instances += 1
        self.running[self.num_instances] = []
        self.trials.add_instance(self.num_instances)

    def end(self, key: int, outcome: str) -> None:
        assert key not in self.outcomes
        self.outcomes[key] = outcome
        trials = self.tried.pop(key, None)
        if trials is not None:
            trials.ended(key, self.now_ns, has_lived=outcome == "answered")

    def arrive(self, content: int) -> None:
        key = len(self.requests)
        self.contents[key] = content
        self.requests[key] = request = QueuedRequest(key, 1, 0, self.now_ns)
        try:
            self.trials.add(request, self.now_ns)
        except PoisonError:
            self.end(key, "refused")
        self.settle()

    def cancel(self, back: int) -> None:
        key = len(self.requests) - 1 - back
        if key >= 0 and key not in self.outcomes and self.trials.cancel(key):
            self.end(key, "cancelled")
        self.settle()

    def settle(self) -> None:
        assert not self.trials.expire(self.now_ns)
        while (batch := self.trials.take(self.now_ns)) is not None:
            assert len(batch.requests) == 1 or not any(each.key in self.trials.trials for each in batch.requests)
            self.running[batch.instance].append(batch)

    def execute(self, nth: int) -> None:
        """One of the busy instances executes its next batch, or dies of it."""
        self.now_ns += 10
        busy = [instance for instance, batches in self.running.items() if batches]
        if not busy:
            return
        instance = busy[nth % len(busy)]
        begun, *others = self.running[instance]
        keys = [request.key for request in begun.requests]
        poisonous = {self.contents[key] for key in keys if self.contents[key] < self.num_poisonous}
        if not poisonous:
            self.running[instance] = others
            for key in keys:
                self.end(key, "answered")
            self.trials.complete(instance, self.now_ns, 5)
        else:
            self.deaths.update(poisonous)
            self.die(instance, keys, [request for batch in others for request in batch.requests])
        self.settle()

    def die(self, instance: int, executed: list[int], unbegun: list[QueuedRequest]) -> None:
        trials = self.trials
        del self.running[instance]
        trials.remove_instance(instance)
        trials.died()
        trials.suspects.died([CONTENTS[self.contents[key]] for key in executed], len(executed), self.now_ns)
        running = {each.key for batches in self.running.values() for batch in batches for each in batch.requests}
        for key, request in reversed(self.requests.items()):
            is_queued = key not in self.outcomes and key not in running and key not in executed
            if (
                is_queued
                and trials.suspects.is_suspect(CONTENTS[self.contents[key]].sample)
                and trials.behind.cancel(key)
            ):
                trials.add_first(request)
        for request in reversed(unbegun):
            trials.add_first(request)
        for key in reversed(executed):
            if self.may_run_again and key not in self.tried:
                self.tried[key] = None
                trials.add_first(self.requests[key])
            else:
                self.end(key, "failed")
        for request, _ in trials.refused(self.now_ns):
            self.end(request.key, "refused")
        self.start()

    def finish(self) -> None:
        """Execute all that is there."""
        while any(self.running.values()):
            self.execute(0)


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, len(CONTENTS) - 1)),
    st.tuples(st.just("execute"), st.integers(0, 2)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
)


@given(
    st.sampled_from([SINGLE, BATCHING]),
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
    st.lists(STEPS, max_size=60),
)
def test_each_request_ends_once_and_each_poison_costs_few_instances(
    config: dict[str, Any], num_instances: int, num_poisonous: int, may_run_again: bool, steps: list[tuple[str, int]]
) -> None:
    model = Model(config, num_instances, num_poisonous, may_run_again=may_run_again)
    for method, argument in steps:
        getattr(model, method)(argument)
    model.finish()
    assert model.outcomes.keys() == model.requests.keys()
    assert model.trials.pending == 0
    assert not model.trials.trials
    for key, outcome in model.outcomes.items():
        content = model.contents[key]
        assert outcome != "refused" or content < num_poisonous, "an innocent request is refused"
        assert outcome != "answered" or content >= num_poisonous
        assert outcome != "failed" or content < num_poisonous or not may_run_again
    # One death for each instance that had one of them before it was a suspect, and one more, alone.
    assert all(count <= num_instances + 1 for count in model.deaths.values())


def test_one_client_that_sends_poison_again_and_again_costs_two_deaths() -> None:
    model = Model(BATCHING, 1, 1, may_run_again=False)
    for _ in range(200):
        model.arrive(0)
        for content in (1, 2, 3):
            model.arrive(content)
        model.execute(0)
    model.finish()
    outcomes = Counter((model.contents[key] == 0, outcome) for key, outcome in model.outcomes.items())
    assert model.deaths[0] == 2
    assert outcomes[True, "refused"] == 198
    assert outcomes[False, "answered"] >= 597  # those beside the first poison failed with it


def test_queued_equals_of_a_convicted_request_are_refused_and_not_executed() -> None:
    model = Model(SINGLE, 1, 1, may_run_again=False)
    for _ in range(20):
        model.arrive(0)
    model.finish()
    assert model.deaths[0] == 2
    assert Counter(model.outcomes.values()) == {"failed": 2, "refused": 18}


def test_equals_of_an_acquitted_request_are_batched_again() -> None:
    model = Model(BATCHING, 1, 1, may_run_again=False)
    for content in (1, 0, 1, 1, 1, 1):  # the first goes alone; what follows is one batch, with the poison
        model.arrive(content)
    model.execute(0)
    model.execute(0)
    assert model.deaths[0] == 1
    model.finish()
    assert model.trials.suspects.is_suspect(CONTENTS[0].sample)
    assert not model.trials.suspects.is_suspect(CONTENTS[1].sample)


def one() -> tuple[TrialScheduler, dict[int, TrialScheduler | None]]:
    """Trials of one content, which is that of all requests, and a suspect."""
    suspects, tried = Suspects(REFUSAL_NS), dict[int, TrialScheduler | None]()
    suspects.died([CONTENTS[1]], 1, 1)
    return TrialScheduler(from_config(SINGLE, 10), suspects, lambda _key: CONTENTS[1], tried), tried


def request(key: int, deadline_ns: int = 0) -> QueuedRequest:
    return QueuedRequest(key, 1, 0, 100 + key, deadline_ns=deadline_ns)


def test_a_waiting_request_expires_is_cancelled_and_is_counted_as_in_a_queue() -> None:
    trials, _ = one()
    for key, deadline_ns in ((1, 0), (2, 500), (3, 0)):
        trials.add(request(key, deadline_ns), 100)
    assert trials.take(100) is None  # no instance: the first waits in the queue now
    assert (trials.pending, trials.oldest_ns()) == (3, 101)
    assert trials.next_deadline_ns() == 500
    assert trials.cancel(1)
    assert not trials.cancel(1)
    assert [each.key for each in trials.expire(500)] == [2]
    assert [each.key for each in trials.drain()] == [3]
    assert (trials.pending, trials.next_deadline_ns()) == (0, None)


def test_a_deadline_scheduler_in_front_does_not_mind() -> None:
    trials, _ = one()
    scheduler = DeadlineScheduler(trials)
    scheduler.add(request(1, 500), 100)
    assert [each.key for each in scheduler.expire(500)] == [1]
    assert scheduler.pending == 0


def test_waits_for_trials_are_bounded() -> None:
    trials, _ = one()
    for key in range(MAX_WAITING):
        trials.add(request(key), 100)
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        trials.add(request(MAX_WAITING), 100)


def test_a_trial_that_takes_long_does_not_keep_the_next_content_waiting() -> None:
    suspects, tried = Suspects(REFUSAL_NS), dict[int, TrialScheduler | None]()
    suspects.died(CONTENTS[:2], 2, 1)
    trials = TrialScheduler(from_config(SINGLE, 10), suspects, lambda key: CONTENTS[key], tried)
    trials.add_instance(1)
    trials.add_instance(2)
    for key in (0, 1):
        trials.add(request(key), 100)
    batch = trials.take(200)
    assert batch is not None
    assert batch.requests[0].key == 0
    assert trials.take(200) is None
    assert trials.next_deadline_ns() == 200 + LONGEST_NS
    batch = trials.take(200 + LONGEST_NS)
    assert batch is not None
    assert batch.requests[0].key == 1
    assert trials.next_deadline_ns() is None
    assert tried.keys() == {0, 1}


def test_after_a_death_the_others_are_served_before_the_next_trial() -> None:
    suspects = Suspects(REFUSAL_NS)
    suspects.died([CONTENTS[0]], 1, 1)
    trials = TrialScheduler(from_config(SINGLE, 10), suspects, lambda key: CONTENTS[key], {})
    trials.died()
    for key in (0, 1):
        trials.add(request(key), 100)
    trials.add_instance(1)
    order = []
    for _ in range(2):
        batch = trials.take(200)
        assert batch is not None
        order.append(batch.requests[0].key)
        trials.complete(1, 250, 10)
    assert order == [1, 0]


def test_a_trial_that_is_given_back_is_tried_later() -> None:
    trials, tried = one()
    trials.add_instance(1)
    trials.add(request(1), 100)
    assert trials.take(100) is not None
    trials.remove_instance(1)
    trials.add_first(request(1))
    assert not trials.trials
    assert tried == {1: None}
    trials.add_instance(2)
    assert trials.take(200) is not None
    assert tried == {1: trials}


def test_without_suspects_the_scheduler_behind_could_do_alone() -> None:
    trials, _ = one()
    assert not trials.is_idle
    trials.add_instance(1)
    trials.add(request(1), 100)
    assert trials.take(100) is not None
    trials.ended(1, 200, has_lived=True)
    assert trials.is_idle

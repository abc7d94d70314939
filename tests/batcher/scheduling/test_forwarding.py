"""A policy behind wrappers does what it would do alone: no method of the contract ends on the way."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.forwarding import ForwardingScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.scheduling.sequence import SequenceScheduler
from shoal.batcher.scheduling.suspects import Suspects
from shoal.batcher.scheduling.trials import TrialScheduler
from shoal.model_config.rate_limiter import Demand
from shoal.sequences import START


def request(key: int) -> QueuedRequest:
    return QueuedRequest(key, 1, 0, 1000 * key, correlation=key, flags=START)


REQUEST = request(1)
#: Each method of the contract, called where its effect shows. None: a property.
STORY: list[tuple[str, tuple[Any, ...] | None]] = [
    ("rejects", None),
    ("expiry_ns", (REQUEST,)),
    ("batch_rows", None),
    ("heeds_deadlines", None),
    ("sequences", None),
    ("add_instance", (3,)),
    ("add", (REQUEST, 1000)),
    ("take", (1000,)),
    ("add", (request(2), 2000)),
    ("add", (request(3), 3000)),
    ("add", (request(4), 4000)),
    ("pending", None),
    ("oldest_ns", ()),
    ("rows_before", (request(5),)),
    ("next_deadline_ns", ()),
    ("cancel", (2,)),
    ("cancel", (1,)),
    ("expire", (3000 + 1_000_000,)),
    ("pending", None),
    ("add_first", (request(6),)),
    ("complete", (3, 1_010_000, 10)),
    ("next_deadline_ns", ()),
    ("take", (1_010_000,)),
    ("complete", (3, 1_020_000, 10)),
    ("remove_instance", (3,)),
    ("take", (1_020_000,)),
    ("explain", ()),
    ("drain", ()),
    ("pending", None),
]
TIMEOUT = {"default_timeout_microseconds": 1000}
SEQUENCES = {"max_sequence_idle_microseconds": 10**9, "iterative_sequence": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {"max_batch_size": 0},
    "dynamic": {"max_batch_size": 4, "dynamic_batching": {}},
    "policy": {"max_batch_size": 4, "dynamic_batching": {"default_queue_policy": TIMEOUT}},
    "delays": {
        "max_batch_size": 4,
        "dynamic_batching": {"default_queue_policy": TIMEOUT | {"timeout_action": "DELAY"}},
    },
    "goal": {"max_batch_size": 4, "parameters": {"latency_target_ms": {"string_value": "20"}}},
    "sequence": {"max_batch_size": 4, "sequence_batching": SEQUENCES},
}

POLICIES: dict[str, Callable[[], Scheduler]] = {
    **{name: partial(from_config, config, 10) for name, config in CONFIGS.items()},
    "deadlines": lambda: DeadlineScheduler(from_config(CONFIGS["default"], 10)),
}


def limited(scheduler: Scheduler) -> Scheduler:
    limiter = RateLimiter()
    limiter.add(3, Demand())  # its batches need no resources, and are not staged
    return RateLimitedScheduler(scheduler, limiter)


WRAPPERS: dict[str, Callable[[Scheduler], Scheduler]] = {
    "forwarding": ForwardingScheduler,
    "rate limited": limited,
    "deadlines": DeadlineScheduler,
    "both": lambda scheduler: DeadlineScheduler(limited(scheduler)),
    "trials": lambda scheduler: TrialScheduler(scheduler, Suspects(1), lambda _key: None, {}),
}
#: What a wrapper answers by itself.
OWN = {("deadlines", "heeds_deadlines"), ("both", "heeds_deadlines")}


def told(scheduler: Scheduler, story: list[tuple[str, tuple[Any, ...] | None]]) -> list[tuple[str, Any]]:
    """What a scheduler answers, with keys for requests."""
    answers = []
    for name, arguments in story:
        answer = getattr(scheduler, name) if arguments is None else getattr(scheduler, name)(*arguments)
        if isinstance(answer, Batch):
            answer = answer.instance, [each.key for each in answer.requests], answer.rows
        elif isinstance(answer, list):
            answer = [each.key for each in answer]
        elif isinstance(answer, SequenceScheduler):
            answer = "sequences"
        answers.append((name, answer))
    return answers


def test_every_method_of_the_contract_is_called() -> None:
    assert {name for name, _ in STORY} == {name for name in vars(Scheduler) if not name.startswith("_")}


def test_every_method_that_has_a_default_differs_from_it_in_a_policy() -> None:
    """A wrapper without the method would answer by the default."""
    defaults = {
        "rejects": False, "expiry_ns": 0, "batch_rows": 0, "heeds_deadlines": False, "sequences": None,
        "explain": {"scheduler": "other", "reasons": [], "last_batches": []},
    }  # fmt: skip
    answers = [each for policy in POLICIES.values() for each in told(policy(), STORY)]
    assert {name for name, answer in answers if name in defaults and answer != defaults[name]} == defaults.keys()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_policy_does_what_it_does_alone(wrapper: str, policy: str) -> None:
    story = [each for each in STORY if (wrapper, each[0]) not in OWN]
    assert told(WRAPPERS[wrapper](POLICIES[policy]()), story) == told(POLICIES[policy](), story)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_policy_answers_as_it_would_alone(wrapper: str, config: str) -> None:
    policy, twin = from_config(CONFIGS[config], 10), from_config(CONFIGS[config], 10)
    scheduler = WRAPPERS[wrapper](policy)
    assert scheduler.rejects == twin.rejects == (config == "policy")
    assert scheduler.expiry_ns(REQUEST) == twin.expiry_ns(REQUEST) == (1000 + 1_000_000) * (config == "policy")
    assert scheduler.explain() == twin.explain()
    assert scheduler.explain()["scheduler"] == {"policy": "dynamic", "delays": "dynamic", "sequence": "other"}.get(
        config, config
    )
    if isinstance(policy, SequenceScheduler):
        assert scheduler.sequences is policy.sequences is policy
    else:
        assert scheduler.sequences is None

"""A policy behind wrappers is asked whatever it would be asked in front: no method of the contract ends on the way."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.forwarding import ForwardingScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.scheduling.sequence import SequenceScheduler
from shoal.batcher.scheduling.suspects import Suspects
from shoal.batcher.scheduling.trials import TrialScheduler
from shoal.model_config.rate_limiter import Demand, Resource

REQUEST = QueuedRequest(1, 1, 0, 1000)
#: What each method of the contract is called with; None: a property.
ARGUMENTS: dict[str, tuple[Any, ...] | None] = {
    "pending": None,
    "oldest_ns": (),
    "rows_before": (REQUEST,),
    "add": (REQUEST, 1000),
    "add_first": (REQUEST,),
    "take": (1000,),
    "expire": (1000,),
    "cancel": (7,),
    "complete": (3, 1000, 10),
    "next_deadline_ns": (),
    "add_instance": (3,),
    "remove_instance": (3,),
    "drain": (),
    "rejects": None,
    "expiry_ns": (REQUEST,),
    "batch_rows": None,
    "heeds_deadlines": None,
    "sequences": None,
    "explain": (),
}
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


def limited(scheduler: Scheduler) -> Scheduler:
    limiter = RateLimiter()
    limiter.add(3, Demand(resources=((Resource("SLOT", 0), 1),)))
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


class Asked(ForwardingScheduler):
    """A policy that notes what it is asked."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.names: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in ARGUMENTS:
            self.names.add(name)
        return super().__getattribute__(name)


def test_every_method_of_the_contract_is_here() -> None:
    assert ARGUMENTS.keys() == {name for name in vars(Scheduler) if not name.startswith("_")}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_method_reaches_the_policy(wrapper: str, name: str) -> None:
    policy = Asked(from_config(CONFIGS["default"], 10))
    scheduler = WRAPPERS[wrapper](policy)
    policy.names.clear()
    arguments = ARGUMENTS[name]
    asked = getattr(scheduler, name)
    if arguments is not None:
        asked(*arguments)
    assert (name in policy.names) == ((wrapper, name) not in OWN)


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

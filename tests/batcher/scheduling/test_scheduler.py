"""What holds for every scheduler and every schedule: generated configurations, arrivals, completions and clocks."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler, PolicyBatchScheduler
from shoal.batcher.scheduling.policy_queue import PolicyQueue
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config
from shoal.errors import UnavailableError
from tests.batcher.scheduling import seeded
from tests.batcher.scheduling.many_seeds import FIRST, Told, numbers_of, run_seeds
from tests.batcher.scheduling.schedule import Schedule
from tests.batcher.scheduling.slow_model import Policy, Settings

#: Of the seeded schedules, as many as take a second or two; the module can be asked for more.
NUM_SEEDED = 2000


def test_dynamic_batching_in_the_configuration_chooses_the_dynamic_batcher() -> None:
    # An empty message is meaningful: it turns merging on.
    assert type(from_config({"max_batch_size": 4, "dynamic_batching": {}}, 10)) is DynamicBatchScheduler
    assert type(from_config({"max_batch_size": 4}, 10)) is DefaultScheduler


@pytest.mark.parametrize(
    ("batching", "kind"),
    [
        ({"priority_levels": 1, "default_priority_level": 1}, PolicyBatchScheduler),
        ({"default_queue_policy": {"default_timeout_microseconds": 1}}, PolicyBatchScheduler),
        # Without a default timeout a request's own does nothing, so nothing can expire.
        ({"default_queue_policy": {"allow_timeout_override": True, "max_queue_size": 3}}, DynamicBatchScheduler),
    ],
)
def test_a_plain_queue_stays_plain(batching: dict[str, object], kind: type) -> None:
    assert type(from_config({"max_batch_size": 4, "dynamic_batching": batching}, 10)) is kind


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"backend": "torchserve", "max_batch_size": 1}, DefaultScheduler),
        ({"backend": "torchserve", "max_batch_size": 2}, DynamicBatchScheduler),
        ({"backend": "python", "max_batch_size": 1}, DynamicBatchScheduler),
    ],
)
def test_torchserves_batches_of_one_work_ahead_and_their_queue_is_bounded(config: dict[str, Any], kind: type) -> None:
    scheduler = from_config({**config, "dynamic_batching": {"default_queue_policy": {"max_queue_size": 2}}}, 10)
    assert type(scheduler) is kind
    for key in (1, 2):
        scheduler.add(QueuedRequest(key, 1, 0, 0), 0)
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        scheduler.add(QueuedRequest(3, 1, 0, 0), 0)
    assert scheduler.pending == 2


def says(scheduler: Any) -> list[object]:
    """What a scheduler was configured with."""
    queue = getattr(scheduler, "_queue", None)
    names = ("_max_rows", "_preferred_rows", "_delay_ns", "_prefetching", "_max_queue_size", "_max_total_queue")
    of_queue = [getattr(queue, name, None) for name in (*names, "_num_levels", "_default_level")]
    if isinstance(queue, PolicyQueue):  # the policy of each level, by its own name or as one of the rest
        of_queue += [queue._policies.get(level, queue._rest) for level in range(1, queue._num_levels + 1)]
    return [type(scheduler), *[getattr(scheduler, name, None) for name in names], *of_queue]


@pytest.mark.parametrize("family", ["plain", "policies"])
def test_what_schedules_are_run_with_is_what_configurations_say(family: str) -> None:
    for each in seeded.some_settings(family):
        assert says(each.scheduler()) == says(from_config(each.config, each.max_total_queue)), each


ANY_NUMBERS = st.binary(min_size=22, max_size=82).map(numbers_of)
ALWAYS = {"refused", "slept", "batch of one", "batch of several"}
POLICIES = {"expired", "late", "overtook", "batch of several levels"}


@pytest.mark.parametrize(
    ("family", "things"),
    [
        ("plain", ALWAYS | {"worked ahead"}),
        ("policies", ALWAYS | POLICIES),
        ("goal", ALWAYS | POLICIES | {"waits for others"}),
    ],
)
def test_seeded_schedules_keep_the_promises_and_everything_comes_to_pass(family: str, things: set[str]) -> None:
    told = run_seeds(partial(seeded.run_any, family), range(FIRST, FIRST + NUM_SEEDED))
    assert set(told) == things


@pytest.mark.parametrize("family", seeded.FAMILIES)
@settings(max_examples=100)
@given(numbers=ANY_NUMBERS)
def test_any_schedule_keeps_the_promises(family: str, numbers: list[int]) -> None:
    seeded.run_any(family, numbers, Told())


@pytest.mark.parametrize("delay_us", [0, seeded.DELAY_US])
@pytest.mark.parametrize(
    "policies",
    [{}, {"default_policy": Policy(max_queue_size=40)}, {"levels": (Policy(3, delays=True), None), "default_level": 2}],
)
@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=40), shape_keys=st.lists(st.integers(0, 1), min_size=40))
def test_everything_runs_in_the_end(
    delay_us: int, policies: dict[str, object], sizes: list[int], shape_keys: list[int]
) -> None:
    """An instance that completes and a batcher that sleeps to its deadline are enough; none is forgotten."""
    story = Schedule(Settings(True, 8, (), delay_us, 40, **policies), Told())  # type: ignore[arg-type]  # passed through
    story.add_instance(0)
    for number, (rows, shape_key) in enumerate(zip(sizes, shape_keys, strict=False)):
        story.add(rows, shape_key, number % 3)
        story.settle()
    for _ in range(3 * len(sizes)):
        story.sleep()
        story.complete(0, 10**9)
        story.settle()
    assert story.waiting == {}

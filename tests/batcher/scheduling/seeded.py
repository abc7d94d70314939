"""Schedules of the dynamic batcher by seed, in three families: plain, with queue policies, and with a goal."""

from collections.abc import Sequence
from functools import cache
from random import Random

from tests.batcher.scheduling.many_seeds import Step, Steps, Told
from tests.batcher.scheduling.schedule import run
from tests.batcher.scheduling.slow_model import Policy, Settings

DELAY_US = 5

#: The kinds of steps, each as often as it should come.
KINDS = (
    *["add"] * 12, *["settle"] * 5, *["complete"] * 6, "clock", "clock", "sleep", "sleep", "cancel", "cancel", "cancel",
    "add_instance", "remove_instance",
)  # fmt: skip
#: What they are told.
ARGUMENTS: dict[str, tuple[Sequence[int], ...]] = {
    "add": ((1, 1, 1, 2, 3, 6), (0, 0, 0, 0, 1), (0, 1, 2, 3, 9), (0, 1, 4, 10**6)),
    "settle": (),
    "complete": (range(12), (60_000, 100_000)),
    "clock": ((1, 1000, 1000 * DELAY_US - 1, 1000 * DELAY_US, 3000 * DELAY_US, 40_000 * DELAY_US),),
    "sleep": (),
    "cancel": (range(3),),
    "add_instance": (range(3),),
    "remove_instance": (range(3),),
}
STEPS = Steps(KINDS, ARGUMENTS)
#: Makes an instance known as a fast one.
_PRACTICE: list[Step] = [("add", (1, 0, 0, 0)), ("settle", ()), ("complete", (3, 0))] * 6
#: Makes it known that others follow who comes first.
_BURSTS: list[Step] = [
    ("add", (1, 0, 0, 0)), ("settle", ()), ("clock", (20_000,)), *[("add", (1, 0, 0, 0))] * 2, ("clock", (200_000,)),
    ("complete", (3, 0)), ("settle", ()), ("clock", (200_000,)), ("complete", (3, 0)), ("settle", ()),
    ("clock", (1_000_000,)),
] * 3  # fmt: skip
FAMILIES = ("plain", "policies", "goal")
_NUM_INSTANCES = (1, 1, 1, 2, 2, 0)


def random_settings(random: Random, family: str) -> Settings:
    """A model's configuration; one of five plain ones has no dynamic batcher, half of those with a goal policies."""
    pick = random.choice
    max_batch_size = pick((0, 1, 4, 8))
    is_dynamic = family != "plain" or random.random() < 0.8
    has_policies = family == "policies" or (family == "goal" and random.random() < 0.5)

    def policy() -> Policy:
        return Policy(pick((0, 3, 7)) if has_policies else 0, pick((True, False)), pick((True, False)), pick((0, 0, 4)))

    num_levels = pick((0, 1, 3)) if has_policies else 0
    sizes = random.sample(range(1, 9), pick((0, 1, 2, 2)))
    return Settings(
        is_dynamic=is_dynamic,
        max_batch_size=max_batch_size,
        preferred=tuple(size for size in sizes if size <= max(1, max_batch_size)),
        delay_us=pick((0, DELAY_US, DELAY_US)),
        max_total_queue=pick((5, 30)),
        default_policy=policy() if random.random() < (0.8 if has_policies else 0.4) else Policy(),
        levels=tuple([policy() if random.random() < 0.5 else None for _ in range(num_levels)]),
        default_level=random.randint(1, num_levels) if num_levels else 0,
        target_ns=pick((100_000, 1_000_000)) if family == "goal" else 0,
    )


@cache
def some_settings(family: str) -> list[Settings]:
    """So many that hardly anything is missing."""
    return [random_settings(Random(seed), family) for seed in range(512)]


def run_any(family: str, numbers: Sequence[int], told: Told) -> None:
    """The schedule that the numbers mean."""
    number = numbers[0]
    settings = some_settings(family)[number % 512]
    steps = STEPS.of(numbers)
    if not settings.is_dynamic and number >= 7 << 13:
        steps = _PRACTICE + steps
    if settings.target_ns and number >= 63 << 10:
        steps = _BURSTS + steps
    run(settings, _NUM_INSTANCES[(number >> 9) % 6], steps, told)

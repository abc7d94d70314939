"""Schedules from seeds: how they are drawn, and how as many are run as somebody asks for.

Most schedules are small and a few are large: what is wrong shows in few steps, and what needs many comes, too. They
are drawn by a hash instead of by `Random`, which would take a third of the time of a whole schedule to be seeded alone.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import shake_128
from random import Random
from typing import Any, NamedTuple

#: The seed of the first schedule of any policy.
FIRST = 20_261_122
#: What has come to pass, and how often.
Told = Counter[str]
#: A kind, which is a method's name, and what it is told.
Step = tuple[str, tuple[Any, ...]]
#: Runs the schedule that numbers below 65,536 mean: the first says which configuration, the others are a step each.
Run = Callable[[Sequence[int], Told], None]

#: Seeds that one process takes at a time.
_PIECE = 2500
#: Bits that choose a step, so many steps lie ready.
_STEP_BITS = 12
_STEP_MASK = (1 << _STEP_BITS) - 1
#: The lengths of schedules, each as often as it should come: 7 steps on average, 48 at most.
_LENGTHS = (*list(range(3, 9)) * 8, 12, 16, 24, 48)
_MAX_NUMBERS = max(_LENGTHS) + 2


class Policy(NamedTuple):
    """What is run: its name, how, and what that checks."""

    name: str
    run: Run
    checks: str


def draw(seed: int) -> list[int]:
    """The numbers of a seed."""
    numbers = memoryview(shake_128(b"%d" % seed).digest(2 * _MAX_NUMBERS)).cast("H")
    return numbers[: 1 + _LENGTHS[numbers[-1] % len(_LENGTHS)]].tolist()


def numbers_of(some_bytes: bytes) -> list[int]:
    """Each two bytes as a number."""
    return memoryview(some_bytes[: len(some_bytes) & ~1]).cast("H").tolist()


class Steps:
    """The steps that schedules of one policy are made of."""

    def __init__(self, kinds: Sequence[str], arguments: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Each kind as often as it is among the kinds, with any of each of its arguments."""
        random = Random(0)
        #: Each as often as it should come.
        self.all: list[Step] = sorted(
            (kind, tuple([random.choice(some) for some in arguments[kind]]))
            for kind in random.choices(kinds, k=_STEP_MASK + 1)
        )

    def of(self, numbers: Sequence[int]) -> list[Step]:
        """Those that the numbers but the first mean."""
        steps = self.all
        return [steps[number & _STEP_MASK] for number in numbers[1:]]


def run_seeds(run: Run, seeds: range) -> Told:
    """The schedules of these seeds; what has come to pass in all of them."""
    return _run(run, seeds, [draw(seed) for seed in seeds])


def _run(run: Run, seeds: range, drawn: list[list[int]]) -> Told:
    told = Told()
    for seed, numbers in zip(seeds, drawn, strict=True):
        try:
            run(numbers, told)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    return told


def _run_piece(policies: Sequence[Policy], seeds: range) -> list[tuple[Told, float]]:
    """Each policy, with the seconds that it took; the first that of drawing the seeds, which is done once for all."""
    begun_s = time.process_time()
    drawn = [draw(seed) for seed in seeds]
    done = []
    for policy in policies:
        told = _run(policy.run, seeds, drawn)
        ended_s = time.process_time()
        done.append((told, ended_s - begun_s))
        begun_s = ended_s
    return done


def run_policies(policies: Sequence[Policy], num_schedules: int) -> None:
    """So many schedules of each policy, on all cores; a table of them, with the seconds that one core would need."""
    begun_s, end = time.monotonic(), FIRST + num_schedules
    pieces = [range(seed, min(seed + _PIECE, end)) for seed in range(FIRST, end, _PIECE)]
    told, used_s = [Told() for _ in policies], [0.0] * len(policies)
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for done in processes.map(partial(_run_piece, policies), pieces):
            for number, (its_told, its_s) in enumerate(done):
                told[number].update(its_told)
                used_s[number] += its_s
    rows = [(*each, f"{each_s:.1f}") for each, each_s in zip(policies, used_s, strict=True)]
    sys.stdout.write(f"{'policy':<16}{'schedules':>10}{'CPU s':>8}  checks\n")
    for (name, _, checks, seconds), its_told in zip(rows, told, strict=True):
        passed = ", ".join([f"{what} {num_times}" for what, num_times in sorted(its_told.items())])
        sys.stdout.write(f"{name:<16}{num_schedules:>10}{seconds:>8}  {checks}\n{'':<36}{passed}\n")
    total = f"{'together':<16}{num_schedules * len(policies):>10}{sum(used_s):>8.1f}"
    sys.stdout.write(f"{total}  in {time.monotonic() - begun_s:.1f} s\n")

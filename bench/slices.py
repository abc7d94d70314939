"""Slices: one server's short loads, between which the other servers have theirs, and the sample that they add up to.

A machine that is fast at one time and slow at another makes the rates of long loads vary twofold. Servers that take
turns of half a second meet the same machine, so the ratio of neighbouring slices shows which one is faster.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypeAlias, TypeVar

from bench import instructions, measure
from bench.load import Load
from bench.peers import NUM_CPUS
from bench.results import Sample

#: Loads a server: seconds, the rate of an earlier load, words before the generator's command → the figures.
Shoot: TypeAlias = Callable[[float, float | None, Sequence[str]], Load]
T = TypeVar("T")


def turns(every: Sequence[T], number: int) -> Iterator[T]:
    """Each element `number` times, there and back in turn (A B B A …): so a slowing machine favours none."""
    for turn in range(number):
        yield from reversed(every) if turn % 2 else every


class Slices:
    """The slices of the server whose processes are below `root`, under one workload."""

    def __init__(self, root: int, start_s: float, shoot: Shoot) -> None:
        self._root = root
        self._start_s = start_s
        self._shoot = shoot
        # Changed by warm_up and load.
        self._rate: float | None = None
        self._loads: list[Load] = []
        self._used_s = self._foreign_s = 0.0

    def warm_up(self, seconds: float) -> None:
        """Load the server for a time that does not count: caches, buffers and branch predictors are cold."""
        self._rate = self._shoot(seconds, None, ()).requests_per_s

    def load(self, seconds: float) -> None:
        """Load the server for one slice."""
        before_s, machine_before_s = measure.cpu_s(self._root), measure.machine_cpu_s()
        own_before_s = time.process_time()
        seen = self._shoot(seconds, self._rate, ())
        used_s, machine_s = measure.cpu_s(self._root) - before_s, measure.machine_cpu_s() - machine_before_s
        self._loads.append(seen)
        self._used_s += used_s
        self._foreign_s += machine_s - used_s - seen.cpu_s - (time.process_time() - own_before_s)

    def sample(self, perf: str | None, folder: Path) -> Sample:
        """The sample that all slices add up to."""
        pss = measure.pss_bytes(self._root)
        loads, errors, counted = self._loads, 0, dict[str, float]()
        if perf:  # a second of its own, since counting costs time
            counter = instructions.Counter(perf, folder, self._root)
            again = self._shoot(1, self._rate, counter.prefix)
            errors, counted = again.errors, dict(counter.per_request(again.requests))
        num_requests, duration_s = sum(each.requests for each in loads), sum(each.duration_s for each in loads)
        return Sample(
            num_requests / duration_s,
            median(each.p50_us for each in loads),
            median(each.p99_us for each in loads),
            self._used_s * 1e6 / num_requests,
            pss,
            self._start_s,
            sum(each.errors for each in loads) + errors,
            max(0.0, self._foreign_s) / (duration_s * NUM_CPUS),
            counted,
            max(each.slowest_us for each in loads),
            min(each.least_per_s for each in loads),
            max(each.most_per_s for each in loads),
            tuple(each.requests_per_s for each in loads),
        )

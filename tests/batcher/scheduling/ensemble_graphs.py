"""Ensembles by seed: graphs, outputs that are asked for, and the order in which steps end.

Steps and tensors are numbers here, and sets of them the bits of an integer.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from operator import itemgetter

from shoal.batcher.scheduling.ensemble import Following, Graph
from tests.batcher.scheduling.many_seeds import Told

_NAMES = tuple(map(str, range(100)))


class Run:
    """One request on its way through the steps of one origin, stage by stage."""

    def __init__(self, graph: Graph, outputs: Iterable[str], origin: int | None = None) -> None:
        self.stage = graph.start(tuple(outputs), origin)

    def begin(self, inputs: Iterable[str]) -> list[int]:
        """The steps to start first."""
        started, _ = self._go_on(self.stage.after(None, tuple(inputs)))
        return started

    def end(self, step: int, written: Iterable[str]) -> tuple[list[int], list[int]]:
        """The steps to start now, and those whose results may go."""
        return self._go_on(self.stage.after(step, tuple(written)))

    def _go_on(self, following: Following) -> tuple[list[int], list[int]]:
        self.stage, started, unneeded = following
        return list(started), list(unneeded)

    @property
    def is_over(self) -> bool:
        """Whether nothing runs."""
        return not self.stage.running

    @property
    def missing(self) -> frozenset[str]:
        """Outputs that are not there."""
        return self.stage.missing


def bits(numbers: Sequence[int]) -> int:
    """The set of them."""
    made = 0
    for number in numbers:
        made |= 1 << number
    return made


class Ensemble:
    """Steps as what they read and write, in any order, and some of the tensors that are written."""

    def __init__(
        self,
        steps: Sequence[tuple[Sequence[int], Sequence[int]]],
        outputs: Sequence[int],
        decoupled: Sequence[int] = (),
    ) -> None:
        self.reads = [bits(reads) for reads, _ in steps]
        self.writes = [bits(writes) for _, writes in steps]
        self.written = [[_NAMES[tensor] for tensor in writes] for _, writes in steps]
        self.outputs = bits(outputs)
        self.names = [_NAMES[output] for output in outputs]
        maps = [
            (
                {_NAMES[tensor]: _NAMES[tensor] for tensor in reads},
                {_NAMES[tensor]: _NAMES[tensor] for tensor in writes},
            )
            for reads, writes in steps
        ]
        self.graph = Graph(maps, decoupled)

    def needed(self) -> int:
        """By the definition: the steps that some output depends on, step by step backwards."""
        wanted, needed, is_done = self.outputs, 0, False
        while not is_done:
            is_done = True
            for step, writes in enumerate(self.writes):
                if writes & wanted and not needed >> step & 1:
                    needed |= 1 << step
                    wanted |= self.reads[step]
                    is_done = False
        return needed

    def readers(self, step: int) -> int:
        return bits([reader for reader, reads in enumerate(self.reads) if reads & self.writes[step]])


def check(ensemble: Ensemble, num_inputs: int, turns: Iterator[int], told: Told) -> None:
    """Every step that is needed runs once, after its inputs; each result is let go once, when nobody needs it."""
    needed = ensemble.needed()
    assert bits(list(ensemble.graph.needed(ensemble.names))) == needed
    run = Run(ensemble.graph, ensemble.names)
    there, ran, ended, let_go = (1 << num_inputs) - 1, 0, 0, 0
    running: list[int] = []
    started = run.begin(_NAMES[:num_inputs])
    while running or started:
        for step in started:
            assert not ran >> step & 1
            assert not ensemble.reads[step] & ~there
            ran |= 1 << step
        running += started
        assert run.stage.running == set(running)
        told["together" if len(running) > 1 else "alone"] += 1
        step = running.pop(next(turns) % len(running))
        there |= ensemble.writes[step]
        ended |= 1 << step
        started, unneeded = run.end(step, ensemble.written[step])
        for each in unneeded:
            told["let go"] += 1
            assert not let_go >> each & 1
            let_go |= 1 << each
            assert not ensemble.writes[each] & ensemble.outputs
            assert not ensemble.readers(each) & needed & ~ended
    assert run.is_over
    assert not run.missing
    assert ran == needed
    kept = bits([step for step, writes in enumerate(ensemble.writes) if writes & ensemble.outputs])
    assert let_go == ran & ~kept


class Stream:
    """An ensemble some of whose steps answer several times, each tensor depending on one of them at most."""

    def __init__(
        self, ensemble: Ensemble, decoupled: int, origins: Sequence[int | None], turns: Iterator[int], told: Told
    ) -> None:
        """`origins` of each step."""
        self.ensemble, self.decoupled, self.origins, self.turns, self.told = ensemble, decoupled, origins, turns, told
        self.needed = ensemble.needed()
        self.num_answers = [0] * len(origins)  # by step
        self.num_runs = [0] * len(origins)

    def check(self) -> None:
        """Each step that is needed runs once for each answer of its origin; each answer gives the outputs, or none."""
        self.run(None, 1)
        for step, origin in enumerate(self.origins):
            num_runs = 1 if origin is None else self.num_answers[origin]
            assert self.num_runs[step] == (num_runs if self.needed >> step & 1 else 0)

    def run(self, origin: int | None, there: int) -> None:
        """The run of an origin, with those of the answers that come of it."""
        ensemble, ran, let_go = self.ensemble, 0, 0
        run = Run(ensemble.graph, ensemble.names, origin)
        running = run.begin([name for tensor, name in enumerate(_NAMES[: there.bit_length()]) if there >> tensor & 1])
        while running:
            step = running.pop(next(self.turns) % len(running))
            assert not ran >> step & 1
            assert not ensemble.reads[step] & ~there
            ran |= 1 << step
            self.num_runs[step] += 1
            written = ensemble.written[step]
            if self.decoupled >> step & 1:
                for _ in range(next(self.turns) % 3):
                    self.told["answers"] += 1
                    self.num_answers[step] += 1
                    self.run(step, there | ensemble.writes[step])
                written = []
            else:
                there |= ensemble.writes[step]
            started, unneeded = run.end(step, written)
            running += started
            for each in unneeded:
                assert not let_go >> each & 1
                let_go |= 1 << each
                assert not ensemble.readers(each) & self.needed & ~ran
        for step, writes in enumerate(ensemble.writes):
            if ran >> step & 1 and not writes & ensemble.outputs:
                is_read_later = ensemble.readers(step) & self.needed & ~ran
                assert bool(let_go >> step & 1) != bool(is_read_later)
        assert run.is_over
        assert not run.missing


def some_ensemble(number: int, numbers: Sequence[int], told: Told) -> None:
    """One without decoupled steps, checked: of one step to 16, which read up to three tensors and write as many."""
    num_inputs = num_tensors = 1 + number % 3
    steps, outputs = [], []
    for each in sorted(numbers[: 1 + len(numbers) // 4], key=_dice):
        reads = {each % num_tensors, each // 7 % num_tensors, each // 61 % num_tensors}
        writes = range(num_tensors, num_tensors + 1 + each // 251 % 3)
        steps.append((each, tuple(reads)[: 1 + each // 1021 % 3], writes))
        num_tensors += len(writes)
        outputs += [tensor for tensor in writes if (each >> 13) % 8 < 2 or len(steps) == 1]
    steps.sort(key=itemgetter(0))  # the configuration's order is nobody's
    made = Ensemble([(reads, writes) for _, reads, writes in steps], outputs)
    check(made, num_inputs, iter(numbers), told)
    if number % 16 == 0:  # again, in another order, by what the graph remembers
        check(made, num_inputs, reversed(numbers), told)


def _dice(number: int) -> int:
    return number * 40_503 & 0xFFFF


def some_stream(numbers: Sequence[int], told: Told) -> None:
    """One with decoupled steps, checked; it has one input."""
    origin_of: list[int | None] = [None]  # by tensor
    origins: list[int | None] = []  # by step
    steps, decoupled = [], []
    for number, each in enumerate(numbers[: 1 + min(7, len(numbers) // 4)]):
        origin = origin_of[each % len(origin_of)]
        fitting = [tensor for tensor, its in enumerate(origin_of) if its in (origin, None)]
        reads = {fitting[each // 7 % len(fitting)], fitting[each // 61 % len(fitting)]}
        origins.append(max([its for tensor in reads if (its := origin_of[tensor]) is not None], default=None))
        if each // 251 % 10 < 3:
            decoupled.append(number)
        origin_of.append(number if number in decoupled else origins[-1])
        steps.append((tuple(reads), (number + 1,)))
    ensemble = Ensemble(steps, [1 + numbers[-1] % len(steps)], decoupled)
    assert list(ensemble.graph.origins) == origins
    Stream(ensemble, bits(decoupled), origins, cycle(numbers), told).check()


def run_any(numbers: Sequence[int], told: Told) -> None:
    """The graph that the numbers mean."""
    number, *rest = numbers
    if number < 1 << 15:
        some_ensemble(number, rest, told)
    else:
        some_stream(rest, told)

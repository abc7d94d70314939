"""The order of an ensemble's steps: which may start, and which results are no longer needed. Pure policy, in the
batcher.

Rules: a step starts once, as soon as all its tensors are there, and only if a requested output depends on it; steps
that do not depend on each other run at the same time. A step's result is needed until the last step that reads it has
ended or, if a requested output is part of it, until the request is answered. Models, blocks and errors are unknown
here.

A decoupled step answers any number of times, and the steps that depend on it run once for each answer: the decoupled
step is their *origin*. So the steps without an origin run once for a request, and the steps with an origin run once for
each of its answers. A result that such steps may read is kept until the last answer's steps have ended. A decoupled
step starts only when all other tensors that its followers read are there, too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

#: A step's pairs of a model's input or output and the ensemble's tensor that it is mapped to.
Map = tuple[tuple[str, str], ...]

#: Stages and transitions that a graph remembers (ours; 1 KB each).
MAX_KEPT = 4096
#: The outcome of a step's end: the next stage, the steps to start, and the steps whose results may be released.
Following = tuple["Stage", tuple[int, ...], tuple[int, ...]]


class Step(NamedTuple):
    """The tensors that a step reads and writes."""

    inputs: Map
    outputs: Map


class Graph:
    """The steps of an ensemble, compiled once. The configuration was checked before: the steps' tensors make no
    cycle."""

    def __init__(
        self, maps: Iterable[tuple[Mapping[str, str], Mapping[str, str]]], decoupled: Collection[int] = ()
    ) -> None:
        """`maps` has each step's input_map and output_map; `decoupled` are the numbers of decoupled steps."""
        self.steps: Sequence[Step] = [Step(tuple(inputs.items()), tuple(outputs.items())) for inputs, outputs in maps]
        #: Tensor → the step that writes it.
        self.writers = {tensor: number for number, step in enumerate(self.steps) for _, tensor in step.outputs}
        #: By step: the tensors that it reads, each once, and the steps that write them.
        self.reads = [frozenset([tensor for _, tensor in step.inputs]) for step in self.steps]
        self.sources = [self._writers_of(tensors) for tensors in self.reads]
        self.decoupled = frozenset(decoupled)
        #: By step: the decoupled step on whose answers the step depends, or None. The configuration was checked before:
        #: no step depends on two.
        self.origins: Sequence[int | None] = [None] * len(self.steps)
        if self.decoupled:
            self.origins = [self._origin(step) for step in range(len(self.steps))]
        # Caches, since most requests want the same outputs. Changed by needed, kept and may_keep.
        self._needed: dict[frozenset[str], frozenset[int]] = {}
        self._stages: dict[object, Stage] = {}
        self._num_kept = 0

    def needed(self, outputs: Iterable[str]) -> frozenset[int]:
        """The steps that these outputs depend on."""
        wanted = frozenset(outputs)
        needed = self._needed.get(wanted)
        if needed is None:
            found: set[int] = set()
            left = set(self._writers_of(wanted))
            while left:
                step = left.pop()
                found.add(step)
                left |= self.sources[step] - found
            needed = frozenset(found)
            if len(self._needed) < 64:  # clients could ask for 2^n combinations of n outputs
                self._needed[wanted] = needed
        return needed

    def origin_of(self, tensor: str) -> int | None:
        """The decoupled step on whose answers a tensor depends; None if there is none."""
        step = self.writers.get(tensor)
        return step if step is None or step in self.decoupled else self.origins[step]

    def read_besides(self, step: int, needed: Iterable[int]) -> set[str]:
        """The tensors that followers of a decoupled step read and that do not depend on its answers."""
        return {
            tensor
            for each in needed
            if self._follows(self.origins[each], step)
            for tensor in self.reads[each]
            if not self._follows(self.origin_of(tensor), step)
        }

    def start(self, outputs: Collection[str], origin: int | None = None) -> "Stage":
        """The first stage of the steps of one origin, before any tensor is there."""
        wanted = frozenset(outputs)
        mine = needed = self.needed(wanted)
        missing = wanted
        if self.decoupled:
            mine = frozenset([step for step in needed if self.origins[step] == origin])
            missing = frozenset([output for output in wanted if self.origin_of(output) == origin])
        waiting = {step: self.reads[step] for step in mine}
        for step in self.decoupled & mine:
            waiting[step] |= self.read_besides(step, needed)
        readers = dict.fromkeys(mine, 0)
        for step in needed:
            for source in self.sources[step]:
                if source in readers:
                    readers[source] += 1
        return self.kept(Stage(self, wanted, waiting, readers, missing, frozenset()))

    def available(self, inputs: Iterable[str], step: int) -> tuple[str, ...]:
        """All tensors that are there once a decoupled step has answered: the inputs, the step's outputs, and what steps
        that do not depend on it have written."""
        written = [tensor for tensor in self.writers if not self._follows(self.origin_of(tensor), step)]
        return (*inputs, *written, *[tensor for _, tensor in self.steps[step].outputs])

    def kept(self, stage: "Stage") -> "Stage":
        """The kept stage that has the properties of `stage`. If there is none, `stage` itself, which is kept from now
        on if there is room."""
        key = stage.key()
        if (known := self._stages.get(key)) is not None:
            return known
        if self.may_keep():
            self._stages[key] = stage
        return stage

    def may_keep(self) -> bool:
        """Whether one more stage or transition may be kept; n steps that run at once can end in 2^n orders."""
        self._num_kept += 1
        return self._num_kept <= MAX_KEPT

    def _follows(self, origin: int | None, step: int) -> bool:
        while origin not in (None, step):
            origin = self.origins[origin]
        return origin == step

    def _origin(self, step: int) -> int | None:
        found = [each if each in self.decoupled else self._origin(each) for each in self.sources[step]]
        return next((each for each in found if each is not None), None)

    def _writers_of(self, tensors: Iterable[str]) -> frozenset[int]:
        return frozenset([self.writers[tensor] for tensor in tensors if tensor in self.writers])


class Stage:
    """The progress of a request in the steps of one origin, as a value that many requests share. Transitions are
    computed once and kept, since requests repeat: a lookup takes a tenth of the time."""

    __slots__ = ("_following", "_graph", "_readers", "_waiting", "_wanted", "missing", "running")

    def __init__(
        self,
        graph: Graph,
        wanted: frozenset[str],
        waiting: Mapping[int, frozenset[str]],
        readers: Mapping[int, int],
        missing: frozenset[str],
        running: frozenset[int],
    ) -> None:
        self._graph = graph
        self._wanted = wanted
        #: Steps that have not started → the tensors that they still wait for; steps → how many readers of their results
        #: have not ended.
        self._waiting = waiting
        self._readers = readers
        #: The requested outputs that no step has written yet.
        self.missing = missing
        #: Steps that are being executed.
        self.running = running
        # Changed by `after`: the transitions from this stage that were computed, by step and tensors written.
        self._following: dict[tuple[int | None, tuple[str, ...]], Following] = {}

    def key(self) -> object:
        """The properties of the stage, hashable."""
        waiting, readers = frozenset(self._waiting.items()), frozenset(self._readers.items())
        return self._wanted, waiting, readers, self.missing, self.running

    def after(self, step: int | None, written: tuple[str, ...]) -> Following:
        """The transition when a step has ended, having written these tensors. With `step` None, the tensors are a
        request's inputs, in which optional ones may be missing."""
        following = self._following.get((step, written))
        if following is None:
            following = self._follow(step, frozenset(written))
            if self._graph.may_keep():
                self._following[step, written] = following
        return following

    def _follow(self, step: int | None, written: frozenset[str]) -> Following:
        readers, unneeded = dict(self._readers), []
        for source in () if step is None else self._graph.sources[step]:
            if source not in readers:
                continue  # a step of another origin
            readers[source] -= 1
            if not readers[source] and not self._has_output(source):
                unneeded.append(source)
        if step is not None and not readers[step] and not self._has_output(step):
            unneeded.append(step)
        waiting = {each: waits_for - written for each, waits_for in self._waiting.items()}
        started = sorted(each for each, waits_for in waiting.items() if not waits_for)
        for each in started:
            del waiting[each]
        running = self.running - {step} | set(started)
        stage = self._graph.kept(Stage(self._graph, self._wanted, waiting, readers, self.missing - written, running))
        return stage, tuple(started), tuple(unneeded)

    def _has_output(self, step: int) -> bool:
        return any(tensor in self._wanted for _, tensor in self._graph.steps[step].outputs)

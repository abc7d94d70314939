"""The order of an ensemble's steps: which may start, which results nobody needs any more. Pure policy, in the batcher.

Rules: a step starts once, as soon as all its tensors are there, and only if an output that was asked for depends on it;
steps that do not depend on each other run at once. A step's result is needed until the last step that reads of it has
ended, or, where it has an output in it, until the request is answered. Which model a step is, where a tensor lies and
what an error is, nobody here knows.

A decoupled step answers any number of times, and what depends on it runs once for each answer: its *origin* is that
step. So a request has a run of the steps without an origin, and one run more for each answer. What a step writes that
an answer could need stays until the runs that come of it have ended. A decoupled step starts when all is there, too,
that those which follow it read besides.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

#: Of a step: a model's inputs or outputs and the ensemble's tensors they are mapped to.
Map = tuple[tuple[str, str], ...]

#: Stages and their followers that a graph remembers (ours; 1 KB each).
MAX_KEPT = 4096
#: What comes of a step's end: how it stands then, the steps to start now, and those whose results may go.
Following = tuple["Stage", tuple[int, ...], tuple[int, ...]]


class Step(NamedTuple):
    """What a step reads and writes."""

    inputs: Map
    outputs: Map


class Graph:
    """The steps of an ensemble, compiled once. Its configuration has been found to be a dataflow without cycles."""

    def __init__(
        self, maps: Iterable[tuple[Mapping[str, str], Mapping[str, str]]], decoupled: Collection[int] = ()
    ) -> None:
        """`maps`: of each step, its input_map and its output_map; `decoupled` are the numbers of such steps."""
        self.steps: Sequence[Step] = [Step(tuple(inputs.items()), tuple(outputs.items())) for inputs, outputs in maps]
        #: Of each tensor that a step writes, which.
        self.writers = {tensor: number for number, step in enumerate(self.steps) for _, tensor in step.outputs}
        #: Of each step, the tensors it reads, each once, and the steps that write some of them.
        self.reads = [frozenset([tensor for _, tensor in step.inputs]) for step in self.steps]
        self.sources = [self._writers_of(tensors) for tensors in self.reads]
        self.decoupled = frozenset(decoupled)
        #: Of each step, on whose answers it depends; None: on nobody's. It has been found to be one step's at most.
        self.origins: Sequence[int | None] = [None] * len(self.steps)
        if self.decoupled:
            self.origins = [self._origin(step) for step in range(len(self.steps))]
        # Caches, since clients ask for the same outputs again. Changed by needed, stage and may_keep.
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
            if len(self._needed) < 64:  # clients can ask for 2^n
                self._needed[wanted] = needed
        return needed

    def origin_of(self, tensor: str) -> int | None:
        """On whose answers a tensor depends."""
        step = self.writers.get(tensor)
        return step if step is None or step in self.decoupled else self.origins[step]

    def read_besides(self, step: int, needed: Iterable[int]) -> set[str]:
        """What those that follow a decoupled step read that does not come of its answers."""
        return {
            tensor
            for each in needed
            if self._follows(self.origins[each], step)
            for tensor in self.reads[each]
            if not self._follows(self.origin_of(tensor), step)
        }

    def start(self, outputs: Collection[str], origin: int | None = None) -> "Stage":
        """Where one request stands in the steps of one origin before its tensors are there."""
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
        return self.stage(wanted, waiting, readers, missing, frozenset())

    def there(self, inputs: Iterable[str], step: int) -> tuple[str, ...]:
        """What steps that follow a decoupled one need not wait for once it has answered: all but what they write."""
        written = [tensor for tensor in self.writers if not self._follows(self.origin_of(tensor), step)]
        return (*inputs, *written, *[tensor for _, tensor in self.steps[step].outputs])

    def stage(
        self,
        wanted: frozenset[str],
        waiting: Mapping[int, frozenset[str]],
        readers: Mapping[int, int],
        missing: frozenset[str],
        running: frozenset[int],
    ) -> "Stage":
        """The one that is so; it is the same however it was come by, unless there are too many to keep."""
        key = wanted, frozenset(waiting.items()), frozenset(readers.items()), missing, running
        stage = self._stages.get(key)
        if stage is None:
            stage = Stage(self, wanted, waiting, readers, missing, running)
            if self.may_keep():
                self._stages[key] = stage
        return stage

    def may_keep(self) -> bool:
        """Whether one thing more may be kept; n steps that run at once end in 2^n ways."""
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
    """How far the steps of one origin are, of one request or of many: a value. What follows is worked out once, and
    kept: requests come again, and to look it up takes a tenth of the time."""

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
        #: Steps that have not started → the tensors they still wait for; steps → how many that read their results have
        #: not ended.
        self._waiting = waiting
        self._readers = readers
        #: The outputs that are not there (yet).
        self.missing = missing
        #: Steps that are being executed.
        self.running = running
        # Changed by `after`.
        self._following: dict[tuple[int | None, tuple[str, ...]], Following] = {}

    def after(self, step: int | None, written: tuple[str, ...]) -> Following:
        """A step has ended, and has written these tensors; None: a request has come with them.

        A request's are all that the ensemble has: it may lack optional ones.
        """
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
                continue  # of another run
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
        stage = self._graph.stage(self._wanted, waiting, readers, self.missing - written, running)
        return stage, tuple(started), tuple(unneeded)

    def _has_output(self, step: int) -> bool:
        return any(tensor in self._wanted for _, tensor in self._graph.steps[step].outputs)

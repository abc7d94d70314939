"""Ensembles as values: a model without instances, its requests in progress, and the client that submits steps.

`EnsembleScheduler` is an ensemble's scheduler, and `StepClient` is the client of the requests to the steps' models.
`ensembles.py` drives the requests from step to step.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from shoal.batcher.child_traces import TraceParent
from shoal.batcher.inner_client import InnerClient
from shoal.batcher.model_parts import CoalescingCache
from shoal.batcher.passed_on import MAX_KEPT, EnsembleRequest, EnsembleResponses, Passed, StepRequests, StepResponses
from shoal.batcher.peers import ClientPeer, ScheduledModel
from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.ensemble import Graph, Stage
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.statistics import OTHER, Compute
from shoal.batcher.step_headers import StepHeaders
from shoal.batcher.step_results import Result
from shoal.memo import Memo
from shoal.model_config import ensemble as configured
from shoal.model_config.gpu_tensors import NO_GPU
from shoal.model_config.messages import Config
from shoal.model_config.signature import Signature
from shoal.request import Parameters, Stay
from shoal.shm.counters import Row
from shoal.shm.ring import Record
from shoal.shm.slab import Slab

_log = logging.getLogger(__name__)

#: Compute time points in an ensemble's own trace: none, since only its steps compute.
NO_POINTS = (0, 0, 0, 0)


class StepClient(InnerClient):
    """The client of requests to steps, whose traces are part of the trace of the ensemble's request."""

    __slots__ = ("_steps",)

    def __init__(self, owner: int, steps: "Steps") -> None:
        super().__init__(owner, "ensemble")
        self._steps = steps

    def trace_parent(self, number: int) -> TraceParent | None:
        """The trace that an open step is part of: that of the ensemble's request for which the step is made; None if
        that request is not traced."""
        step = self._steps.get(number)
        return None if step is None else step[0].trace_of_steps


class Iteration:
    """The steps that run once for a request, or once for each response of a decoupled step."""

    __slots__ = (
        "asked", "headers", "num_beneath", "origin", "parameters", "parent", "results", "slab", "stage", "tensors",
    )  # fmt: skip

    def __init__(
        self,
        stage: Stage,
        tensors: dict[str, Passed],
        parameters: Parameters,
        slab: Slab,
        parent: "Iteration | None" = None,
        origin: int | None = None,
    ) -> None:
        self.parent = parent
        self.slab = slab  # memory for headers
        self.origin = origin  # the decoupled step whose response began this iteration; None: the request began it
        # Changed as steps begin and end: the stage reached; tensors available; parameters that models have added to the
        # response; results that are held, by step; the number of unfinished iterations that this iteration has begun;
        # the numbers of open steps, and their headers.
        self.stage = stage
        self.tensors = tensors
        self.parameters = parameters
        self.results: dict[int, Result] = {}
        self.num_beneath = 0
        self.asked: set[int] = set()
        self.headers = StepHeaders(slab)

    @property
    def is_over(self) -> bool:
        """Whether no step runs in this iteration or in the iterations begun by it, so that no further step will
        start."""
        return not (self.stage.running or self.num_beneath)

    @property
    def is_last(self) -> bool:
        """Whether this iteration, which is over, was the request's last."""
        parent = self.parent
        while parent is not None:
            if parent.stage.running or parent.num_beneath > 1:
                return False
            parent = parent.parent
        return True


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The course of all requests that want certain outputs of an ensemble."""

    wanted: tuple[str, ...]
    #: The outputs, in the order of the response.
    outputs: tuple[str, ...]
    #: The decoupled step whose responses these outputs depend on; None: there is one response.
    origin: int | None
    #: The stage in which a request begins, and the steps that are ready to run then.
    stage: Stage
    started: tuple[int, ...]
    #: For each decoupled step: the stage in which an iteration begins that a response of the step starts, and the steps
    #: that are ready to run then.
    branches: Mapping[int, tuple[Stage, tuple[int, ...]]]
    #: Writers of the headers of each step's requests.
    requests: Sequence[StepRequests]


class EnsembleRun:
    """A request to an ensemble that is in progress."""

    __slots__ = (
        "answer", "asked", "client", "computed", "ensemble", "graph", "is_over", "iterations", "key", "models",
        "outermost", "plan", "queued", "root",
    )  # fmt: skip

    def __init__(
        self,
        ensemble: "Ensemble",
        queued: QueuedRequest,
        asked: EnsembleRequest,
        tensors: dict[str, Passed],
        slab: Slab,
        client: ClientPeer,
        asker: "EnsembleRun | None" = None,
    ) -> None:
        """`asker` is the run of the outer ensemble that this request is a step of; None if a client sent the
        request."""
        self.ensemble = ensemble
        self.client = client
        #: The client of the outermost ensemble's request.
        self.outermost: ClientPeer = client if asker is None else asker.outermost
        self.key = queued.key
        self.queued = queued
        self.asked = asked
        #: The steps' models at the request's start; a reload does not change them.
        self.models = ensemble.models
        self.graph = ensemble.graph
        self.plan = plan = ensemble.plan(asked.request.requested_outputs)
        self.root = Iteration(plan.stage, tensors, asked.parameters, slab)
        # Changed as steps begin and end: iterations that are not over; the times of each step that has ended; block,
        # header and number of pieces of the last response, all 0 if that response only ends the request.
        self.iterations = {self.root}
        self.computed: list[Record] = []
        self.answer: tuple[int, int, int] = (0, 0, 0)
        self.is_over = False

    @property
    def trace_of_steps(self) -> TraceParent | None:
        """The trace that the request's steps are part of; None if the request is not traced. Computed when needed,
        since a request's TRACE record is read after its REQUEST record."""
        found = self.client.trace_parent(self.key - self.client.first_key) if self.outermost.traced else None
        return None if found is None else TraceParent(found.root, self.key)

    def branch(self, parent: Iteration, step: int) -> Iteration:
        """A new iteration, begun by a response of the decoupled step `step` in the iteration `parent`."""
        stage, _ = self.plan.branches[step]
        made = Iteration(stage, dict(parent.tensors), parent.parameters, parent.slab, parent, step)
        parent.num_beneath += 1
        self.iterations.add(made)
        return made

    def compute(self) -> Compute:
        """The compute times of all executions in ns: start of the first, and the sums of the three durations, as in
        Triton."""
        start_ns = input_ns = infer_ns = output_ns = 0
        for began_ns, more_input_ns, more_infer_ns, more_output_ns in self.computed:
            start_ns = began_ns if not start_ns or began_ns < start_ns else start_ns
            input_ns += more_input_ns
            infer_ns += more_infer_ns
            output_ns += more_output_ns
        return start_ns, input_ns, infer_ns, output_ns


#: Open steps by the numbers of their requests: run, iteration, step, the step's model, when the step began (ns).
Steps = dict[int, tuple[EnsembleRun, Iteration, int, ScheduledModel, int]]


class EnsembleScheduler(Scheduler):
    """The scheduler of an ensemble, in which no request waits: all begin at once. See `Scheduler` for the contract
    of each method."""

    __slots__ = ("abandoned", "arrived", "on_news", "open")

    def __init__(self) -> None:
        # Changed here and by `Ensembles`: requests to begin; requests in progress, by key; cancelled ones.
        self.arrived: list[QueuedRequest] = []
        self.open: dict[int, EnsembleRun] = {}
        self.abandoned: list[EnsembleRun] = []
        #: Called when a request is to begin or was cancelled.
        self.on_news: Callable[[], None] = lambda: None

    @property
    def pending(self) -> int:
        return 0

    def oldest_ns(self) -> int:
        return 0

    def rows_before(self, request: QueuedRequest) -> int:
        return 0

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        self.arrived.append(request)
        self.on_news()

    def add_first(self, request: QueuedRequest) -> None:
        self.add(request, 0)  # an ensemble has no instances that could die

    def take(self, now_ns: int) -> Batch | None:
        return None

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        return []  # only steps expire, in their models' queues

    def cancel(self, key: int) -> bool:
        run = self.open.pop(key, None)
        if run is not None:
            self.abandoned.append(run)
            self.on_news()
            return True
        left = [request for request in self.arrived if request.key != key]
        is_here, self.arrived = len(left) < len(self.arrived), left
        return is_here

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        """No effect: an ensemble has no instances."""

    def next_deadline_ns(self) -> int | None:
        return None

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        """No effect: an ensemble has no instances."""

    def remove_instance(self, instance: int) -> None:
        """No effect: an ensemble has no instances."""

    def drain(self) -> list[QueuedRequest]:
        drained = [run.queued for run in self.open.values()] + self.arrived
        self.abandoned += self.open.values()
        self.open.clear()
        self.arrived.clear()
        self.on_news()
        return drained


class Ensemble(ScheduledModel):
    """A version of an ensemble. `models` are the ids of its steps' models; 0 for one that is not loaded."""

    __slots__ = (
        "answers", "graph", "known", "left_out", "max_inflight", "models", "name", "num_inflight", "parked",
        "plans", "requests", "responses", "runs", "steps",
    )  # fmt: skip
    #: As in Triton, failures count as OTHER whatever the step's failure counts as.
    FAILURE: ClassVar[int] = OTHER

    def __init__(
        self,
        model_id: int,
        config: Config,
        row: Row,
        *,
        version: int,
        models: Sequence[int],
        may_run_again: bool,
        sharing: CoalescingCache | None = None,
        decoupled: Collection[int] = (),
    ) -> None:
        self.runs = EnsembleScheduler()
        super().__init__(
            model_id,
            self.runs,
            row,
            max_rows=max(1, config["max_batch_size"]),
            may_run_again=may_run_again,
            signature=Signature.from_config(config),
            version=version,
            sharing=sharing,
        )
        self.name = config["name"]
        self.steps = [(step["input_map"], step["output_map"]) for step in configured.steps(config)]
        #: All models of the batcher by id. Set by Ensembles.
        self.known: Mapping[int, ScheduledModel] = {}
        #: Parsers of the headers of each step's responses, and the writer of the headers of the ensemble's responses.
        self.responses = [StepResponses(tuple(outputs.items())) for _, outputs in self.steps]
        self.answers = EnsembleResponses(self.signature)
        self.max_inflight = configured.max_inflight_requests(config)
        # Changed as steps begin and end: number of open requests to each step, and the iterations that wait to send
        # one.
        self.num_inflight = [0] * len(self.steps)
        self.parked = [deque[tuple[EnsembleRun, Iteration]]() for _ in self.steps]
        #: Outputs that models have left out of a response.
        self.left_out: set[str] = set()
        self.link(models, decoupled)

    def points(self, compute: Compute) -> tuple[int, int, int, int]:
        """No points: as in Triton, only an ensemble's steps compute."""
        return NO_POINTS

    def link(self, models: Sequence[int], decoupled: Collection[int]) -> None:
        """Set the models of the steps, at first and whenever another version takes the place of a step's model."""
        self.models: Sequence[int] = tuple(models)
        #: Writers of the headers of each step's requests. A request in progress keeps those of its plan, which are for
        #: the models that it began with.
        self.requests = [
            StepRequests(tuple(inputs.items()), tuple(outputs), partial(self._stays, step, self.models))
            for step, (inputs, outputs) in enumerate(self.steps)
        ]
        self.graph = Graph(self.steps, decoupled)
        self.plans = Memo[tuple[str, ...], StepPlan]("ensemble_plan", MAX_KEPT)

    def _stays(self, step: int, models: Sequence[int]) -> tuple[Stay, ...]:
        """The outputs of a step that may stay on a GPU: those that only steps read, all of them on that GPU."""
        writer = self.known.get(models[step])
        if writer is None or writer.sharing is not None:
            return ()
        stays = []
        for output, tensor in self.steps[step][1].items():
            reading = [models[each] for each, (inputs, _) in enumerate(self.steps) if tensor in inputs.values()]
            readers = [self.known.get(each) for each in reading]
            gpus = {NO_GPU if reader is None or reader.sharing is not None else reader.gpu for reader in readers}
            if len(gpus) == 1 and NO_GPU not in gpus and tensor not in self.signature.outputs:
                stays.append(Stay(output, gpus.pop()))
        return tuple(stays)

    def plan(self, requested: tuple[str, ...]) -> StepPlan:
        """The course of requests for these outputs; for all outputs if `requested` is empty."""
        plan = self.plans.entries.get(requested)
        if plan is None:
            signature, graph = self.signature, self.graph
            wanted = requested or tuple(signature.outputs)
            outputs = tuple([name for name in signature.outputs if name in wanted])
            stage, started, _ = graph.start(wanted).after(None, tuple(signature.inputs))
            branches = {
                step: graph.start(wanted, step).after(None, graph.available(signature.inputs, step))[:2]
                for step in graph.decoupled
            }
            plan = StepPlan(wanted, outputs, graph.origin_of(wanted[0]), stage, started, branches, self.requests)
            self.plans.keep(requested, plan)
        return plan

    def without_left_out(self, outputs: tuple[str, ...], written: Collection[str]) -> tuple[str, ...]:
        """Those of the `outputs` that steps have written; the response lacks the other outputs, as in Triton.

        The log warns once for each missing output.
        """
        for name in outputs:
            if name not in written and name not in self.left_out:
                self.left_out.add(name)
                step = self.graph.writers[name]
                _log.warning(
                    "Composing models did not output tensor %s: step %d of ensemble '%s' has left it out, and so do "
                    "the ensemble's responses",
                    name, step, self.name,
                )  # fmt: skip
        return tuple([name for name in outputs if name in written])

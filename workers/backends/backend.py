"""The contract between a worker and a framework: one Backend object is one model instance.

The worker calls everything from one thread, `describe` only where the configuration is not finished.
Whatever a backend raises is told to the client; a ShoalError as it is, anything else as an internal error.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shoal.errors import InternalError, ShoalError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.workers.answers import Answers
from shoal.workers.ragged import RaggedBatches
from shoal.workers.requests import Request, Stage, gather, log_prefix, why_not_joined
from shoal.workers.tensors import Array


@dataclass(frozen=True, slots=True)
class BackendModel:
    """What is to be served. `config` may be unfinished in `describe`, never in `load`."""

    name: str
    version: int
    instance_name: str  # "simple_0_0"
    version_dir: str
    file: str  # inside version_dir, or that of a backend written in Python; "" where the backend needs none
    config: Config
    backend_config: dict[str, str]  # --backend-config of this backend

    def parameter(self, key: str) -> str | None:
        """The string_value of one of the configuration's `parameters`."""
        return parameter(self.config, key)


@dataclass(frozen=True, slots=True)
class Device:
    """The device on which the instance runs."""

    kind: str  # "KIND_CPU", "KIND_GPU", or "KIND_MODEL": the model finds its devices itself
    id: int  # of the GPU in this process, which sees no other: 0; 0 on a CPU, too
    cores: tuple[int, ...]  # the worker is pinned to these
    log_verbose: int = 0


class Backend(ABC):
    """One model instance in one framework. Frameworks are imported by the methods' module, not before."""

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The inputs and outputs as the model's file declares them; empty where no file does. Raises ShoalError."""
        del model, device
        return ModelIO((), ())

    @abstractmethod
    def load(self, model: BackendModel, device: Device) -> None:
        """Get ready to execute, and check the model against its configuration. Raises ShoalError.

        Where the configuration has no samples to warm up with, a backend that profits from a first run has one here.
        """

    @abstractmethod
    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Answer each request of one batch, through `answers`: add outputs or fail, each exactly once.

        A backend that knows them sets `input_end_ns` and `output_start_ns`, the monotonic times at which the model
        starts and has finished. Several requests come only where the model has a batch dimension. An exception fails
        all of them.
        """

    @property
    def has_ready_check(self) -> bool:
        """Whether the model, which is loaded, says by itself if it is ready."""
        return False

    def is_ready(self) -> bool:
        """What the model says; raises whatever it raises. Asked between two batches where it has a check."""
        return True

    def end_sequence(self, correlation_id: int | str) -> None:
        """A sequence has ended without a request that says so: what is kept of it is of no more use."""
        del correlation_id

    @abstractmethod
    def unload(self) -> None:
        """Let go of the model; the process ends soon after."""


class BatchedBackend(Backend):
    """A backend that runs one array per input, all requests' rows in it. Gathering and splitting are done here."""

    #: Page-locked memory in which inputs for a GPU are gathered, which saves a copy; None without one.
    stage: Stage | None = None
    #: The assembly of batches that are more than rows below each other; None for ordinary ones.
    ragged: RaggedBatches | None = None

    @abstractmethod
    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run the model. The arrays given may be read-only; those returned are copied before the next call."""

    def known_outputs(self, inputs: dict[str, Array], rows: int) -> dict[str, tuple[int, ...]] | None:
        """The shapes of all outputs of a batch of `rows`, where it pays to have them written in place; else None."""
        del inputs, rows
        return None

    def run_into(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> dict[str, Array] | None:
        """Run the model and write its outputs into the arrays given, of the shapes that `known_outputs` said.

        Where it turns out that they have others, they are returned, as `run` does.
        """
        for name, array in self.run(inputs).items():
            outputs[name][...] = array
        return None

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Gather, run, split."""
        if self.ragged is not None:
            self._execute_ragged(requests, answers, self.ragged)
            return
        if len(requests) == 1 and self.stage is None:
            inputs, rows = requests[0].inputs, requests[0].parsed.rows
        else:
            requests = joinable(requests, answers)
            inputs = gather(requests, self.stage)
            rows = sum([request.parsed.rows for request in requests])
        shapes = self.known_outputs(inputs, rows)
        placed = None if shapes is None else answers.place(requests, shapes)
        answers.input_end_ns = time.monotonic_ns()
        outputs = self.run(inputs) if placed is None else self.run_into(inputs, placed)
        answers.output_start_ns = time.monotonic_ns()
        if outputs is not None:
            if placed is not None:
                answers.drop()
            answers.add_batch(requests, outputs)

    def _execute_ragged(self, requests: Sequence[Request], answers: Answers, ragged: RaggedBatches) -> None:
        requests = joinable(requests, answers, ragged.inputs)
        if requests:
            inputs = ragged.gather(requests)
            answers.input_end_ns = time.monotonic_ns()
            outputs = self.run(inputs)
            answers.output_start_ns = time.monotonic_ns()
            ragged.add(requests, outputs, answers)


def joinable(requests: Sequence[Request], answers: Answers, ragged: Collection[str] = ()) -> list[Request]:
    """The requests that fit below the first one; the batcher sends no others, so the rest fail as a fault of ours."""
    first, joined = requests[0].parsed, []
    for request in requests:
        reason = "" if request.parsed is first else why_not_joined(first, request.parsed, ragged)
        if not (reason or request.parsed.is_plain):
            reason = _why_unreadable(request)
        if reason:
            answers.fail(request.position, InternalError(log_prefix(request.id) + reason))
        else:
            joined.append(request)
    return joined


def _why_unreadable(request: Request) -> str:
    """The error in a request's strings; a batch's gathered strings would not show whose they are."""
    try:
        request.inputs  # noqa: B018 - they are decoded by the first look at them
    except ShoalError as error:
        return str(error)
    return ""

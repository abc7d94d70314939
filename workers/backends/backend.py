"""The contract between a worker and a framework: one Backend object is one model instance.

The worker calls all methods but `of_another_thread` from one thread, and `describe` only if the configuration is not
complete. An exception of a backend reaches the client as an error: a ShoalError unchanged, any other as an internal
error.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.errors import InternalError, ShoalError, UnsupportedError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.mypyc import mypyc_attr
from shoal.star.validation import log_prefix
from shoal.workers.answers import Answers
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.ragged import RaggedBatches
from shoal.workers.requests import Request, Stage, gather, why_not_joined
from shoal.workers.tensors import Array


@dataclass(frozen=True, slots=True)
class BackendModel:
    """The model that a backend loads. `config` may be incomplete in `describe`, never in `load`."""

    name: str
    version: int
    instance_name: str  # "simple_0_0"
    version_dir: str
    file: str  # path of the model file in version_dir, or of the model.py of a backend in Python; "" if none is needed
    config: Config
    backend_config: dict[str, str]  # --backend-config of this backend

    def parameter(self, key: str) -> str | None:
        """The string_value of one of the configuration's `parameters`."""
        return parameter(self.config, key)


@dataclass(frozen=True, slots=True)
class Device:
    """The device on which the instance runs."""

    kind: str  # "KIND_CPU", "KIND_GPU", or "KIND_MODEL": the model finds its devices itself
    id: int  # number of the GPU in this process, which sees no other GPU: 0; 0 on a CPU, too
    cores: tuple[int, ...]  # cores to which the instance is pinned
    log_verbose: int = 0
    process_cores: tuple[int, ...] = ()  # cores of all instances that share the process; empty: it has one instance

    @property
    def pool_threads(self) -> int:
        """The number of threads of a pool that all instances of the process share, the thread of one instance included:
        with the threads of the other instances there is one for each core."""
        if not self.process_cores:
            return len(self.cores)
        num_instances = max(1, len(self.process_cores) // len(self.cores))
        return num_instances * (len(self.cores) - 1) + 1


@mypyc_attr(allow_interpreted_subclasses=True)  # most backends are interpreted: a framework takes their time
class Backend:
    """One model instance in one framework. A framework is imported by the module of its backend, and only by that.

    No ABC, although some of its methods are abstract: compiled, an ABC and a subclass of it are one to `isinstance`.
    """

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The inputs and outputs that the model's file declares; empty if the file declares none. Raises ShoalError
        if the file cannot be read."""
        del model, device
        return ModelIO((), ())

    def report_refusal_by(self, refuse: Callable[[ShoalError], None]) -> None:
        """`refuse` reports to the supervisor why the model cannot be loaded. For a backend whose `load` may not return
        then: it calls `refuse` in another thread, and ends the process. Called once, before `load`."""
        del refuse

    def load(self, model: BackendModel, device: Device) -> None:
        """Load the model, and check it against its configuration. Raises ShoalError if it cannot be loaded or does not
        fit.

        If the configuration has no warm-up samples, a backend that profits from a first run does one here.
        """
        raise NotImplementedError

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Answer each request of one batch, through `answers`: add outputs or fail, each exactly once.

        A backend that knows when the model has started and finished sets `input_end_ns` and `output_start_ns`
        (monotonic ns). Several requests come only if the model has a batch dimension. An exception fails all of them.
        The arrays of requests are read-only views of the clients' blocks, valid until `execute` returns.
        """
        raise NotImplementedError

    def pad_batches(self, rows: int) -> None:
        """Pad all batches to this number of rows from now on, with zeros; 0: none. Called once, after `load`; only a
        BatchedBackend gets another number than 0."""
        del rows

    @property
    def takes_gpu_tensors(self) -> bool:
        """Whether the loaded model takes tensors of clients and other models in place on its own GPU: as `GpuTensor`s
        in `Request.tensors` instead of arrays. Read once."""
        return False

    def keep_outputs_on_gpu(self, pool: GpuPool, regions: Callable[[], CudaRegions]) -> None:
        """Add outputs that are on the instance's GPU as DeviceOutputs from now on (workers/gpu_answers.py); `pool` has
        room for them there, `regions` opens other workers' memory. Called at most once, after `load`, for an instance
        of KIND_GPU; a backend that cannot do this leaves its outputs on the host."""
        del pool, regions

    @property
    def has_ready_check(self) -> bool:
        """Whether the loaded model has a check of its own for readiness."""
        return False

    def is_ready(self) -> bool:
        """Whether the model reports to be ready; raises whatever its check raises. Called between two batches."""
        return True

    def end_sequence(self, correlation_id: int | str) -> None:
        """Discard the model's state of a sequence that has ended without a request that says so."""
        del correlation_id

    def unload(self) -> None:
        """Release the model; the process ends soon after, unless other instances of the model share it."""
        raise NotImplementedError

    def of_another_thread(self) -> "Backend":
        """A backend for another instance of the loaded model in this process. Another thread calls all its methods,
        `load` first, which does not load again what instances can share.

        Raises UnsupportedError for a backend whose instances need a process each.
        """
        raise UnsupportedError(f"instances of {type(self).__name__} cannot share a process")


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchedBackend(Backend):
    """A backend that runs one array per input, with all requests' rows in it. Gathering and splitting are done here."""

    #: Page-locked memory in which inputs for a GPU are gathered, which saves a copy; None without a GPU.
    stage: Stage | None = None
    #: Assembles the batches of a model with ragged or batch inputs; None if a batch is its requests' rows,
    #: concatenated.
    ragged: RaggedBatches | None = None
    #: Rows that every batch is padded to, so that the model's operands always have one shape; 0: none are added.
    padded_rows: int = 0

    def pad_batches(self, rows: int) -> None:
        self.padded_rows = rows

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run the model on one array per input. The given arrays may be read-only; the returned ones are copied
        before the next call."""
        raise NotImplementedError

    def known_outputs(self, inputs: dict[str, Array], rows: int) -> dict[str, tuple[int, ...]] | None:
        """The shapes of all outputs of a batch of `rows` rows, if `run_into` is to write them straight into the
        block of the answers; else None."""
        del inputs, rows
        return None

    def run_into(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> dict[str, Array] | None:
        """Run the model and write its outputs into the given arrays, which have the shapes that `known_outputs`
        returned.

        If the outputs turn out to have other shapes, they are returned, as by `run`.
        """
        for name, array in self.run(inputs).items():
            outputs[name][...] = array
        return None

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Gather the requests' inputs, run the model, split its outputs."""
        if self.ragged is not None:
            self._execute_ragged(requests, answers, self.ragged)
            return
        if self.padded_rows:
            self._execute_padded(requests, answers)
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

    def _execute_padded(self, requests: Sequence[Request], answers: Answers) -> None:
        requests = joinable(requests, answers)
        if requests:
            inputs = {name: with_rows(array, self.padded_rows) for name, array in gather(requests).items()}
            answers.input_end_ns = time.monotonic_ns()
            outputs = self.run(inputs)
            answers.output_start_ns = time.monotonic_ns()
            answers.add_batch(requests, outputs)  # leaves out padded rows, which come after the requests' rows

    def _execute_ragged(self, requests: Sequence[Request], answers: Answers, ragged: RaggedBatches) -> None:
        requests = ragged.joinable(joinable(requests, answers, ragged.inputs), answers)
        if requests:
            inputs = ragged.gather(requests)
            answers.input_end_ns = time.monotonic_ns()
            outputs = self.run(inputs)
            answers.output_start_ns = time.monotonic_ns()
            ragged.add(requests, outputs, answers)


def with_rows(array: Array, rows: int) -> Array:
    """A copy of an array with rows of zeros, or of empty strings, added up to `rows`; the array itself if it has that
    many."""
    if len(array) >= rows:
        return array
    padded: Array = np.full((rows, *array.shape[1:]), b"" if array.dtype == object else 0, array.dtype)
    padded[: len(array)] = array
    return padded


class Refusals(Protocol):
    """The part of `Answers` that takes the errors of requests."""

    def fail(self, position: int, error: ShoalError) -> None: ...


def joinable(requests: Sequence[Request], answers: Refusals, ragged: Collection[str] = ()) -> list[Request]:
    """The requests whose inputs can be joined with those of the first one. The batcher sends only such requests; any
    other, and one whose strings cannot be read, is failed with an internal error."""
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
    """The error in a request's strings, "" if there is none. Each request is checked by itself, since an error in the
    gathered strings of a batch could not be traced to one request."""
    try:
        request.inputs  # noqa: B018 - they are decoded by the first look at them
    except ShoalError as error:
        return str(error)
    return ""

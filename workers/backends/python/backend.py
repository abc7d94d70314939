"""The Python backend: a user's model.py, run in its worker as Triton runs it in a stub.

There are three kinds of models. A plain model returns a list of responses, which the worker writes into one block, as
it does with any backend's outputs. A decoupled model answers through senders, in its own time. A model whose `execute`
is a coroutine runs on an event loop of the instance: each of its requests, too, can have a response sender, and the
instance takes the next batch while earlier calls of `execute` wait.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence

from triton_python_backend_utils import TRITONSERVER_RESPONSE_COMPLETE_FINAL, Tensor, TritonModelException, runtime
from triton_python_backend_utils.errors import as_shoal_error
from triton_python_backend_utils.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from triton_python_backend_utils.response_sender import outputs_of

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.signature import Signature
from shoal.process import EXIT_DEVICE_LOST
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend, BackendModel, Device
from shoal.workers.backends.python import blas
from shoal.workers.backends.python.bls import NO_PARENTS, Parents, current_parents
from shoal.workers.backends.python.event_loop import ModelEventLoop
from shoal.workers.backends.python.gpu_calls import GpuCalls, outgoing
from shoal.workers.backends.python.model import InstanceIdentity, PythonModel, Responses, describe
from shoal.workers.backends.python.raised import original
from shoal.workers.backends.python.requests import ModelTraits, ServedRequest
from shoal.workers.backends.python.runtime import WorkerRuntime
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.failure_log import failure_fields
from shoal.workers.faults import DeviceError, Fault, fault_of
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.requests import Request

_log = logging.getLogger(__name__)

#: Seconds that coroutines may still run when the model is being unloaded; no client waits for them then (ours).
UNLOAD_WAIT_S = 5.0


class PythonBackend(Backend):
    """One instance of a TritonPythonModel."""

    def __init__(self) -> None:
        # These fields are changed by describe and load.
        self._model = PythonModel(InstanceIdentity("", 0, "", "", ""), {})
        self._served = ModelTraits("", 0, (), False)
        self._event_loop = ModelEventLoop("execute")
        self._runtime = WorkerRuntime("")
        #: The backend of the process's first instance; None if this is the first.
        self._first: PythonBackend | None = None
        # These fields are changed by load, and by execute if the model turns out to write into its inputs.
        self._has_copies = False
        self._takes_gpu_tensors = False

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The configuration as completed by the model's auto_complete_config."""
        self._open(model, device)
        return ModelIO((), (), self._model.auto_complete())

    def load(self, model: BackendModel, device: Device) -> None:
        """Import the model and initialize it. Raises InvalidArgumentError for an invalid parameter, InternalError if
        the model fails."""
        self._takes_gpu_tensors = not _flag(model, "FORCE_CPU_ONLY_INPUT_TENSORS", default="yes")
        self._has_copies = _flag(model, "WRITABLE_INPUTS", default="no")
        self._open(model, device)
        outputs = tuple(Signature.from_config(model.config).outputs)
        self._served = ModelTraits(model.name, model.version, outputs, self._model.is_decoupled)
        self._model.load()

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Pass the batch to the model, and the model's responses to `answers`. Raises DeviceError for a fault of the
        GPU, unless `execute` is a coroutine."""
        batch = [ServedRequest(request, answers, self._served, self._has_copies) for request in requests]
        # A decoupled model may answer at any time, so tensors of its requests are not lent.
        parents = self._runtime.begin(requests, answers, can_lend=not self._model.is_decoupled)
        answers.input_end_ns = time.monotonic_ns()
        if self._model.is_async:
            for request in batch:
                request._open_channel()  # here, since the worker's loop must know all senders when this method returns
            self._event_loop.begin(self._execute_async(batch, parents))
            current_parents.set(NO_PARENTS)  # calls of this thread are made for no request from now on
            return
        try:
            responses = self._execute(batch)
            answers.output_start_ns = time.monotonic_ns()
            self._answer(batch, responses)
        except Exception as error:  # noqa: BLE001 - whatever a model raises is the answer to its requests
            fault = fault_of(error)
            if fault is not None:
                raise DeviceError(str(self._model.as_failure(error)), fault) from None
            self._fail(batch, error)
        finally:
            self._runtime.end(parents)

    def keep_outputs_on_gpu(self, pool: GpuPool, regions: Callable[[], CudaRegions]) -> None:
        """Leave outputs on the GPU in the pool, and let the model's calls of other models pass tensors on the GPU. All
        instances of a process make their calls as one client of the star, with the first instance's pool."""
        Tensor._outgoing = outgoing
        if self._first is None:
            self._runtime.gpu = GpuCalls(pool, regions)

    @property
    def takes_gpu_tensors(self) -> bool:
        """Whether the model's parameter FORCE_CPU_ONLY_INPUT_TENSORS is "no"."""
        return self._takes_gpu_tensors

    @property
    def has_ready_check(self) -> bool:
        return self._model.has_ready_check

    def is_ready(self) -> bool:
        """The result of the model's is_ready. Raises InternalError with the text of any error."""
        try:
            return self._model.is_ready()
        except Exception as error:
            raise InternalError(describe(error)) from error

    def end_sequence(self, correlation_id: int | str) -> None:
        """Call the model's end_sequence for a sequence, if the model has that method (ours: Triton calls no such
        method)."""
        try:
            self._model.end_sequence(correlation_id)
        except Exception as error:  # noqa: BLE001 - no request's fault: only the log reports it
            _log.error("%s", self._model.as_failure(error))

    def unload(self) -> None:
        """Wait for coroutines, then call the model's finalize."""
        self._event_loop.stop(UNLOAD_WAIT_S)
        try:
            self._model.finalize()
        except InternalError as error:
            _log.error("model instance '%s' failed to finalize: %s", self._model.identity.instance_name, error)

    def of_another_thread(self) -> "PythonBackend":
        """A backend for another instance: an object of the same class, from the module that is imported already."""
        other = PythonBackend()
        other._first = self
        return other

    # -- running it --

    def _execute(self, batch: Sequence[ServedRequest]) -> Responses:
        if self._model.is_decoupled:
            for request in batch:
                request.get_response_sender()  # one of the model's threads may need the sender when this batch is over
            return self._model.execute(batch)
        num_calls = _num_calls()
        try:
            return self._model.execute(batch)
        except ValueError as error:
            is_read_only = "read-only" in str(error) and not self._has_copies
            if not is_read_only or num_calls != _num_calls():
                raise
            if any(request._channel is not None for request in batch):
                raise  # some responses may have been sent already
        # In Triton models may write into their inputs, and some do. This execution has called no model and sent no
        # response, so it is repeated with copies.
        _log.warning(
            "model instance '%s' writes into its inputs: it gets copies from now on. Set the parameter "
            "WRITABLE_INPUTS to 'yes', or write into a copy of your own", self._model.identity.instance_name,
        )  # fmt: skip
        self._has_copies = True
        for request in batch:
            request.copy_inputs()
        return self._model.execute(batch)

    async def _execute_async(self, batch: Sequence[ServedRequest], parents: Parents) -> None:
        try:
            self._answer(batch, await self._call_async(batch, parents))
        except BaseException as error:  # whatever a model raises is the answer to its requests
            if self._event_loop.is_stopping and not isinstance(original(error), Exception):  # it was cancelled
                for request in batch:
                    request.fail(UnavailableError(f"model instance '{self._model.identity.instance_name}' is unloaded"))
            else:
                self._fail(batch, error)
            if fault_of(error) is Fault.DEVICE_LOST:
                # The error of a coroutine does not reach the worker's loop, which otherwise ends the worker when its
                # GPU is lost.
                os._exit(EXIT_DEVICE_LOST)
            if not isinstance(error, Exception):
                raise

    async def _call_async(self, batch: Sequence[ServedRequest], parents: Parents) -> Responses:
        current_parents.set(parents)  # for calls that this coroutine makes in the event loop's thread
        try:
            return await self._model.execute_async(batch)
        finally:
            if self._runtime.has_lent(parents):
                import asyncio  # here, since asyncio takes 6 MB of memory: see event_loop.py

                await asyncio.to_thread(self._runtime.end, parents)

    # -- answering --

    def _answer(self, batch: Sequence[ServedRequest], responses: Responses) -> None:
        for request, response in zip(batch, responses, strict=True):
            try:
                if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                    request._open_channel().reschedule()
                elif response is not None and request._channel is not None:
                    request.get_response_sender().send(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                elif response is not None and (error := response.error()) is not None:
                    request.fail(as_shoal_error(error))
                elif response is not None:
                    request.answers.add_outputs(request.request, outputs_of(response), response._parameters or None)
            except ShoalError as error:
                request.fail(error)
            except TritonModelException as error:  # the model has already sent its final response
                _log.error("model instance '%s': %s", self._model.identity.instance_name, error)

    def _fail(self, batch: Sequence[ServedRequest], error: BaseException) -> None:
        failure = self._model.as_failure(error)
        _log.error("%s", failure, extra=failure_fields([request.request for request in batch]))
        for request in batch:
            request.fail(failure)

    def _open(self, model: BackendModel, device: Device) -> None:
        identity = InstanceIdentity(
            model.name, model.version, model.instance_name, model.version_dir, model.file, device.kind, device.id
        )
        if self._model.identity == identity:
            self._model.configure(model.config)
            return
        if self._first is not None:
            self._model = PythonModel(identity, model.config, self._first._model)
            self._runtime = self._first._runtime
            return
        self._model = PythonModel(identity, model.config)
        self._own_process(model, device)

    def _own_process(self, model: BackendModel, device: Device) -> None:
        """Change settings of the interpreter, which runs only this model."""
        sys.dont_write_bytecode = True  # bytecode beside a model would look like a change of the model
        self._runtime = WorkerRuntime(model.name)
        self._runtime.follow_forks()
        runtime.set_runtime(self._runtime)
        blas.use_threads(len(device.cores))


def _num_calls() -> int:
    return runtime.current.num_calls if runtime.current is not None else 0


def _flag(model: BackendModel, key: str, *, default: str) -> bool:
    value = model.parameter(key) or default
    if value not in ("yes", "no"):
        raise InvalidArgumentError(
            f"Incorrect value for {key}: '{value}' in model '{model.name}'; it must be 'yes' or 'no'"
        )
    return value == "yes"

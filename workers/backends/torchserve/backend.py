"""The backend `torchserve`: a handler of a TorchServe archive, with TorchServe's data, context, results and errors.

A batch goes to the handler as a list of dicts, and comes back as a list. Where the handler is a coroutine function, the
handler is called for each request by itself, on an event loop, and the calls overlap. With continuous batching, a
request that is not finished, by the handler's stopping criterion, is executed again with the next batch.
"""

import copy
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ts import __version__
from ts.context import Context
from ts.metrics.caching_metric import OWN_DIMENSIONS, Sample
from ts.metrics.metric_type_enum import MetricTypes

from shoal.datatypes import BYTES
from shoal.errors import CancelledError, InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend, BackendModel, Device
from shoal.workers.backends.python import forks
from shoal.workers.backends.python.event_loop import ModelEventLoop
from shoal.workers.backends.python.model import describe
from shoal.workers.backends.python.raised import is_answer, original
from shoal.workers.backends.torchserve import calls, entry_point, process, results
from shoal.workers.backends.torchserve.archive import Archive, open_archive
from shoal.workers.backends.torchserve.calls import INPUT, Call
from shoal.workers.backends.torchserve.entry_point import EntryPoint
from shoal.workers.backends.torchserve.replies import OUTPUT, Reply
from shoal.workers.backends.torchserve.results import WrongReturnError
from shoal.workers.faults import DeviceError, fault_of
from shoal.workers.requests import Request
from shoal.workers.sequences import slot_of

if TYPE_CHECKING:
    from shoal.workers.backends.torchserve.rank import RankRequest
    from shoal.workers.backends.torchserve.ranks import Ranks

_log = logging.getLogger(__name__)

#: Seconds that running coroutines get to finish when the model is unloaded, as for Python models (ours).
UNLOAD_WAIT_S = 5.0
#: The least time in ns between two recorded values of the metric PredictionTime: a gauge keeps only the last (ours).
PREDICTION_TIME_EVERY_NS = 100_000_000
_STREAMED = "ts_stream_next"


class TorchserveBackend(Backend):
    """One instance of a model of TorchServe."""

    def __init__(self) -> None:
        # These fields are changed by load.
        self._archive: Archive
        self._context: Context
        self._entry: EntryPoint
        self._dimensions: tuple[tuple[str, str], ...] = ()
        self._event_loop = ModelEventLoop("handle")
        self._metrics: process.HandlerMetrics
        self._has_senders = False  # whether response senders answer the requests
        self._refuse: Callable[[ShoalError], None] = lambda _error: None  # a worker's is set before `load`
        self._ranks: Ranks | None = None  # the handler's other processes; None if it has only this one
        # Changed by executions: the time of the last record of PredictionTime.
        self._recorded_ns = 0
        # Changed by execute: slot of a request that the handler has not finished → the request's key, its call, and how
        # many parts of its response were sent. If the request is cancelled between two executions, its entry stays
        # until another request comes in the slot.
        self._unfinished: dict[int, tuple[int, Call, int]] = {}

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The tensors that all models of this backend have."""
        del model, device
        return ModelIO((IOTensor(INPUT, "TYPE_STRING", (1,)),), (IOTensor(OUTPUT, "TYPE_STRING", (1,)),))

    def report_refusal_by(self, refuse: Callable[[ShoalError], None]) -> None:
        self._refuse = refuse

    def load(self, model: BackendModel, device: Device) -> None:
        """Import the handler and initialize it. Raises InvalidArgumentError for a configuration or an archive that is
        wrong, InternalError if the handler fails."""
        _check_tensors(model)
        archive = open_archive(model)
        num_threads = len(device.cores)
        if archive.launch is not None:
            from shoal.workers.backends.torchserve.ranks import Ranks  # here: few models need it, and it takes 1 MiB

            num_threads = archive.launch.num_threads
            self._ranks = Ranks(archive.launch, self._refuse)
            self._ranks.start(model, device, TorchserveBackend())
        self._load(model, device, archive, num_threads)
        if self._ranks is not None:
            self._ranks.wait_until_loaded()

    def load_rank(self, model: BackendModel, device: Device) -> None:
        """Do what `load` does, in a process that is a further rank of the handler (ranks.py)."""
        archive = open_archive(model)
        assert archive.launch is not None, "the first rank has read the same"
        self._load(model, device, archive, archive.launch.num_threads)

    def _load(self, model: BackendModel, device: Device, archive: Archive, num_threads: int) -> None:
        self._archive = archive
        process.enter(archive, num_threads)
        self._metrics = process.HandlerMetrics()
        self._dimensions = tuple(zip(OWN_DIMENSIONS, (archive.name, "Model"), strict=True))
        self._context = Context(
            archive.name,
            archive.directory,
            archive.manifest,
            archive.batch_size,
            device.id if device.kind == "KIND_GPU" else None,
            __version__,
            archive.limits_image_pixels,
            process.metrics_store(archive, self._metrics),
            archive.yaml_config,
        )
        self._has_senders = archive.is_decoupled or archive.is_async or archive.is_sequential
        self._context.header_key_sequence_id = archive.sequence_headers.id
        self._context.header_key_sequence_start = archive.sequence_headers.start
        self._context.header_key_sequence_end = archive.sequence_headers.end
        try:
            with forks.end_here():
                self._entry = entry_point.find(archive.handler, archive.envelope)
                self._entry.initialize(self._context)
        except ShoalError:
            raise
        except Exception as error:
            raise InternalError(
                f"the handler '{archive.handler}' of model '{model.name}' cannot be initialized: "
                f"{describe(error, entry_point.__file__)}"
            ) from error
        if inspect.iscoroutinefunction(self._entry.handle) and not archive.is_async:
            raise InvalidArgumentError(
                f"'handle' of model '{model.name}' is a coroutine function: set 'asyncCommunication: true' in its YAML "
                "file"
            )

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Pass the requests to the handler, and its results to `answers`. Raises DeviceError for a fault of the
        GPU."""
        archive = self._archive
        streams = archive.is_decoupled or archive.is_async
        batch: list[tuple[Call, Reply, int]] = []
        for request in requests:
            sender = answers.sender(request) if self._has_senders else None
            key, call, num_parts = self._unfinished.pop(slot_of(request.record), (0, None, 0))
            if call is not None and key == request.key:
                batch.append((call, Reply(request, answers, 1, sender, streams=True, num_parts=num_parts), 0))
                continue
            try:
                id_header = archive.sequence_headers.id if archive.is_sequential else ""
                rows = calls.calls_of(request, decodes=archive.decodes_inputs, id_header=id_header)
            except ShoalError as error:
                Reply(request, answers, 1, sender).fail(error)
                continue
            reply = Reply(request, answers, len(rows), sender, streams=streams)
            batch += [(call, reply, row) for row, call in enumerate(rows)]
        if not batch:
            return
        if self._ranks is not None:
            self._ranks.execute([(bytes(each.tensors[INPUT]), calls.parameter_of(each), each.id) for each in requests])
        answers.input_end_ns = time.monotonic_ns()
        if self._archive.is_async:
            for item in batch:
                self._event_loop.begin(self._handle_async([item]))
        else:
            for group in _groups(batch):
                self._handle(group)
            self._context.send_intermediate = None  # this function would keep the requests' memory mapped
        answers.output_start_ns = time.monotonic_ns()

    def execute_rank(self, batch: "Sequence[RankRequest]") -> None:
        """Pass a batch that the first rank executes, too, to this rank's handler. Results are dropped, errors only
        logged."""
        rows: list[Any] = []
        for tensor, parameter, request_id in batch:
            try:
                found = calls.calls_of_rank(tensor, parameter, request_id, decodes=self._archive.decodes_inputs)
            except ShoalError:
                continue  # the first rank answers the request with this error
            rows += [(call, None, row) for row, call in enumerate(found)]
        for group in _groups(rows) if rows else ():
            self._fill(self._context, group)
            self._context.send_intermediate = lambda *_part: None
            try:
                with forks.end_here():
                    self._entry.handle([call.data for call, _, _ in group], self._context)
            except BaseException as error:  # the first rank answers for all
                if not is_answer(error):
                    raise
                _log.error("the handler of model '%s' failed: %s", self._archive.name, describe(error, __file__))

    def unload(self) -> None:
        """Wait for running coroutines, and end the handler's other processes."""
        self._event_loop.stop(UNLOAD_WAIT_S)
        if self._ranks is not None:
            self._ranks.close()

    # -- one call of the handler --

    def _handle(self, batch: "Batch") -> None:
        context = self._context
        self._fill(context, batch)
        start_ns = time.monotonic_ns()
        depth = forks.depth
        try:
            returned = self._entry.handle([call.data for call, _, _ in batch], context)
        except BaseException as error:  # whatever a handler raises is the answer to its requests
            forks.end_if_forked(depth, error)
            if not is_answer(error):
                raise  # sys.exit() ends the worker, as it ends a worker of TorchServe
            self._fail(batch, error)
            return
        if forks.depth != depth:
            forks.end_if_forked(depth)
        self._record(start_ns)
        self._answer(batch, returned)

    async def _handle_async(self, batch: "Batch") -> None:
        context = copy.copy(self._context)  # a context per call; the calls share objects that the handler stores on it
        self._fill(context, batch)
        start_ns = time.monotonic_ns()
        try:
            with forks.end_here():
                returned = self._entry.handle([call.data for call, _, _ in batch], context)
                if inspect.isawaitable(returned):
                    returned = await returned
        except BaseException as error:  # whatever a handler raises is the answer to its requests
            if self._event_loop.is_stopping and not isinstance(original(error), Exception):  # it was cancelled
                for _, reply, _ in batch:
                    reply.fail(UnavailableError(f"model '{self._archive.name}' is unloaded"))
            else:
                self._fail(batch, error, may_raise=False)
            if not isinstance(error, Exception):
                raise
            return
        self._record(start_ns)
        self._answer(batch, returned)

    def _fill(self, context: Context, batch: "Batch") -> None:
        """Store the requests of a batch in a context."""
        context.request_ids = {index: call.request_id for index, (call, _, _) in enumerate(batch)}
        context.request_processor = [call.processor for call, _, _ in batch]
        if context.metrics is not None:
            context.metrics.request_ids = context.request_ids
        context.send_intermediate = lambda ret, message, code: self._send_parts(batch, ret, message, code)

    def _send_parts(self, batch: "Batch", ret: Sequence[Any], message: str, code: int) -> None:
        """Send one part of each response of the batch. Raises ValueError if `ret` has another number of parts,
        WrongReturnError for a part that cannot be turned into bytes, CancelledError if no client of the batch waits any
        more."""
        if len(ret) != len(batch):
            raise ValueError(f"a part for each of {len(batch)} requests is needed, got {len(ret)}")
        del message
        for (call, reply, row), element in zip(batch, ret, strict=True):
            _add_part(call, reply, row, results.body_of(element), code)
        if all(reply.is_cancelled for _, reply, _ in batch):
            raise CancelledError("the clients of all requests of this batch are gone")

    def _answer(self, batch: "Batch", returned: object) -> None:
        try:
            elements = results.checked(returned, len(batch))
            bodies = [
                element if isinstance(element, BaseException) else results.body_of(element) for element in elements
            ]
        except WrongReturnError as error:
            self._fail(batch, error)
            return
        goes_on = [False] * len(batch)
        if self._archive.is_continuous and self._context.stopping_criteria is not None:
            try:
                goes_on = [
                    isinstance(body, bytes) and not criterion(element)
                    for criterion, element, body in zip(self._context.stopping_criteria, elements, bodies, strict=True)
                ]
            except BaseException as error:  # whatever the handler's own functions raise
                if not is_answer(error):
                    raise
                self._fail(batch, error)
                return
        for (call, reply, row), body, is_unfinished in zip(batch, bodies, goes_on, strict=True):
            if isinstance(body, bytes):
                try:
                    if self._archive.is_sequential and _ends_sequence(call, self._archive.sequence_headers.end):
                        reply.end_sequence()
                    if is_unfinished:
                        _add_part(call, reply, row, body)
                        # At its next execution the request's data is an empty dict, as in TorchServe.
                        kept = reply.request.key, call._replace(data={}), reply.num_parts
                        self._unfinished[slot_of(reply.request.record)] = kept
                        reply.execute_again()
                    else:
                        reply.add(row, body, results.parameters_of(call.processor))
                except ShoalError as error:
                    reply.fail(error)
            else:
                self._fail([(call, reply, row)], body)

    def _fail(self, batch: "Batch", error: BaseException, *, may_raise: bool = True) -> None:
        """Answer all requests of a call with the handler's error. Raises DeviceError for a fault of the GPU, unless
        `may_raise` is False."""
        if isinstance(error, CancelledError):
            for _, reply, _ in batch:
                reply.fail(error)
            return
        if isinstance(error, WrongReturnError):
            failure, detail = error.failure, str(error)
            _log.error("model '%s': %s", self._archive.name, detail)
        else:
            failure, detail = results.failure_of(error), describe(error, __file__)
            ids = ", ".join([call.request_id for call, _, _ in batch])
            _log.error("the handler of model '%s' failed for request %s: %s", self._archive.name, ids, detail)
        fault = fault_of(error)
        if fault is not None and may_raise:
            speaks_torchserve = any(call.is_torchserves for call, _, _ in batch)
            raise DeviceError(str(failure.as_error(is_torchserves=speaks_torchserve, detail=detail)), fault) from None
        for call, reply, _ in batch:
            reply.fail(failure.as_error(is_torchserves=call.is_torchserves, detail=detail))

    def _record(self, start_ns: int) -> None:
        """Record the metric PredictionTime, unless it was recorded just before; TorchServe records it for each
        batch."""
        now_ns = time.monotonic_ns()
        if now_ns - self._recorded_ns >= PREDICTION_TIME_EVERY_NS:
            self._recorded_ns = now_ns
            took_ms = round((now_ns - start_ns) / 1e6, 2)
            self._metrics.add(Sample("PredictionTime", "Milliseconds", MetricTypes.GAUGE, self._dimensions, took_ms))


#: Rows of requests, each as the handler's call, the response to its request, and its number in the request.
Batch = Sequence[tuple[Call, Reply, int]]


def _add_part(call: Call, reply: Reply, row: int, body: bytes, code: int = 200) -> None:
    """Send one part of a response; the first part has the response's status and headers."""
    processor = call.processor
    if not reply.num_parts:
        processor.add_response_property(_STREAMED, "true")
        if code != 200 and processor.get_response_status_code() == 200:
            processor.report_status(code, "")
    reply.add_part(row, body, results.parameters_of(processor))


def _ends_sequence(call: Call, header: str) -> bool:
    """Whether the handler has set the response header `header`, and not to false: the request ends its sequence."""
    said = call.processor.get_response_header(header)
    return said is not None and str(said).lower() != "false"


def _groups(batch: Batch) -> list[Batch]:
    """The parts of a batch for which the handler is called one after another: each request for a description alone, and
    requests for explanations apart from those for predictions."""
    first = batch[0][0].kind
    if not first.is_description and all(call.kind == first for call, _, _ in batch):
        return [batch]
    parts: dict[object, list[tuple[Call, Reply, int]]] = {}
    for position, item in enumerate(batch):
        kind = item[0].kind
        parts.setdefault(position if kind.is_description else kind, []).append(item)
    return list(parts.values())


def _check_tensors(model: BackendModel) -> None:
    signature = Signature.from_config(model.config)
    for what, specs, name in (("input", signature.inputs, INPUT), ("output", signature.outputs, OUTPUT)):
        if list(specs) != [name] or specs[name].datatype is not BYTES:
            raise InvalidArgumentError(
                f"model '{model.name}' must have the one {what} '{name}' of TYPE_STRING with dims [ 1 ], as every "
                f"model of the backend 'torchserve', it has {', '.join(map(repr, specs)) or 'none'}"
            )

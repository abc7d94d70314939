"""The loop of a worker: take a batch, run it, publish its answers; in between, receive the supervisor's messages.

Errors of a backend become answers here: no error of a request or a model ends this loop. It ends when the supervisor
sends StopWorker or has gone, or when the GPU is lost to this process (faults.py).
"""

import functools
import gc
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from shoal import log
from shoal.control import Channel
from shoal.errors import InternalError, ShoalError
from shoal.fault import IS_ARMED, reached
from shoal.ledger import ledger_message
from shoal.messages import shared
from shoal.messages.from_worker import ReadyAnswered
from shoal.messages.message import Handlers, Kinds, Message, MessageError, close_descriptors, on, table
from shoal.messages.to_worker import CheckReady, CudaRegionGone, PinInstance, ReportMetrics, StartInstance, StopWorker
from shoal.model_config.gpu_tensors import NO_GPU
from shoal.model_config.signature import Signature
from shoal.shm.doorbell import RING_AFTER_NS
from shoal.shm.layout import DONE, SPAN_MASK, SPAN_SHIFT, B, Record
from shoal.shm.segment import SegmentView
from shoal.shm.spinning import SpinningPoller
from shoal.workers.answers import Answers, WrittenAnswers
from shoal.workers.backends.backend import Backend
from shoal.workers.failure_log import failure_fields
from shoal.workers.faults import SMALLER_FOR_NS, DeviceLostError, Fault, fault_of
from shoal.workers.gpu_answers import GpuAnswers
from shoal.workers.memory import Memory
from shoal.workers.metrics_reporter import MetricsReporter
from shoal.workers.plans import OutputLayouts
from shoal.workers.requests import Request, RequestReader
from shoal.workers.response_sender import OpenBatches
from shoal.workers.sentences import text_of
from shoal.workers.sequences import SequenceTensors, gap_like

if TYPE_CHECKING:
    from shoal.workers.batch_drift import BatchDriftAuditor


class ReadyCheck:
    """A model's own check for readiness, run between two batches when the supervisor asks for it."""

    def __init__(self, backend: Backend, instance: str) -> None:
        self._backend = backend
        self._instance = instance
        #: Whether the supervisor waits for an answer. Set by the thread that receives the supervisor's question,
        #: cleared by `answer`.
        self.is_asked = False
        # Changed by answer: the error that the last check raised, which is not logged again if the next check raises
        # the same.
        self._complaint = ""

    def answer(self, channel: Channel) -> None:
        """Run the model's check and send the supervisor its result. A model whose check fails is not ready."""
        self.is_asked = False
        complaint = ""
        try:
            is_ready = self._backend.is_ready()
        except Exception as error:  # noqa: BLE001 - whatever a model raises means that it is not ready
            is_ready, complaint = False, str(error)
        if not is_ready:
            # Triton's sentence; Triton, too, logs it only with --log-verbose.
            _log.log(log.verbose(1), "Model '%s' is not ready (user-defined check failed).", self._instance)
        if complaint and complaint != self._complaint:
            _log.error("is_ready of model instance '%s' failed: %s", self._instance, complaint)
        self._complaint = complaint
        channel.send(ReadyAnswered(is_ready))


#: How long a stopping instance waits for response senders whose clients have gone (ours).
_SENDERS_GRACE_S = 1.0

_log = logging.getLogger(__name__)

# Indices of words in a record. As attributes of the class, each would take 0.2k instructions per request.
_KEY: Final = B.KEY
_BATCH: Final = B.BATCH
_BLOCK: Final = B.BLOCK
_HEADER: Final = B.HEADER
_ROWS: Final = B.ROWS

#: The number of descriptors that the loop waits for: the bell's and that of the connection to the supervisor.
_NUM_EVENTS: Final = 2


class Loop:
    """The loop of one instance of one model."""

    def __init__(
        self,
        backend: Backend,
        signature: Signature,
        instance: str,
        memory: Memory,
        sequences: SequenceTensors | None = None,
        open_batches: OpenBatches | None = None,
        *,
        may_run_again: bool = False,
        gpu: int = NO_GPU,
        spin_ns: int = 0,
    ) -> None:
        """`gpu` is the server's number of the GPU of an instance of KIND_GPU; `spin_ns` is how long the loop looks for
        work, at most, before it sleeps; 0: it sleeps at once."""
        self._sequences = sequences
        self._backend = backend
        self._signature = signature
        self._instance = instance
        self._spin_ns = spin_ns
        self._memory = memory
        self._may_run_again = may_run_again  # whether batches may be executed twice (model_config/idempotence.py)
        kept_gpu = gpu if backend.takes_gpu_tensors else NO_GPU
        known, regions = memory.segments, memory.cuda_regions
        self._reader = RequestReader(
            signature, memory.is_cancelled, known.open_lent, regions, kept_gpu, known.is_guests
        )
        self._plans = OutputLayouts(signature, sequences if sequences is not None and sequences.states else None)
        self._open_batches = open_batches or OpenBatches(memory)
        self._answers: type[WrittenAnswers] = WrittenAnswers if memory.gpu_pool is None else GpuAnswers
        self._ready_check = ReadyCheck(backend, instance)
        self._listening = threading.Lock()
        self.handlers = self._make_handlers(memory)
        self._thread_id = threading.get_native_id()
        self._kinds = Kinds(*self.handlers)
        #: The auditor of a model whose batch drift is measured, else None; set before `run`.
        self.auditor: BatchDriftAuditor | None = None
        #: Starts the instance of the given number of the model, in a thread of this process; set before `run`.
        self.start_instance: Callable[[int], None] = lambda _number: None
        # This field is changed by run.
        self._reporter: MetricsReporter | None = None
        # Changed by step: whether each of the last batches had one request. If one had several, the loop does not spin:
        # that would cost 3 to 5 % more CPU per request and gain nothing (docs/performance.md).
        self._has_lone_requests = True
        # Changed by obey and, at the end of run, by _has_open_requests: the supervisor's connection; whether the
        # instance is stopping; the time (monotonic s) until which it then waits for response senders whose clients have
        # gone, 0 before it waits.
        self._channel: Channel
        self._is_stopping = False
        self._abandons_at_s = 0.0
        # Changed by executions: the most rows that are executed together (0 for any number) and until when this limit
        # holds (monotonic ns); the error with which the GPU was lost.
        self._most_rows = self._most_rows_until_ns = 0
        self._loss: ShoalError | None = None

    def _make_handlers(self, memory: Memory) -> Handlers:
        """The handlers of the supervisor's messages."""
        segments, oversize = memory.segments, memory.oversize
        return table(
            on(shared.SegmentAnnounced, self._add_segment),
            on(shared.SegmentGone, self._remove_segment),
            on(shared.SegmentMissing, lambda message: segments.remove(message.owner)),
            *[on(kind, oversize.receive) for kind in shared.PAYLOAD_NEWS],
            on(shared.BatcherReplaced, lambda _message: memory.report_blocks()),
            on(shared.LedgerWanted, lambda _message: self._channel.send(ledger_message(**memory.count()))),
            on(shared.LogChanged, lambda message: log.configure(**message.settings)),
            on(ReportMetrics, self._report_metrics),
            on(CudaRegionGone, lambda message: memory.cuda_regions().forget(message.number)),
            on(CheckReady, self._check_ready),
            on(PinInstance, lambda message: os.sched_setaffinity(self._thread_id, message.cores)),
            on(StartInstance, lambda message: self.start_instance(message.instance)),
            on(StopWorker, self._stop),
        )

    def run(self, channel: Channel, reporter: MetricsReporter | None = None) -> None:
        """Work until the supervisor sends StopWorker, and then until all requests that were taken are answered.
        `reporter` sends the model's metrics, None for a model without.

        Raises EOFError if the supervisor has gone, DeviceLostError if this process has lost its GPU; batches that this
        instance has not begun go to other instances.
        """
        poller = select.epoll()
        bell_fd, channel_fd = self._memory.bell.fd, channel.fileno()
        poller.register(bell_fd, select.EPOLLIN | select.EPOLLET)
        poller.register(channel_fd, select.EPOLLIN)
        spinning = SpinningPoller(poller, self._spin_ns) if self._spin_ns else None
        oversize, slab = self._memory.oversize, self._memory.slab
        oversize.listen = listen = functools.partial(self._listen, channel)
        self._memory.segments.connect(channel, listen)
        if reporter is not None:
            self._reporter = reporter
            reporter.listen_with(listen)
        auditor = self.auditor
        while not self._is_stopping or self._has_open_requests():
            wait_s = oversize.look() if oversize.segments else None
            if auditor is not None:
                wait_s = auditor.next_wait_s(wait_s)
            if self._is_stopping:
                wait_s = self._within_grace_s(wait_s)
            if spinning is not None and wait_s is None and self._has_lone_requests:
                ready = dict(spinning.poll(None, _NUM_EVENTS))
            else:
                ready = dict(poller.poll(wait_s))
            if auditor is not None and not ready:
                self._audit(auditor)
            # Messages come before batches: most segments that batches name are announced by messages, and need not be
            # requested once these are applied.
            if channel_fd in ready:
                self._listen(channel)
            if bell_fd in ready or self._is_stopping:
                self.step()
                if slab.is_scarce:
                    self._memory.prepare()
            if self._ready_check.is_asked:
                self._ready_check.answer(channel)

    def _audit(self, auditor: "BatchDriftAuditor") -> None:
        """Execute a request that an auditor has chosen, unless threads or coroutines of the model are still at work."""
        now_ns = time.monotonic_ns()
        if auditor.is_due(now_ns) and not self._open_batches.num_open:
            self._memory.begin_audit(now_ns)
            auditor.run()
            self._memory.end(time.monotonic_ns())

    def _listen(self, channel: Channel) -> None:
        """Apply the supervisor's next message, unless the thread of a response sender that waits for memory has
        received it."""
        poller = select.poll()
        poller.register(channel.fileno(), select.POLLIN)
        with self._listening:
            if poller.poll(0):
                try:
                    message, seq = channel.receive(self._kinds)
                except MessageError as error:
                    _log.warning("worker %s ignores a message: %s", self._instance, error)
                    channel.acknowledge(error.seq)
                else:
                    self.obey(channel, message, seq)

    def obey(self, channel: Channel, message: Message, seq: int) -> None:
        """Apply a message of the supervisor; StopWorker ends `run` once all requests that were taken are answered."""
        self._channel = channel
        self.handlers[type(message)](message)
        channel.acknowledge(seq)

    def _add_segment(self, message: shared.SegmentAnnounced) -> None:
        segments = self._memory.segments
        if segments.has(message.owner):
            close_descriptors(message)  # this segment has come already, since the worker requested it
        elif message.guest:
            segments.add_guests(message.owner, message.guest, message.segment)
        else:
            segments.add(message.owner, SegmentView.attach(message.segment))

    def _remove_segment(self, message: shared.SegmentGone) -> None:
        self._memory.segments.remove(message.owner)
        if self._memory.cuda is not None:
            self._memory.cuda.forget_pool(message.owner)

    def _report_metrics(self, _message: ReportMetrics) -> None:
        if self._reporter is not None:
            self._reporter.flush()

    def _check_ready(self, _message: CheckReady) -> None:
        self._ready_check.is_asked = True
        self._memory.bell.ring()  # wakes the loop: a response sender's thread may have received this message

    def _stop(self, _message: StopWorker) -> None:
        self._is_stopping = self._open_batches.must_wake = True
        self._memory.bell.ring()  # wakes the loop: a response sender's thread may have received this message

    def _has_open_requests(self) -> bool:
        """Whether a stopping instance still waits for response senders. It waits for those whose clients wait, and for
        _SENDERS_GRACE_S for all others, so that models can end what they do for clients that have gone."""
        if not self._open_batches.num_open:
            return False
        if not self._abandons_at_s:
            self._abandons_at_s = time.monotonic() + _SENDERS_GRACE_S
        return time.monotonic() < self._abandons_at_s or self._memory.is_awaited()

    def _within_grace_s(self, wait_s: float | None) -> float | None:
        """`wait_s` (None: without end), shortened to what is left of the time for senders whose clients have gone;
        unchanged once that time is over."""
        left_s = self._abandons_at_s - time.monotonic()
        if left_s <= 0:
            return wait_s
        return left_s if wait_s is None else min(wait_s, left_s)

    def step(self) -> int:
        """Run every batch that has come. Returns the number of executions. Raises DeviceLostError if this process has
        lost its GPU."""
        memory = self._memory
        executed = num_sent = 0
        rung_ns = time.monotonic_ns()
        self._has_lone_requests = True
        while (records := memory.take()) is not None:
            if len(records) > 1:
                self._has_lone_requests = False
            while records:
                num = self._num_together(records)
                together = records if num == len(records) else records[:num]
                end_ns = self._execute(together)
                if not end_ns:
                    gc.collect()  # here, since the error's traceback keeps the model's memory until `_execute` ends
                    continue
                del records[: len(together)]
                executed += 1
                if end_ns - rung_ns > RING_AFTER_NS:
                    rung_ns, num_sent = end_ns, executed
                    memory.ring()
            if self._loss is not None:
                memory.ring()
                raise DeviceLostError
        if num_sent < executed:  # the batcher has not been rung since the last execution
            memory.ring()
        return executed

    def _num_together(self, records: Sequence[Record]) -> int:
        """The number of requests of a batch, from its first, that may be executed together."""
        num = len(records)
        if num == 1 or not self._signature.max_batch_size:  # without a batch dimension each request runs alone
            return 1
        if not self._most_rows:
            return num
        if time.monotonic_ns() >= self._most_rows_until_ns:
            self._most_rows = 0
            return num
        rows = 0
        for position in range(num):
            rows += records[position][_ROWS]
            if rows > self._most_rows:
                return max(position, 1)
        return num

    def _execute(self, records: Sequence[Record]) -> int:
        """Execute these requests together and publish their answers. Returns the time of the end (monotonic ns), or 0
        if they have to be executed again in smaller parts."""
        start_ns = time.monotonic_ns()
        memory = self._memory
        memory.begin(records[0][_BATCH], start_ns)
        if self._sequences is not None:
            records = self._sequences.with_gaps(records)
        answers = self._answers(len(records), self._plans, self._instance, memory, self._open_batches)
        requests: Sequence[Request] = ()
        try:
            if self._loss is not None:
                raise self._loss  # a part of this batch, executed before, has lost the GPU
            requests = self._open(records, answers)
            if self._sequences is not None:
                for correlation_id in self._sequences.ended():
                    self._backend.end_sequence(correlation_id)
            if requests:
                self._backend.execute(requests, answers)
                if self.auditor is not None:
                    self.auditor.note(requests, answers)
            ref = answers.write()
        except Exception as error:  # noqa: BLE001 - whatever a model raises is the answer to its requests
            fault = fault_of(error)
            if fault is Fault.OUT_OF_MEMORY and self._shrink(records) and not answers.senders:
                answers.give_back()
                return 0
            ref = self._fail(answers, error, requests, is_lost=fault is Fault.DEVICE_LOST)
        end_ns = time.monotonic_ns()
        input_end_ns, output_start_ns = answers.input_end_ns or start_ns, answers.output_start_ns or end_ns
        times = (start_ns, input_end_ns, output_start_ns, end_ns)
        statuses, spans, senders = answers.statuses, answers.spans, answers.senders
        push = memory.push
        for position in range(len(records)):
            if senders and position in senders:
                continue
            record, status = records[position], statuses.get(position, 0)
            key = record[_KEY]
            if key:  # without a key, the record is the row of an empty slot
                # Tuples are joined by +, not unpacked: that takes half the instructions.
                push((DONE, key, record[_BATCH], status, ref, spans[position]) + times)  # noqa: RUF005
        if senders:
            answers.executed(times)
        memory.publish()
        memory.end(end_ns)
        return end_ns

    def _shrink(self, records: Sequence[Record]) -> bool:
        """For SMALLER_FOR_NS from now on, execute at most half as many rows at once as these requests have. Returns
        whether these requests may be executed again, in parts."""
        rows = sum([record[_ROWS] for record in records])
        if len(records) == 1 or rows < 2:
            return False
        self._most_rows, self._most_rows_until_ns = (rows + 1) // 2, time.monotonic_ns() + SMALLER_FOR_NS
        _log.warning(
            "instance '%s': the GPU's memory is too small for a batch of %d rows; for %d s no batch of more than %d is "
            "executed as one", self._instance, rows, SMALLER_FOR_NS // 10**9, self._most_rows,
        )  # fmt: skip
        return self._may_run_again

    def _fail(self, answers: WrittenAnswers, error: Exception, requests: Sequence[Request], *, is_lost: bool) -> int:
        """Answer every request that has no answer yet with an error, through its response sender if it has one. Returns
        the block of the error's sentence.

        This is not done in the frame that caught the error: that frame is part of the traceback, and a cycle would keep
        the requests' memory mapped.
        """
        failure = as_shoal_error(error, self._signature.name, self._instance, requests)
        if is_lost and self._loss is None:
            self._loss = failure
            _log.error("instance '%s': its GPU is lost to this process, which ends and is replaced", self._instance)
        answers.fail_all(failure)
        ref = answers.write_errors()
        for sender in tuple(answers.senders.values()):
            sender.fail(failure)
        return ref

    def _open(self, records: Sequence[Record], answers: Answers) -> list[Request]:
        """The requests of these records that can be read; `answers` notes an error for each other request."""
        requests = []
        rows, most = 0, self._signature.max_batch_size
        segments, open_request = self._memory.segments, self._reader.open
        for position in range(len(records)):
            record = records[position]
            block = segments.open(record[_BLOCK])
            try:
                if block is None:
                    raise InternalError(
                        f"a request to model '{self._signature.name}' is gone: its block of shared memory was freed"
                    )
                offset, nbytes = record[_HEADER] >> SPAN_SHIFT, record[_HEADER] & SPAN_MASK
                request = open_request(position, block, block[offset : offset + nbytes].tobytes(), record)
                if most and record[_ROWS] != (request.parsed.rows or 1):
                    raise InternalError(f"a request of {record[_ROWS]} rows has tensors of {request.parsed.rows}")
                if self._sequences is not None:
                    self._sequences.complete(request)
                requests.append(request)
                rows += request.parsed.rows
            except ShoalError as error:
                answers.fail(position, error)
        if rows > most > 0:
            raise InternalError(f"batch size {rows} for '{self._instance}', max allowed is {most}")
        sequences = self._sequences
        if sequences is not None and sequences.fills_rows and 0 < len(requests) < len(records):
            by_row = {request.position: request for request in requests}
            requests = [by_row.get(row) or self._gap(requests[0], answers) for row in range(len(records))]
        if IS_ARMED and requests:
            reached("opened", requests)
        return requests

    def _gap(self, other: Request, answers: Answers) -> Request:
        """A stand-in, in a slot's row, for a request that cannot be read and so fails: without it, the requests of the
        slots behind would be in the wrong rows. It has the tensors of `other`."""
        assert self._sequences is not None, "its batches have such rows"
        position, record = answers.add_position(), gap_like(other.record)
        gap = Request(position, other.parsed, other.block, other.tensors, record, lambda _key: False)
        self._sequences.complete(gap)
        return gap


def as_shoal_error(error: Exception, model: str, instance: str, requests: Sequence[Request]) -> ShoalError:
    """The error for clients for an exception that a backend has raised while it executed these requests. An exception
    that is no ShoalError is also logged."""
    if isinstance(error, ShoalError):
        return error
    fields = failure_fields(requests)
    _log.error("model '%s', instance '%s' failed", model, instance, exc_info=error, extra=fields)
    return InternalError(f"model '{model}', instance '{instance}' failed: {type(error).__name__}: {text_of(error)}")

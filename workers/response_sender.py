"""The sender of the responses to one request: any number of responses, from any thread, then the end.

    open ── send, fail (not final) ──→ open
    open ── send, fail (final), finish, reschedule ──→ closed

Runs in a worker. The batch of a request with a sender counts as executed when `execute` has returned; a READY record
reports that to the batcher. A model that sends faster than its client reads has to wait in `send`, so that no request
takes more than WINDOW blocks.
"""

import functools
import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from shoal.errors import CancelledError, InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.request import Parameters
from shoal.shm.layout import NO_BLOCK
from shoal.shm.records import ready_record, reschedule_record, sender_record, sequence_end_record
from shoal.workers.memory import Memory
from shoal.workers.requests import Request
from shoal.workers.tensors import Output

#: The most responses to one request whose blocks its client has not released. It is usual that a client lags by a few
#: dozen tokens, and 32 of the smallest blocks are 128 KiB (ours).
WINDOW = 32
#: The number of responses that a client must read within `block_wait_s` while its request keeps the instance from other
#: requests. With 10 s that is a response every 1.25 s, and other requests wait no longer than 10 s for a client that
#: stops reading (ours).
READ_IN_TIME = 8
#: The most batches whose requests are answered after `execute` has returned; an instance with more gets no further
#: batch. It is the number of streams of a model that one front end has by default (ours).
MAX_OPEN_BATCHES = 1024

#: Requests without a client that exceed the execution limit are looked for at intervals: an eighth of the limit, but
#: within these bounds in ns (ours).
_LOOKS_PER_LIMIT, _SHORTEST_PAUSE_NS, _LONGEST_PAUSE_NS = 8, 100_000_000, 5_000_000_000
#: A look more than this late (ns) was delayed by a standstill of the machine; that time counts for no
#: request (as in supervisor/processes/hangs.py).
_GAP_NS = 5_000_000_000

_log = logging.getLogger(__name__)

_CLOSED = "Unable to send response. Response sender has been closed."
_OVER_LIMIT = (
    "The model has kept the response sender of a request without a response for longer than the execution limit of {} "
    "ms. If the model needs it, raise the parameter 'execution_timeout_ms', or --model-execution-timeout-secs."
)


class ResponseSender:  # no ABC: it is compiled (tests/test_packaging.py)
    """The sender of the responses to one request. Any thread may use it; responses are sent in the order in which
    `send` is called."""

    @abstractmethod
    def send(self, outputs: Sequence[Output], parameters: Parameters | None = None, *, final: bool) -> None:
        """Send one response. May wait for the client to read earlier ones; the response is dropped if the client is
        gone.

        Raises UnavailableError if the client reads too slowly or there is no memory, and InvalidArgumentError if the
        client's memory on a GPU has gone, both of which fail the request; InternalError if the sender is closed, and
        for outputs that cannot be written.
        """

    @abstractmethod
    def fail(self, error: ShoalError, *, final: bool = True) -> None:
        """Send an error in place of a response. No effect on a sender that is closed. One that is not final is sent, or
        dropped, as a response is: this may wait, and raise UnavailableError, as `send` does."""

    @abstractmethod
    def fail_later(self, error: ShoalError) -> None:
        """Have another thread send an error soon. For finalizers, which may run while their thread holds any lock."""

    @abstractmethod
    def finish(self) -> None:
        """End the request without a further response. No effect on a sender that is closed."""

    @abstractmethod
    def reschedule(self) -> None:
        """Return the request to its queue, to be executed again; a cancelled request fails instead. Raises
        InternalError if the sender is closed."""

    @abstractmethod
    def end_sequence(self) -> None:
        """Report that the request is the last of its sequence: the sequence ends once the request is answered. No
        effect on a sender that is closed."""

    @property
    @abstractmethod
    def is_cancelled(self) -> bool:
        """Whether the client has cancelled or gone; False once the sender is closed."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """True until the last response, or the end without a response, has been sent."""


class WarmupResponseSender(ResponseSender):
    """The sender of a request without a client, as in a warm-up: responses are dropped, errors are passed on."""

    def __init__(self, failed: Callable[[ShoalError], None]) -> None:
        self._failed = failed
        # Changed when the request ends. A finalizer may end it, and SimpleQueue is the only queue whose `put` may be
        # re-entered.
        self._is_open = True
        self._end: SimpleQueue[None] = SimpleQueue()

    def send(self, outputs: Sequence[Output], parameters: Parameters | None = None, *, final: bool) -> None:
        if final:
            self.finish()

    def fail(self, error: ShoalError, *, final: bool = True) -> None:
        """Pass the error to `failed` at once, even if the request has ended."""
        self._failed(error)
        if final:
            self.finish()

    def fail_later(self, error: ShoalError) -> None:
        """Pass the error to `failed` at once, in the calling thread."""
        self.fail(error)

    def finish(self) -> None:
        self._is_open = False
        self._end.put(None)

    def reschedule(self) -> None:
        self.finish()

    def end_sequence(self) -> None:
        pass

    def wait(self) -> None:
        """Wait until the request has ended. This is to be called once."""
        self._end.get()

    @property
    def is_cancelled(self) -> bool:
        return False

    @property
    def is_open(self) -> bool:
        return self._is_open


class OpenBatches:
    """The batches of one instance whose requests are answered after `execute` has returned. `start` and the fields
    that OpenBatch changes are used under the memory's lock; other methods by any thread."""

    def __init__(self, memory: Memory, limit_ms: int = 0) -> None:
        """`limit_ms` is the execution limit, 0 for none: a request whose client has gone fails if its sender sends
        nothing for longer than the limit."""
        self.memory = memory
        self._limit_ns = limit_ns = limit_ms * 1_000_000
        self._pause_ns = min(max(limit_ns // _LOOKS_PER_LIMIT, _SHORTEST_PAUSE_NS), _LONGEST_PAUSE_NS)
        # Changed by OpenBatch: the number of open batches; READY records that wait until fewer are open.
        self.num_open = 0
        self.unready: deque[tuple[int, ...]] = deque()
        #: Whether to wake the loop when no batch is open any more: then the loop, which is stopping, can end.
        self.must_wake = False
        #: Work that may wait, given by threads that must not; the thread `senders` does it.
        self._later: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._has_thread = False
        # Changed by look: the times of the last look, and of the first look after the last standstill.
        self._looked_ns = self._resumed_ns = 0

    def start(self) -> None:
        """Start the thread that does the work given to `later`, unless it is running; called for every new sender."""
        if not self._has_thread:
            self._has_thread = True
            threading.Thread(target=self._run, name="senders", daemon=True).start()

    def later(self, work: Callable[[], None]) -> None:
        """Have another thread do this work. Never waits. A finalizer may call this while the same thread is in this
        call."""
        self._later.put(work)

    def send_record(self, words: tuple[int, ...], then: Callable[[], None] | None = None) -> None:
        """Publish a record to the batcher, then call `then`.

        If there is no room in time, the record is published later, however long that takes: no process would notice
        that a record was lost.
        """
        if not self.memory.send_record(words):
            self.later(lambda: self.send_record(words, then))
        elif then is not None:
            then()

    def _run(self) -> None:
        pause_s = self._pause_ns / 1e9 if self._limit_ns else None
        while True:
            try:
                with suppress(Empty):
                    self._later.get(timeout=pause_s)()  # without a variable, which would keep the work's objects
                if self._limit_ns:
                    self._look(time.monotonic_ns())
            except Exception:  # noqa: BLE001 - outermost: if this thread ended, later work would never be done
                _log.exception("a request could not be ended")

    def _look(self, now_ns: int) -> None:
        """Fail requests without a client that exceed the execution limit, if it is time for a look."""
        since_ns = now_ns - self._looked_ns
        if since_ns < self._pause_ns:
            return
        self._looked_ns = now_ns
        if since_ns > self._pause_ns + _GAP_NS:
            self._resumed_ns = now_ns
        if now_ns - self._resumed_ns > self._limit_ns:
            for end_if_over in list(self.memory.open_requests.values()):
                end_if_over(now_ns, self._limit_ns)


class OpenBatch:
    """One batch, some of whose requests are answered by senders. A batch has no reference to its requests or senders: a
    cycle would keep the requests' memory mapped until the next garbage collection."""

    def __init__(self, batches: OpenBatches, number: int) -> None:
        self.start_ns = batches.memory.begun_ns or time.monotonic_ns()
        self.input_end_ns = 0
        self.number = number
        self.batches = batches
        # This field is changed by opened and ended.
        self._num_open = 0
        #: The time (monotonic ns) at which `execute` returned; 0 before. Changed by executed.
        self.executed_ns = 0

    def opened(self) -> None:
        """Count a sender that answers one of the batch's requests."""
        with self.batches.memory.lock:
            self.batches.start()
            self._num_open += 1
            self.batches.num_open += self._num_open == 1

    def executed(self, times: tuple[int, ...]) -> None:
        """Report that `execute` has returned, so that the instance gets the next batch; if too many batches are open,
        the report waits until fewer are. No report if no sender is open: the last records said it."""
        batches = self.batches
        self.executed_ns = times[-1]
        with batches.memory.lock:
            if not self._num_open:
                return
            ready = ready_record(self.number, times)
            if batches.num_open <= MAX_OPEN_BATCHES:
                batches.memory.push(ready)
            else:
                batches.unready.append(ready)

    def end(self, last: tuple[int, ...]) -> None:
        """Publish `last`, the last record of one of the batch's requests."""
        self.batches.send_record(last, self._ended)

    def _ended(self) -> None:
        batches = self.batches
        ready = None
        with batches.memory.lock:
            self._num_open -= 1
            if self._num_open:
                return
            batches.num_open -= 1
            if batches.unready:
                ready = batches.unready.popleft()
            if batches.must_wake and not batches.num_open:
                batches.memory.bell.ring()
        if ready is not None:
            batches.send_record(ready)


class OneAnswer(Protocol):
    """The methods of `WrittenAnswers` that a sender uses."""

    @property
    def spans(self) -> Sequence[int]: ...

    def add_outputs(self, request: Request, outputs: Sequence[Output], parameters: Parameters | None = None) -> None:
        """Add the outputs of the request; this and the other methods are described in `Answers` and
        `WrittenAnswers`."""
        ...

    def fail_all(self, error: ShoalError) -> None: ...

    def write(self) -> int: ...

    def write_errors(self) -> int: ...


class WrittenResponseSender(ResponseSender):
    """The sender of a client's request: responses are written into blocks of the worker's slab. Raises as
    `ResponseSender` describes."""

    def __init__(
        self, request: Request, batch: OpenBatch, memory: Memory, make_answers: Callable[[], OneAnswer]
    ) -> None:
        """`make_answers` makes an object that writes one response to the request into a block of its own."""
        self._request = request
        self._batch = batch
        self._memory = memory
        self._make_answers = make_answers
        self._turn = threading.RLock()
        memory.open_requests[request.key] = self.end_if_over
        # Changed by the methods: blocks of responses that have not been freed; how long (s) the model may still wait
        # for the client; when the last response was sent; whether the request's end has yet to be sent.
        self._window: set[int] = set()
        self._patience_s = memory.block_wait_s
        self._moved_ns = 0
        self._is_open = True

    def send(self, outputs: Sequence[Output], parameters: Parameters | None = None, *, final: bool) -> None:
        with self._turn:
            if not self._is_open:
                raise InternalError(_CLOSED)
            if self.is_cancelled:
                if final:
                    self.finish()
                return
            try:
                self._wait_for_window()
                answers = self._make_answers()
                answers.add_outputs(self._request, outputs, parameters)
                ref = answers.write()
                self._send_response(0, ref, answers.spans[0], final=final)
            except (UnavailableError, InvalidArgumentError) as error:
                self.fail(error)
                raise

    def fail(self, error: ShoalError, *, final: bool = True) -> None:
        with self._turn:
            if not self._is_open or (not final and self.is_cancelled):
                return
            try:
                if not final:
                    self._wait_for_window()
                answers = self._make_answers()
                answers.fail_all(error)
                ref = answers.write_errors()
                self._send_response(error.wire, ref, answers.spans[0], final=final)
            except UnavailableError as refusal:  # of an error that is not final: the end can always be sent
                self.fail(refusal)
                raise

    def fail_later(self, error: ShoalError) -> None:
        self._batch.batches.later(functools.partial(self.fail, error))

    def finish(self) -> None:
        with self._turn:
            if self._is_open:
                self._send_response(0, NO_BLOCK, 0, final=True)

    def reschedule(self) -> None:
        with self._turn:
            if not self._is_open:
                raise InternalError(_CLOSED)
            if self.is_cancelled:
                self.fail(CancelledError("Request was cancelled"))
                return
            self._close(reschedule_record(self._request.key, self._request.batch))

    def end_sequence(self) -> None:
        with self._turn:
            if self._is_open:
                self._memory.send_record(sequence_end_record(self._request.key))

    @property
    def is_cancelled(self) -> bool:
        return self._is_open and self._memory.is_cancelled(self._request.key)

    @property
    def is_open(self) -> bool:
        return self._is_open

    def end_if_over(self, now_ns: int, limit_ns: int) -> None:
        """Fail the request if its client has gone and its sender has sent nothing for longer than the limit. A request
        that is being executed, or whose sender is in use, does not fail."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            executed_ns = self._batch.executed_ns
            is_over = executed_ns and now_ns - max(executed_ns, self._moved_ns) > limit_ns
            if is_over and self._memory.is_cancelled(self._request.key):
                self.fail(InternalError(_OVER_LIMIT.format(limit_ns // 1_000_000)))
        finally:
            self._turn.release()

    def _wait_for_window(self) -> None:
        window, memory, number = self._window, self._memory, self._batch.number
        if len(window) < WINDOW:
            return
        holds_others_up, began_s = memory.is_executing(number), time.monotonic()
        wait_s = self._patience_s if holds_others_up else memory.block_wait_s
        has_room = memory.wait_for(lambda: True if len(window) < WINDOW or self.is_cancelled else None, number, wait_s)
        if holds_others_up:
            left_s = wait_s - (time.monotonic() - began_s) + memory.block_wait_s / READ_IN_TIME
            self._patience_s = min(left_s, memory.block_wait_s)
        if not has_room:
            raise UnavailableError(
                f"the client has not read {WINDOW} responses of the request for too long; it gets no more of them"
            )

    def _send_response(self, status: int, ref: int, span: int, *, final: bool) -> None:
        batch, now_ns = self._batch, time.monotonic_ns()
        self._memory.moved(batch.number, now_ns)
        self._moved_ns = now_ns
        input_end_ns = batch.input_end_ns or batch.start_ns
        times = (batch.start_ns, input_end_ns, now_ns, now_ns)
        record = sender_record(self._request.key, status, ref, span, times, is_last=final)
        if final:
            self._close(record)
            return
        if ref:
            with self._memory.lock:
                self._memory.windows[ref] = self._window
                self._window.add(ref)
        if not self._memory.send_record(record):
            with self._memory.lock:
                self._memory.take_back(ref)  # no record names the block, so the batcher would not free it
            raise UnavailableError("the batcher has not read the worker's ring for too long")

    def _close(self, last: tuple[int, ...]) -> None:
        self._is_open = False
        self._memory.open_requests.pop(self._request.key, None)
        self._batch.end(last)

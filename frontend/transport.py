"""The road's way into shared memory: many request threads, one port, one thread that listens.

A request thread takes a block, fills it, submits it and sleeps until its reply is put into its own queue, by the thread
that listens (shoal/client/shared_port.py).
"""

import queue
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, Protocol

from shoal import errors
from shoal.client.refusal import refusal
from shoal.client.shared_port import SharedPort
from shoal.errors import ShoalError
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.response import no_answer
from shoal.frontend.tracing import TracedRequest
from shoal.frontend.v2.infer import PreparedRequest, block_nbytes, write_block
from shoal.request import InferResponse, unpack_response
from shoal.shm.port import Reply


class Answer(NamedTuple):
    """A model's response and the worker's block its tensors lie in; `release` once, after the last byte was sent."""

    response: InferResponse
    block: memoryview
    release: Callable[[], None]


class Part(NamedTuple):
    """One of a model's answers to a request: a response, an error, or, where it is final, neither."""

    answer: Answer | None
    error: ShoalError | None
    is_final: bool


class Transport(Protocol):
    """What the router needs of shared memory."""

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> Answer:
        """Run a prepared request; blocks until it is answered. Raises ShoalError."""
        ...

    def stream(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> Generator[Part, None, None]:
        """Run a prepared request that may be answered several times; blocks for each. `close` it: that cancels what
        has not had its end. Raises ShoalError where there is no answer, before the first one or later."""
        ...

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor; blocks until it answers. Raises ShoalError."""
        ...


class PortTransport:
    """A Transport over this process's port."""

    def __init__(self, front_end: FrontEnd) -> None:
        self._port = front_end.place.port
        self._request_timeout_s = front_end.place.request_timeout_s
        #: Its thread must be started.
        self.shared = SharedPort(front_end.place, self._take, front_end.apply)
        self._lock = self.shared.lock
        # Changed under the lock: who waits for which reply.
        self._waiting: dict[int, queue.SimpleQueue[Reply]] = {}

    # --- request threads ---

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> Answer:
        """Run a prepared request. Raises ShoalError: no memory, a deadline, or what the batcher or the model said."""
        number, waiter = self._submit(prepared, trace)
        reply = self._wait(number, waiter)
        while not reply.is_final:  # of one that answers once only the last is one
            self._release(reply)
            reply = self._wait(number, waiter)
        if trace is not None:
            trace.replied(reply)
        return self._answer(prepared, reply)

    def stream(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> Generator[Part, None, None]:
        """As the Transport. The deadline of a request is that of each of its answers."""
        number, waiter = self._submit(prepared, trace)
        is_final = False
        try:
            while not is_final:
                reply = self._wait(number, waiter)
                is_final = reply.is_final
                if is_final and trace is not None:
                    trace.replied(reply)
                yield self._part(prepared, reply)
        finally:
            if not is_final:
                self._abandon(number, waiter)

    def _submit(self, prepared: PreparedRequest, trace: TracedRequest | None) -> tuple[int, "queue.SimpleQueue[Reply]"]:
        """Hand a request to the batcher. Returns its number and where its replies come in."""
        start_ns = time.monotonic_ns()
        waiter: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        block = self.shared.allocate(block_nbytes(prepared), prepared.entry.model_id)
        try:
            header = write_block(prepared, block.memory)
        except BaseException:
            self.shared.free(block.ref)
            raise
        if trace is not None:
            trace.submitted(block.memory, header)
        with self._lock:
            number = self._port.submit(
                prepared.entry.model_id,
                block,
                header,
                prepared.rows,
                prepared.shape_key,
                start_ns,
                prepared.priority,
                prepared.timeout_us,
            )
            self._waiting[number] = waiter
            if trace is not None:
                self._port.trace(number)
            self._port.flush()
        return number, waiter

    def _wait(self, number: int, waiter: "queue.SimpleQueue[Reply]") -> Reply:
        try:
            return waiter.get(timeout=self._request_timeout_s)
        except queue.Empty:
            return self._give_up(number, waiter)

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """As the shared port."""
        return self.shared.ask(verb, arguments, timeout_s)

    def _give_up(self, number: int, waiter: "queue.SimpleQueue[Reply]") -> Reply:
        """The deadline has passed: take the reply if it came this instant, else leave it to be dropped when it
        comes."""
        with self._lock:
            if not waiter.empty():
                return waiter.get_nowait()
            self._cancel(number)
        raise no_answer(self._request_timeout_s)

    def _abandon(self, number: int, waiter: "queue.SimpleQueue[Reply]") -> None:
        """Nobody takes any more of its replies, neither those that are here nor those that come."""
        with self._lock:
            self._cancel(number)
            while not waiter.empty():
                self._drop(waiter.get_nowait())
            self._port.flush()

    def _cancel(self, number: int) -> None:
        """Under the lock: what comes from now on is dropped."""
        if self._waiting.pop(number, None) is not None:
            self._port.cancel(number)
            self._port.flush()

    def _drop(self, reply: Reply) -> None:
        if reply.block is not None:
            self._port.release(reply.number, reply.part)

    def _part(self, prepared: PreparedRequest, reply: Reply) -> Part:
        if reply.is_final and reply.is_empty:
            return Part(None, None, is_final=True)
        try:
            return Part(self._answer(prepared, reply), None, reply.is_final)
        except ShoalError as error:
            # Without its traceback, which has the reply in it, and so the worker's memory.
            return Part(None, error.with_traceback(None), reply.is_final)

    def _answer(self, prepared: PreparedRequest, reply: Reply) -> Answer:
        if reply.reason or reply.block is None or reply.header is None:
            raise refusal(prepared.entry, prepared.id, reply)
        try:
            if reply.status:
                raise errors.from_wire(reply.status, str(reply.header, "utf-8", "replace"))
            response = unpack_response(reply.header, len(reply.block))
        except ShoalError:
            self._release(reply)
            raise
        # By number: whoever keeps the function for a while after the response must not keep the memory.
        return Answer(response, reply.block, partial(self._release_number, reply.number, reply.part))

    def _release(self, reply: Reply) -> None:
        if reply.block is not None:
            self._release_number(reply.number, reply.part)

    def _release_number(self, number: int, part: int) -> None:
        with self._lock:
            self._port.release(number, part)
            self._port.flush()

    # --- the listening thread ---

    def _take(self, reply: Reply) -> None:
        """Put a reply into its waiter's queue; one that nobody waits for any more is released."""
        waiter = self._waiting.get(reply.number)
        if reply.is_final:
            self._waiting.pop(reply.number, None)
        if waiter is not None:
            waiter.put(reply)
        else:
            self._drop(reply)

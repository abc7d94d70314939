"""The road's way into shared memory: many request threads, one port, one thread that listens.

A request thread takes a block, fills it, submits it and sleeps until its reply is put into its own queue, by the thread
that listens (shoal/star/shared_port.py).
"""

import queue
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from shoal.errors import CancelledError, ShoalError
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.prepared import PreparedRequest, block_nbytes, write_block
from shoal.frontend.response import Response, no_answer
from shoal.frontend.road.hang_ups import Caller, Notify
from shoal.frontend.road.held_answers import HeldAnswers
from shoal.frontend.road.streamed_replies import KeptReply, StreamedReplies
from shoal.frontend.tracing import TracedRequest
from shoal.request import InferResponse
from shoal.shm.layout import NO_DIGEST
from shoal.shm.port import Reply
from shoal.star.refusal import answered
from shoal.star.request_digest import request_digest
from shoal.star.shared_port import SharedPort


class ModelResponse(NamedTuple):
    """A model's response and the worker's block its tensors lie in.

    Either `release` the block once, or let `send` make the response that is sent of one whose chunks are views of it.
    """

    response: InferResponse
    block: memoryview
    release: Callable[[], None]
    send: Callable[[Response], Response]


class StreamedResponse(NamedTuple):
    """One of a model's answers to a request: a response, an error, or, where it is final, neither."""

    answer: ModelResponse | None
    error: ShoalError | None
    is_final: bool


class Replies(Protocol):
    """A queue of replies to one request, or to several, told apart by their numbers."""

    def put(self, item: Reply, /) -> None:
        """Add a reply; called by the listening thread, so it must not wait."""
        ...


class Transport(Protocol):
    """What handlers use of shared memory."""

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> ModelResponse:
        """Run a prepared request; blocks until it is answered. Raises ShoalError."""
        ...

    def stream(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None
    ) -> Generator[StreamedResponse, None, None]:
        """Run a prepared request that may be answered several times; blocks for each. `close` it: that cancels what
        has not had its end. Raises ShoalError where there is no answer, before the first one or later."""
        ...

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor; blocks until it answers. Raises ShoalError."""
        ...


#: The replies to one request. A None cancels it; a caller in their place may have hung up.
Waiter: TypeAlias = queue.SimpleQueue["Reply | Caller | None"]


class PortTransport:
    """A Transport over this process's port."""

    def __init__(self, front_end: FrontEnd) -> None:
        self._port = front_end.place.port
        self.request_timeout_s = front_end.place.request_timeout_s
        #: Its thread must be started.
        self.shared = SharedPort(front_end.place, self._take, front_end.apply)
        self._lock = self.shared.lock
        # Changed under the lock: number → queue of the thread that waits; kept copies of replies for slow clients.
        self._waiting: dict[int, Replies] = {}
        self._kept = KeptMemory()
        self._held = HeldAnswers(self._port, self._lock, self._kept)
        self._port.on_recall = lambda segments, is_urgent: self._held.recall(
            segments, time.monotonic(), is_urgent=is_urgent
        )

    # --- request threads ---

    def infer(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None, waiter: Waiter | None = None
    ) -> ModelResponse:
        """Run a prepared request. Raises ShoalError: no memory, a deadline, or what the batcher or the model said."""
        waiter = queue.SimpleQueue() if waiter is None else waiter
        number = self.submit(prepared, waiter, trace)
        reply = self._wait(number, waiter)
        while not reply.is_final:  # of one that answers once only the last is one
            self.drop(reply)
            reply = self._wait(number, waiter)
        if trace is not None:
            trace.replied(reply)
        return self._answer(prepared, reply)

    def stream(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None, waiter: Waiter | None = None
    ) -> Generator[StreamedResponse, None, None]:
        """Like `Transport.stream`. A request's deadline is that of each of its responses."""
        waiter = self.streamed_replies() if waiter is None else waiter
        number = self.submit(prepared, waiter, trace)
        is_final = False
        try:
            while not is_final:
                reply = self._wait(number, waiter)
                is_final = reply.is_final
                if is_final and trace is not None:
                    trace.replied(reply)
                yield self.part(prepared, reply)
        finally:
            if not is_final:
                self._abandon(number, waiter)

    def streamed_replies(self) -> StreamedReplies:
        """A queue for the replies to one client's streamed requests."""
        return StreamedReplies(self._held)

    def submit(self, prepared: PreparedRequest, replies: Replies, trace: TracedRequest | None = None) -> int:
        """Submit a request. Returns its number; the thread that takes its replies turns each into a `part`."""
        start_ns = time.monotonic_ns()
        block = self.shared.allocate(block_nbytes(prepared), prepared.entry.model_id)
        try:
            header = write_block(prepared, block.memory)
        except BaseException:
            self.shared.free(block.ref)
            raise
        digest = request_digest(block.memory, header) if prepared.entry.is_cached else NO_DIGEST
        if trace is not None:
            trace.submitted(block.memory, header)
        with self._lock:
            number = self._port.submit(prepared, prepared, block, header, start_ns, digest, prepared.deadline_ns)
            self._waiting[number] = replies
            if trace is not None:
                trace.children = self._port.trace(number)
            self._port.flush()
        return number

    def _wait(self, number: int, waiter: Waiter) -> Reply:
        try:
            while isinstance(reply := waiter.get(timeout=self.request_timeout_s), Caller):
                self._doubt(number)
                reply.ask()
        except queue.Empty:
            return self._give_up(number, waiter)
        if reply is None:
            self._abandon(number, waiter)
            raise CancelledError("Request was cancelled")
        return reply

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor, see SharedPort.ask."""
        return self.shared.ask(verb, arguments, timeout_s)

    def _give_up(self, number: int, waiter: Waiter) -> Reply:
        """Cancel a request whose deadline has passed. Returns its reply if that has just come; a later one is
        dropped."""
        reply = _left(waiter)
        if reply is None:
            self._abandon(number, waiter)
            raise no_answer(self.request_timeout_s)
        return reply

    def _abandon(self, number: int, waiter: Waiter) -> None:
        self.cancel(number)
        while (reply := _left(waiter)) is not None:
            self.drop(reply)

    def cancel(self, number: int) -> None:
        """Cancel a request; replies that have come are the caller's to `drop`."""
        with self._lock:
            self._cancel(number)

    def _doubt(self, number: int) -> None:
        """Notify the model at work that the client may be gone."""
        with self._lock:
            self._port.cancel(number, is_sure=False)
            self._port.flush()

    def drop(self, reply: Reply | None) -> None:
        """Release a reply unread."""
        if isinstance(reply, KeptReply):
            with self._lock:
                reply.forget()
        elif reply is not None and reply.block is not None:
            self._release_number(reply.number, reply.part)

    def _cancel(self, number: int) -> None:
        """Cancel a request: later replies are dropped. Call under the lock."""
        if self._waiting.pop(number, None) is not None:
            self._port.cancel(number)
            self._port.flush()

    def part(self, prepared: PreparedRequest, reply: Reply) -> StreamedResponse:
        """A reply to this request as a response or an error."""
        if reply.is_final and reply.is_empty:
            self.drop(reply)
            return StreamedResponse(None, None, is_final=True)
        try:
            return StreamedResponse(self._answer(prepared, reply), None, reply.is_final)
        except ShoalError as error:
            # Without its traceback, which has the reply in it, and so the worker's memory.
            return StreamedResponse(None, error.with_traceback(None), reply.is_final)

    def _answer(self, prepared: PreparedRequest, reply: Reply) -> ModelResponse:
        try:
            _, response, block = answered(prepared.entry, prepared.id, reply, prepared.correlation_id)
        except ShoalError:
            self.drop(reply)
            raise
        if isinstance(reply, KeptReply):
            return ModelResponse(response, block, partial(self.drop, reply), partial(self._send_kept, reply))
        # By number: a reference to the reply would keep its memory for as long as the function lives.
        number, part = reply.number, reply.part
        release = partial(self._release_number, number, part)
        return ModelResponse(response, block, release, lambda made: self._held.send(made, number, part))

    def _send_kept(self, reply: KeptReply, made: Response) -> Response:
        """Like `HeldAnswers.send`, for chunks in our own memory."""
        self.drop(reply)
        return made

    def _release_number(self, number: int, part: int) -> None:
        with self._lock:
            self._port.release(number, part)
            self._port.flush()

    # --- the listening thread ---

    def _take(self, reply: Reply) -> None:
        """Put a reply into its thread's queue; release it if no thread waits."""
        waiter = self._waiting.get(reply.number)
        if reply.is_final:
            self._waiting.pop(reply.number, None)
        if waiter is not None:
            waiter.put(reply)
        elif reply.block is not None:
            self._port.release(reply.number, reply.part)


class WatchedTransport:
    """The road's transport for the requests of one caller; in the context of `watch` its hang-up is told."""

    def __init__(self, transport: PortTransport, watch: Callable[[Notify], AbstractContextManager[None]]) -> None:
        self._transport = transport
        self._watch = watch

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> ModelResponse:
        """Like `Transport.infer`, cancelled when the caller hangs up."""
        waiter: Waiter = queue.SimpleQueue()
        with self._watch(waiter.put):
            return self._transport.infer(prepared, trace, waiter)

    def stream(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None
    ) -> Generator[StreamedResponse, None, None]:
        """Like `Transport.stream`, cancelled when the caller hangs up."""
        waiter = self._transport.streamed_replies()
        with self._watch(waiter.put):
            yield from self._transport.stream(prepared, trace, waiter)

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor, see Transport."""
        return self._transport.ask(verb, arguments, timeout_s)


def _left(waiter: Waiter) -> Reply | None:
    """A reply that has come, if there is one."""
    while not waiter.empty():
        if isinstance(reply := waiter.get_nowait(), Reply):
            return reply
    return None

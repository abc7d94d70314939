"""The road's way into shared memory: many request threads, one port, one thread that listens.

A request thread takes a block, fills it, submits it and sleeps until its reply is put into its own queue. The listening
thread owns the bell and the control connection: it hands out replies and keeps the server state current. The port is
not thread-safe; every use of it here is under one lock, held for microseconds.
"""

import logging
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, Protocol

from shoal import errors
from shoal.client.oversize import OversizeBlocks
from shoal.client.questions import Questions
from shoal.client.refusal import refusal
from shoal.control import Message
from shoal.errors import ShoalError, UnavailableError
from shoal.frontend.front_end import REPLIES_FIRST, FrontEnd
from shoal.frontend.tracing import TracedRequest
from shoal.frontend.v2.infer import PreparedRequest, block_nbytes, write_block
from shoal.options import SLAB_PARTS
from shoal.request import InferResponse, unpack_response
from shoal.shm.port import Reply
from shoal.shm.slab import Block

_log = logging.getLogger("shoal")


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
        self._front_end = front_end
        self._port = front_end.port
        self._bell = front_end.bell
        self._channel = front_end.channel
        self._request_timeout_s = front_end.request_timeout_s
        self._lock = threading.Lock()
        self._channel_lock = threading.Lock()
        self._oversize = OversizeBlocks(self._send, front_end.request_timeout_s)
        self._questions = Questions(self._send)
        self._largest_shared_nbytes = front_end.port.slab.largest_nbytes // SLAB_PARTS
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
        block = self._allocate(block_nbytes(prepared), prepared.entry.model_id)
        try:
            header = write_block(prepared, block.memory)
        except BaseException:
            self._free(block)
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
        """Ask the supervisor (its verbs: shoal/supervisor/supervisor.py). Raises ShoalError: its refusal, or no answer.

        Without `timeout_s` it may take as long as a model may take to load.
        """
        return self._questions.ask(verb, arguments, timeout_s or self._front_end.answer_timeout_s)

    def _allocate(self, nbytes: int, model_id: int) -> Block:
        if nbytes <= self._largest_shared_nbytes:
            with self._lock:
                return self._port.allocate(nbytes)
        if self._port.is_full:
            raise UnavailableError("Exceeds maximum queue size")
        return self._oversize.allocate(nbytes, model_id)

    def _free(self, block: Block) -> None:
        with self._lock:
            if self._port.slab.free(block.ref):
                return
        self._oversize.free(block.ref)

    def _give_up(self, number: int, waiter: "queue.SimpleQueue[Reply]") -> Reply:
        """The deadline has passed: take the reply if it came this instant, else leave it to be dropped when it
        comes."""
        with self._lock:
            if not waiter.empty():
                return waiter.get_nowait()
            self._cancel(number)
        raise UnavailableError(
            f"Request timeout expired: no answer within {self._request_timeout_s:g} s (--request-timeout-secs)"
        )

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

    def start(self) -> None:
        """Begin to listen, in a daemon thread of this process."""
        threading.Thread(target=self._listen, name="shoal-port", daemon=True).start()

    def _listen(self) -> None:
        poller = select.epoll()
        poller.register(self._bell.fileno(), select.EPOLLIN)
        poller.register(self._channel.fileno(), select.EPOLLIN)
        try:
            while True:
                events = dict(poller.poll())
                if self._bell.fileno() in events:
                    self.deliver()
                if self._channel.fileno() in events:
                    self.receive()
        except (EOFError, ConnectionError):
            os._exit(0)  # the supervisor is gone, and with it whoever could answer
        except Exception:  # noqa: BLE001  the thread's rim: without it, requests would wait for nobody
            _log.exception("the road cannot go on without its port")
            os._exit(70)

    def deliver(self) -> None:
        """Put every reply that has come into its waiter's queue; a reply nobody waits for any more is released."""
        self._bell.clear()
        with self._lock:
            for reply in self._port.poll():
                waiter = self._waiting.get(reply.number)
                if reply.is_final:
                    self._waiting.pop(reply.number, None)
                if waiter is not None:
                    waiter.put(reply)
                else:
                    self._drop(reply)
            self._port.flush()
            spent, self._port.spent = self._port.spent, []
        for ref in spent:
            self._oversize.free(ref)

    def receive(self) -> None:
        """Take one message of the supervisor into force and acknowledge it."""
        message, fds = self._channel.receive()
        if message["op"] in ("oversize", "oversize_ready"):
            self._oversize.hear(message, fds)
            return
        if message["op"] == "answer":
            self._questions.hear(message)
            return
        if message["op"] in REPLIES_FIRST:
            self.deliver()
        with self._lock, self._channel_lock:
            self._front_end.apply(message, fds)

    def _send(self, message: Message) -> None:
        with self._channel_lock:
            self._channel.send(message)

"""A caller's end of the star: a worker whose model calls other models. Many threads submit requests, one thread
listens.

The listening thread (shared_port.py) calls back once per response, and ends requests whose deadline has passed or whose
answer is not wanted any more. A response's memory is released when the last array over it is freed, in any thread.
"""

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from shoal import errors
from shoal.errors import ShoalError, UnavailableError
from shoal.messages.from_client import CallerConnected
from shoal.request import InferResponse
from shoal.shared_settings import MIB
from shoal.shm.pieces import whole
from shoal.shm.port import Reply
from shoal.shm.ring import RingFullError
from shoal.shm.slab import Block
from shoal.star.outgoing import OutgoingRequest
from shoal.star.place import Place, take_place
from shoal.star.refusal import refusal
from shoal.star.shared_port import SharedPort

_log = logging.getLogger(__name__)

#: Seconds between two checks of deadlines and cancellations: while requests are open, and while none is (ours).
TICK_S, IDLE_S = 0.05, 1.0
#: The most bytes of other models' results that a process may hold together; further results are copied and released
#: at once, since held results take room in the called model's slab (ours: as much as a front end's copies).
MAX_HELD_NBYTES = 64 * MIB
#: The most results that a process may hold, however small: each keeps a block of the called model's slab, and an
#: ensemble's result also one of the batcher's, which has 4096 blocks for all clients (ours).
MAX_HELD = 256


class HeldBlock(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a response's block. A subclass of ndarray, so that arrays over the block refer to this object, which
    has the finalizer, and not to the memory below it."""


class HeldResponse(NamedTuple):
    """A model's response, and the block in which its tensors lie. The block is held until the last array over it is
    gone."""

    response: InferResponse
    block: HeldBlock
    ref: int  # reference to the block; 0 if `block` is a copy


#: Called once per reply. Arguments: the response, an error, or None for a reply that only ends the request; and whether
#: the reply is the last one.
OnAnswer: TypeAlias = Callable[[HeldResponse | ShoalError | None, bool], None]


@dataclass(slots=True, eq=False)
class SubmittedRequest:
    """A submitted request whose last reply has not come yet."""

    outgoing: OutgoingRequest
    on_answer: OnAnswer | None  # None once the caller has given up
    deadline_ns: int
    is_unwanted: Callable[[], bool]
    keep: object  # objects that must stay until the last reply


class StarClient:
    """The client through which a worker's model calls other models; `start` it once. Any thread may use it."""

    #: The clock of deadlines, in ns.
    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self, place: Place) -> None:
        self._place = place
        self.models = place.models
        self.request_timeout_s = place.request_timeout_s
        self._port = place.port
        self._shared = SharedPort(place, self._take, place.apply, self._look)
        self._lock = self._shared.lock
        self._changed = threading.Condition(self._lock)
        # Changed under the lock: number → request; own block → the number of requests that name it.
        self._open: dict[int, SubmittedRequest] = {}
        self._lent: dict[int, int] = {}
        self._held_nbytes = self._num_held = 0  # held responses in other processes' memory: bytes, number
        # Changed under the lock, and by finalizers, which may run anywhere, even under the lock: replies to be
        # released.
        self._unused: deque[tuple[int, int, int]] = deque()
        # Changed by the listening thread: responses for which `on_answer` is yet to be called.
        self._undelivered: list[tuple[OnAnswer | None, HeldResponse | ShoalError | None, bool]] = []
        self._looked_ns = 0

    # --- submitting, in any thread ---

    def submit(
        self,
        outgoing: OutgoingRequest,
        on_answer: OnAnswer,
        deadline_ns: int,
        is_unwanted: Callable[[], bool] = lambda: False,
        keep: object = None,
        parent: int = 0,
    ) -> int:
        """Submit a request; returns its number. `keep` is referenced until the last reply. `parent` is the key of the
        request whose execution makes this call, and whose trace the call becomes part of; 0: no trace.

        `deadline_ns` is monotonic; `is_unwanted` is polled, and cancels the request once it returns True. Raises
        ShoalError if there is no memory; all later failures go to `on_answer`.
        """
        opened = SubmittedRequest(outgoing, on_answer, deadline_ns, is_unwanted, keep)
        block = self._shared.allocate(outgoing.nbytes, outgoing.entry.model_id)
        try:
            number = self._push(opened, block, outgoing.write(block.memory), parent)
        except BaseException:
            self._shared.free(block.ref)
            raise
        self._release_unused()
        return number

    def _push(self, opened: SubmittedRequest, block: Block, header: int, parent: int) -> int:
        outgoing, ask = opened.outgoing, opened.outgoing.ask
        with self._lock:
            try:
                number = self._port.submit(
                    outgoing, ask, block, header, time.monotonic_ns(), deadline_ns=ask.answer_by_ns, parent=parent
                )
            except RingFullError:
                raise UnavailableError("Exceeds maximum queue size") from None
            self._open[number] = opened
            self._port.flush()
        return number

    def cancel(self, number: int) -> None:
        """Cancel a request: `on_answer` is called with a CancelledError, unless the request has ended."""
        self._give_up(number, errors.CancelledError("Request was cancelled"))

    def lend(self, refs: Iterable[int]) -> None:
        """Mark blocks of this worker as named by an open request; `give_back` must follow once for each `lend`."""
        with self._lock:
            for ref in refs:
                self._lent[ref] = self._lent.get(ref, 0) + 1

    def give_back(self, refs: Iterable[int]) -> None:
        """Undo one `lend` of these blocks: the request that named them is answered, or given up."""
        with self._changed:
            for ref in refs:
                self._lent[ref] -= 1
                if not self._lent[ref]:
                    del self._lent[ref]
            self._changed.notify_all()
        self._release_unused()

    def wait_until_returned(self, refs: Iterable[int]) -> None:
        """Wait until no open request names one of these blocks, which the caller is about to free. The wait ends with
        the deadlines of those requests, at which they are given up."""
        with self._changed:
            self._changed.wait_for(lambda: not self.has_lent(refs))

    def has_lent(self, refs: Iterable[int]) -> bool:
        """Whether an open request names one of these blocks."""
        return any(ref in self._lent for ref in refs)

    def ask(self, verb: str, arguments: dict[str, Any]) -> Any:
        """Send a question to the supervisor and wait for the answer, which may take as long as the loading of a model.
        Raises ShoalError."""
        return self._shared.ask(verb, arguments)

    def on_segment_gone(self, called: Callable[[int], None]) -> None:
        """Register a function that the listening thread calls with the owner id of each segment that is removed."""
        self._place.segment_gone.append(called)

    def abandon(self) -> None:
        """In a forked copy of the process: close the copy's descriptors, so that the server notices the original's end,
        and change nothing in shared memory. Arrays stay readable for as long as the original keeps them."""
        # A thread of the original process may hold the old lock, and the open requests belong to the original process.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._open = {}
        self._unused = deque(maxlen=0)  # the original process releases the responses
        self._place.channel.close()
        self._place.bell.close()

    # --- releasing responses ---

    def _release_later(self, number: int, part: int, nbytes: int) -> None:
        """Note a response to be released. Called by finalizers, which may run at any point of any thread, and so never
        waits."""
        self._unused.append((number, part, nbytes))
        self._release_unused()

    def _release_unused(self) -> None:
        """Release noted responses. Called after each use of the lock, because a finalizer that found the lock taken has
        only noted its response.

        No two threads collide here, nor a thread and a finalizer that interrupts it: responses are taken from
        `_unused`, and what is held is counted, here and in `_answer`, under the lock alone. A finalizer that finds the
        lock taken, be it by its own thread, leaves its response to the holder, which looks again after the lock.
        """
        while self._unused and self._lock.acquire(blocking=False):
            try:
                while self._unused and not self._port.is_crowded:
                    number, part, nbytes = self._unused.popleft()
                    self._held_nbytes -= nbytes
                    self._num_held -= nbytes > 0
                    self._port.release(number, part, prompt=False)
                self._port.flush()
                if self._unused:  # the ring is nearly full: the listening thread releases the others
                    self._port.wake()
                    return
            finally:
                self._lock.release()

    # --- the listening thread ---

    def start(self) -> None:
        """Begin to listen, in a daemon thread of this process."""
        self._shared.start("shoal-client")

    def _take(self, reply: Reply) -> None:
        """Note a reply, under the lock; `_look` calls `on_answer` later, without the lock."""
        request = self._open.get(reply.number)
        if request is None:
            return
        self._undelivered.append((request.on_answer, self._answer(request, reply), reply.is_final))
        if reply.is_final:
            del self._open[reply.number]

    def _look(self) -> float:
        """Call `on_answer` for noted responses, and end late and unwanted requests. Returns the seconds until the next
        call."""
        self._deliver()
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns >= TICK_S * 1e9:
            self._looked_ns = now_ns
            self._expire(now_ns)
        self._release_unused()
        return TICK_S if self._open or self._unused else IDLE_S

    def _deliver(self) -> None:
        undelivered, self._undelivered = self._undelivered, []
        for on_answer, answer, is_final in undelivered:
            _notify(on_answer, answer, is_final)

    def _answer(self, request: SubmittedRequest, reply: Reply) -> HeldResponse | ShoalError | None:
        block, header = reply.block, reply.header
        if block is None or header is None:
            if reply.is_empty:
                return None
            ask = request.outgoing.ask
            return refusal(request.outgoing.entry, ask.id, reply, ask.correlation_id)
        nbytes, ref = len(block), reply.tensors_ref
        outgoing = request.outgoing
        is_too_much = self._held_nbytes + nbytes > MAX_HELD_NBYTES or self._num_held >= MAX_HELD
        if is_too_much and not outgoing.is_on_gpu:
            held, ref = HeldBlock((nbytes,), np.uint8, bytes(whole(block))), 0
            self._unused.append((reply.number, reply.part, 0))
        else:
            self._held_nbytes += nbytes
            self._num_held += 1
            held = HeldBlock((nbytes,), np.uint8, whole(block))
            weakref.finalize(held, self._release_later, reply.number, reply.part, nbytes).atexit = False
        if reply.status:
            return errors.from_wire(reply.status, str(header, "utf-8", "replace"))
        try:
            return HeldResponse(outgoing.unpack(header, nbytes), held, ref)
        except ShoalError as error:
            return error

    def _expire(self, now_ns: int) -> None:
        with self._lock:
            waiting = [(number, each) for number, each in self._open.items() if each.on_answer is not None]
        for number, request in waiting:
            if now_ns >= request.deadline_ns:
                name = request.outgoing.entry.name
                self._give_up(
                    number, UnavailableError(f"Request timeout expired: no answer from model '{name}' in time")
                )
            elif request.is_unwanted():
                self.cancel(number)

    def _give_up(self, number: int, error: ShoalError) -> None:
        """End a request with an error, and cancel it; further replies are released as they arrive."""
        with self._lock:
            request = self._open.get(number)
            if request is None or request.on_answer is None:
                return
            on_answer, request.on_answer = request.on_answer, None
            with suppress(RingFullError):  # the ring is full: the request is executed nevertheless
                self._port.cancel(number)
            self._port.flush()
        _notify(on_answer, error, True)
        self._release_unused()


def _notify(on_answer: OnAnswer | None, answer: HeldResponse | ShoalError | None, is_final: bool) -> None:
    if on_answer is not None:
        try:
            on_answer(answer, is_final)
        except Exception:  # noqa: BLE001 - an error of one model's event loop must not end others' calls
            _log.exception("an answer could not be handed to its receiver")


def join() -> StarClient:
    """Join the star as a client, from a worker's process; returns when all models are known.

    Raises ShoalError if the supervisor refuses or has no memory, OSError or EOFError if it is gone.
    """
    place, welcome, seq = take_place(CallerConnected, asks_for_segments=True)
    os.close(welcome.counters)
    place.settle(seq)
    client = StarClient(place)
    client.start()
    return client

"""A process as a client of the star beside what else it does: many threads ask, one thread listens.

Whoever asks is called back by the listening thread, once per response. That thread owns the bell and the control
connection, keeps the table of models current, and ends what nobody waits for any more: each request has a deadline. The
port is not thread-safe; every use of it is under one lock, held for microseconds. A response's memory goes back when
the last array that looks into it is gone, in whichever thread that happens.
"""

import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from shoal import control, errors
from shoal.client.models import ModelTable
from shoal.client.outgoing import Outgoing
from shoal.client.oversize import OversizeBlocks
from shoal.client.questions import Questions
from shoal.client.refusal import refusal
from shoal.control import Channel, Message
from shoal.errors import ShoalError, UnavailableError
from shoal.ledger import ledger_message
from shoal.options import SLAB_PARTS
from shoal.request import InferResponse, unpack_response
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import P
from shoal.shm.port import Port, Reply
from shoal.shm.ring import RingFullError
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block

_log = logging.getLogger(__name__)

#: Messages that make replies void which have not been collected (see shoal/frontend/front_end.py).
_REPLIES_FIRST = frozenset({"segment_gone", "batcher"})
#: How often deadlines and cancellations are looked at, while something is open and otherwise (ours).
TICK_S, IDLE_S = 0.05, 1.0


class HeldBlock(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a response's block. Of its own class: arrays over it then keep it itself, which has a finalizer."""


class Answer(NamedTuple):
    """A model's response, and the block its tensors lie in: held for as long as an array over it is."""

    response: InferResponse
    block: HeldBlock
    ref: int


#: Called once per response: that, or why there is none, or None for an end without one; and whether it is the last.
OnAnswer: TypeAlias = Callable[[Answer | ShoalError | None, bool], None]


@dataclass(slots=True, eq=False)
class Open:
    """A request that was submitted, until its last reply has come."""

    outgoing: Outgoing
    on_answer: OnAnswer | None  # None: nobody waits any more
    deadline_ns: int
    is_unwanted: Callable[[], bool]
    keep: object  # what else must stay until then


class Client:
    """This process's place in the star; `start` it once."""

    def __init__(self, channel: Channel, port: Port, bell: Doorbell, models: ModelTable, welcome: Message) -> None:
        self.models = models
        self.request_timeout_s: float = welcome["request_timeout_s"]
        self._answer_timeout_s: float = welcome["answer_timeout_s"]
        self._channel = channel
        self._port = port
        self._bell = bell
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._channel_lock = threading.Lock()
        self._questions = Questions(self._send)
        self._oversize = OversizeBlocks(self._send, self.request_timeout_s)
        self._largest_shared_nbytes = port.slab.largest_nbytes // SLAB_PARTS
        # Changed under the lock: number → request; block → how many have lent it.
        self._open: dict[int, Open] = {}
        self._lent: dict[int, int] = {}
        # Changed by finalizers, which may run anywhere, even under the lock: replies to be released.
        self._unused: deque[tuple[int, int]] = deque()

    # --- threads that ask ---

    def submit(
        self,
        outgoing: Outgoing,
        on_answer: OnAnswer,
        deadline_ns: int,
        is_unwanted: Callable[[], bool] = lambda: False,
        keep: object = None,
    ) -> int:
        """Hand a request over; returns its number. `keep` stays until the last reply.

        Raises ShoalError where there is no memory; from then on whatever happens is told to `on_answer`.
        """
        opened = Open(outgoing, on_answer, deadline_ns, is_unwanted, keep)
        block = self._allocate(outgoing.nbytes, outgoing.entry.model_id)
        try:
            number = self._push(opened, block, outgoing.write(block.memory))
        except BaseException:
            self._free(block.ref)
            raise
        self._release_unused()
        return number

    def _push(self, opened: Open, block: Block, header: int) -> int:
        outgoing, ask = opened.outgoing, opened.outgoing.ask
        with self._lock:
            try:
                number = self._port.submit(
                    outgoing.entry.model_id,
                    block,
                    header,
                    outgoing.rows,
                    outgoing.shape_key,
                    time.monotonic_ns(),
                    ask.priority,
                    ask.timeout_us,
                )
            except RingFullError:
                raise UnavailableError("Exceeds maximum queue size") from None
            self._open[number] = opened
            self._port.flush()
        return number

    def cancel(self, number: int) -> None:
        """Nobody wants the rest of the answers; `on_answer` is told so, unless it was told the end before."""
        self._give_up(number, errors.CancelledError("Request was cancelled"))

    def lend(self, refs: Iterable[int]) -> None:
        """Requests name these blocks from now on, until they are given back as often."""
        with self._lock:
            for ref in refs:
                self._lent[ref] = self._lent.get(ref, 0) + 1

    def give_back(self, refs: Iterable[int]) -> None:
        """Whoever lent them has its answer, or has given it up."""
        with self._changed:
            for ref in refs:
                self._lent[ref] -= 1
                if not self._lent[ref]:
                    del self._lent[ref]
            self._changed.notify_all()
        self._release_unused()

    def wait_until_returned(self, refs: Iterable[int]) -> None:
        """Until none of these blocks is lent, whose owner is about to take them back.

        No longer than until the deadlines of the requests that name them: what is given up is answered to nobody.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self.has_lent(refs))

    def has_lent(self, refs: Iterable[int]) -> bool:
        """Whether one of these blocks is lent."""
        return any(ref in self._lent for ref in refs)

    def ask(self, verb: str, arguments: dict[str, Any]) -> Any:
        """Ask the supervisor; it may take as long as a model may take to load. Raises ShoalError."""
        return self._questions.ask(verb, arguments, self._answer_timeout_s)

    def _allocate(self, nbytes: int, model_id: int) -> Block:
        if nbytes <= self._largest_shared_nbytes:
            with self._lock:
                return self._port.allocate(nbytes)
        if self._port.is_full:
            raise UnavailableError("Exceeds maximum queue size")
        return self._oversize.allocate(nbytes, model_id)

    def _free(self, ref: int) -> None:
        with self._lock:
            if self._port.slab.free(ref):
                return
        self._oversize.free(ref)

    # --- responses that nobody looks at any more ---

    def _let_go(self, number: int, part: int) -> None:
        """A finalizer: may run in the middle of anything, so it waits for nothing."""
        self._unused.append((number, part))
        self._release_unused()

    def _release_unused(self) -> None:
        """Called after each use of the lock, too: what was let go meanwhile found it taken."""
        while self._unused and self._lock.acquire(blocking=False):
            try:
                while self._unused and not self._port.is_crowded:
                    number, part = self._unused.popleft()
                    self._port.release(number, part, prompt=False)
                self._port.flush()
                if self._unused:  # thousands at once: the listening thread looks again when the batcher has read
                    self._port.wake()
                    return
            finally:
                self._lock.release()

    # --- the listening thread ---

    def start(self) -> None:
        """Begin to listen, in a daemon thread of this process."""
        threading.Thread(target=self._listen, name="shoal-client", daemon=True).start()

    def _listen(self) -> None:
        poller = select.epoll()
        poller.register(self._bell.fileno(), select.EPOLLIN)
        poller.register(self._channel.fileno(), select.EPOLLIN)
        looked_ns = 0
        try:
            while True:
                events = dict(poller.poll(TICK_S if self._open or self._unused else IDLE_S))
                if self._bell.fileno() in events:
                    self._deliver()
                if self._channel.fileno() in events:
                    self._receive()
                now_ns = time.monotonic_ns()
                if now_ns - looked_ns >= TICK_S * 1e9:
                    looked_ns = now_ns
                    self._expire(now_ns)
        except (EOFError, ConnectionError):
            os._exit(0)  # the supervisor is gone, and with it whoever could answer
        except Exception:  # noqa: BLE001  the thread's rim: without it, requests would wait for nobody
            _log.exception("this process cannot go on without its place in the star")
            os._exit(70)

    def _deliver(self) -> None:
        """Hand out every reply that has come; what nobody waits for any more is let go."""
        self._bell.clear()
        told: list[tuple[OnAnswer | None, Answer | ShoalError | None, bool]] = []
        with self._lock:
            for reply in self._port.poll():
                request = self._open.get(reply.number)
                if request is None:
                    continue
                told.append((request.on_answer, self._answer(request, reply), reply.is_final))
                if reply.is_final:
                    del self._open[reply.number]
            self._port.flush()
            spent, self._port.spent = self._port.spent, []
        for ref in spent:
            self._oversize.free(ref)
        for on_answer, answer, is_final in told:
            _tell(on_answer, answer, is_final)
        self._release_unused()

    def _answer(self, request: Open, reply: Reply) -> Answer | ShoalError | None:
        block, header = reply.block, reply.header
        if block is None or header is None:
            if reply.is_empty:
                return None
            return refusal(request.outgoing.entry, request.outgoing.ask.id, reply)
        held = HeldBlock((len(block),), np.uint8, block)
        weakref.finalize(held, self._let_go, reply.number, reply.part).atexit = False
        if reply.status:
            return errors.from_wire(reply.status, str(header, "utf-8", "replace"))
        try:
            return Answer(unpack_response(header, len(block)), held, reply.record[P.BLOCK])
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
        self._release_unused()

    def _give_up(self, number: int, error: ShoalError) -> None:
        """Nobody waits any more: the replies are dropped as they come, and may be nonsense."""
        with self._lock:
            request = self._open.get(number)
            if request is None or request.on_answer is None:
                return
            on_answer, request.on_answer = request.on_answer, None
            with suppress(RingFullError):  # unasked to end, it is answered in vain
                self._port.cancel(number)
            self._port.flush()
        _tell(on_answer, error, True)
        self._release_unused()

    def _receive(self) -> None:
        """Take one message of the supervisor into force and acknowledge it."""
        message, fds = self._channel.receive()
        op = message["op"]
        if op in ("oversize", "oversize_ready"):
            self._oversize.hear(message, fds)
        elif op == "answer":
            self._questions.hear(message)
        else:
            if op in _REPLIES_FIRST:
                self._deliver()
            with self._lock, self._channel_lock:
                self.apply(message, fds)
            self._release_unused()

    def apply(self, message: Message, fds: list[int]) -> None:
        """What else the supervisor says; of what clients are told, much concerns front ends only."""
        op = message["op"]
        if op == "segment":
            self._port.add_segment(message["owner"], SegmentView.attach(fds.pop(0)))
        elif op == "segment_gone":
            self._port.remove_segment(message["owner"])
        elif op == "batcher":
            self._port.resubmit()
        elif op in ("model", "model_removed"):
            self.models.apply(message)
        elif op == "ledger":
            self._channel.send(ledger_message(**self._port.counts))
        for fd in fds:
            os.close(fd)
        if "seq" in message:
            self._port.flush()
            self._channel.acknowledge(message)

    def _send(self, message: Message) -> None:
        with self._channel_lock:
            self._channel.send(message)


def _tell(on_answer: OnAnswer | None, answer: Answer | ShoalError | None, is_final: bool) -> None:
    if on_answer is not None:
        try:
            on_answer(answer, is_final)
        except Exception:  # noqa: BLE001 - a rim: what a model's own event loop raises must not end the others' calls
            _log.exception("an answer could not be handed to who waits for it")


def join() -> Client:
    """Join the star from a worker, as a client beside the worker that it is; returns when all models are known.

    Raises ShoalError where there is no room for one, OSError or EOFError where the supervisor is gone.
    """
    channel = control.join("caller")
    message, fds = channel.receive()
    if message["op"] == "failed":
        channel.close()
        raise errors.from_wire(message["wire"], message["sentence"])
    own, link, bell, batcher_bell, counters = fds
    os.close(counters)
    port = Port(Segment.attach(own), SegmentView.attach(link), Doorbell(batcher_bell), message["max_in_flight"])
    client = Client(channel, port, Doorbell(bell), ModelTable(namespacing=message["model_namespacing"]), message)
    channel.acknowledge(message)
    has_started = False
    while not has_started:
        message, fds = channel.receive()
        has_started = message["op"] == "started"
        client.apply(message, fds)
    client.start()
    return client

"""A process as a client of the star beside what else it does: many threads ask, one thread listens.

Whoever asks is called back by the listening thread (shared_port.py), once per response. That thread also ends what
nobody waits for any more: each request has a deadline. A response's memory goes back when the last array that looks
into it is gone, in whichever thread that happens.
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
from shoal.options import MIB
from shoal.request import InferResponse, unpack_response
from shoal.shm.pieces import whole
from shoal.shm.port import Reply
from shoal.shm.ring import RingFullError
from shoal.shm.slab import Block
from shoal.star.outgoing import Outgoing
from shoal.star.place import Place, take_place
from shoal.star.refusal import refusal
from shoal.star.shared_port import SharedPort

_log = logging.getLogger(__name__)

#: How often deadlines and cancellations are looked at, while something is open and otherwise (ours).
TICK_S, IDLE_S = 0.05, 1.0


#: What a process may hold of other models' results, of all together; beyond that it gets copies, and the models their
#: memory at once. What a model keeps would be lacking in the slab of the model that it has called (ours: as much as a
#: front end keeps for slow readers).
MAX_HELD_NBYTES = 64 * MIB


class HeldBlock(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a response's block. Of its own class: arrays over it then keep it itself, which has a finalizer."""


class Answer(NamedTuple):
    """A model's response, and the block its tensors lie in: held for as long as an array over it is."""

    response: InferResponse
    block: HeldBlock
    ref: int  # 0 where the block is a copy


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

    #: The clock of deadlines.
    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self, place: Place) -> None:
        self._place = place
        self.models = place.models
        self.request_timeout_s = place.request_timeout_s
        self._port = place.port
        self._shared = SharedPort(place, self._take, place.apply, self._look)
        self._lock = self._shared.lock
        self._changed = threading.Condition(self._lock)
        # Changed under the lock: number → request; block → how many have lent it.
        self._open: dict[int, Open] = {}
        self._lent: dict[int, int] = {}
        self._held_nbytes = 0  # of responses that lie in the memory of others
        # Changed by finalizers, which may run anywhere, even under the lock: replies to be released.
        self._unused: deque[tuple[int, int, int]] = deque()
        # Changed by the listening thread: answers that have come and are still to be told, when it last looked.
        self._untold: list[tuple[OnAnswer | None, Answer | ShoalError | None, bool]] = []
        self._looked_ns = 0

    # --- threads that ask ---

    def submit(
        self,
        outgoing: Outgoing,
        on_answer: OnAnswer,
        deadline_ns: int,
        is_unwanted: Callable[[], bool] = lambda: False,
        keep: object = None,
        parent: int = 0,
    ) -> int:
        """Hand a request over; returns its number. `keep` stays until the last reply. `parent` is the key of the
        request that this call is made for; 0: its trace does not have the call.

        Raises ShoalError where there is no memory; from then on whatever happens is told to `on_answer`.
        """
        opened = Open(outgoing, on_answer, deadline_ns, is_unwanted, keep)
        block = self._shared.allocate(outgoing.nbytes, outgoing.entry.model_id)
        try:
            number = self._push(opened, block, outgoing.write(block.memory), parent)
        except BaseException:
            self._shared.free(block.ref)
            raise
        self._release_unused()
        return number

    def _push(self, opened: Open, block: Block, header: int, parent: int) -> int:
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
        return self._shared.ask(verb, arguments)

    def abandon(self) -> None:
        """In a copy of the process that a fork has made: close the copy's descriptors, so that the server sees the end
        of the original, and touch nothing that is shared. Arrays stay readable for as long as the original keeps them.
        """
        # New ones: a thread of the original may have held the lock, and what was open is the original's.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._open = {}
        self._unused = deque(maxlen=0)  # responses that are let go here are the original's to release
        self._place.channel.close()
        self._place.bell.close()

    # --- responses that nobody looks at any more ---

    def _let_go(self, number: int, part: int, nbytes: int) -> None:
        """A finalizer: may run in the middle of anything, so it waits for nothing."""
        self._unused.append((number, part, nbytes))
        self._release_unused()

    def _release_unused(self) -> None:
        """Called after each use of the lock, too: what was let go meanwhile found it taken."""
        while self._unused and self._lock.acquire(blocking=False):
            try:
                while self._unused and not self._port.is_crowded:
                    number, part, nbytes = self._unused.popleft()
                    self._held_nbytes -= nbytes
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
        self._shared.start("shoal-client")

    def _take(self, reply: Reply) -> None:
        """Note an answer; what nobody waits for any more is let go."""
        request = self._open.get(reply.number)
        if request is None:
            return
        self._untold.append((request.on_answer, self._answer(request, reply), reply.is_final))
        if reply.is_final:
            del self._open[reply.number]

    def _look(self) -> float:
        """Tell what has come, and end what nobody waits for any more; returns for how long that may wait."""
        self._tell_answers()
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns >= TICK_S * 1e9:
            self._looked_ns = now_ns
            self._expire(now_ns)
        self._release_unused()
        return TICK_S if self._open or self._unused else IDLE_S

    def _tell_answers(self) -> None:
        untold, self._untold = self._untold, []
        for on_answer, answer, is_final in untold:
            _tell(on_answer, answer, is_final)

    def _answer(self, request: Open, reply: Reply) -> Answer | ShoalError | None:
        block, header = reply.block, reply.header
        if block is None or header is None:
            if reply.is_empty:
                return None
            ask = request.outgoing.ask
            return refusal(request.outgoing.entry, ask.id, reply, ask.correlation_id)
        nbytes, ref = len(block), reply.tensors_ref
        if self._held_nbytes + nbytes > MAX_HELD_NBYTES:
            held, ref = HeldBlock((nbytes,), np.uint8, bytes(whole(block))), 0
            self._unused.append((reply.number, reply.part, 0))
        else:
            self._held_nbytes += nbytes
            held = HeldBlock((nbytes,), np.uint8, whole(block))
            weakref.finalize(held, self._let_go, reply.number, reply.part, nbytes).atexit = False
        if reply.status:
            return errors.from_wire(reply.status, str(header, "utf-8", "replace"))
        try:
            return Answer(unpack_response(header, nbytes), held, ref)
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
    place, welcome, seq = take_place(CallerConnected, asks_for_segments=True)
    os.close(welcome.counters)
    place.settle(seq)
    client = Client(place)
    client.start()
    return client

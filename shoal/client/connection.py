"""A guest's connection to the server, for many threads: a place in the star, and which thread waits for which reply.

Threads that wait for replies wait for the bell themselves: one of them leads, hands out all replies, and wakes the
threads that the replies are for. When the leading thread has its own reply, another thread leads. A thread that only
listened would cost each request two more thread switches: 30 of the 90 µs that a request takes. Only the control
connection has a thread of its own, or none with asyncio (aio.py).

If either end closes, all open requests end with ConnectionLostError. A forked copy of this process would write to the
same memory without the server's knowledge: the copy abandons the connection, and writes nothing more.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from shoal.client.request_arguments import checked_timeout
from shoal.control import GONE
from shoal.errors import ConnectionLostError, ShoalError, TimedOutError, UnavailableError
from shoal.messages.message import MessageError
from shoal.messages.to_client import ServerStopping, ToClient
from shoal.shm.doorbell import WAIT_S, GuestBell
from shoal.shm.pieces import whole
from shoal.shm.port import CheckedRequest, Reply, SchedulingHints, TracedTimes
from shoal.shm.ring import RingFullError
from shoal.shm.slab import Block
from shoal.star.client import MAX_HELD, MAX_HELD_NBYTES, HeldBlock
from shoal.star.place import Place, join_as_guest
from shoal.star.questions import NoAnswerError
from shoal.star.shared_port import SharedPort

T = TypeVar("T")

_LOST = "the connection to the server was lost"
#: How often a request that could not be submitted, because the server was being replaced, is sent to the new server
#: (ours).
MAX_RECONNECTS = 3
#: Most seconds that the supervisor may take to let a client join, or to answer its question, whatever the call's
#: timeout (ours: a server that is starting another batcher takes a few).
QUESTION_S = 30.0
#: What to do about a server that does not answer in that time.
STANDSTILL_REMEDY = (
    "Look whether its process is stopped, as by a debugger (kill -CONT continues it), or its machine overloaded; else "
    "start it again"
)


class NotSubmittedError(ConnectionLostError):
    """The connection was lost before the request was submitted: the request may be sent to another server."""


class Waiter:
    """An open request: its replies so far, and how the waiting thread or coroutine is notified.

    `notify` is called under the connection's lock, after `replies` has grown or `error` was set.
    """

    __slots__ = ("error", "is_over", "is_wanted", "keep", "notify", "number", "replies", "times", "wants_timing")

    def __init__(self, notify: Callable[[], None], keep: object, *, wants_timing: bool = False) -> None:
        self.number = 0
        self.replies: deque[Reply] = deque()
        self.error: ShoalError | None = None
        self.is_over = False  # the last reply has arrived, or the connection is lost
        self.is_wanted = True
        self.notify = notify
        self.keep = keep  # objects that must stay until the last reply
        self.wants_timing = wants_timing
        self.times: TracedTimes | None = None  # filled by the port if the request has asked for its times


_living: "weakref.WeakSet[Connection]" = weakref.WeakSet()


class Connection:
    """A guest's connection, from `start` until it is lost."""

    def __init__(self, place: Place) -> None:
        assert isinstance(place.bell, GuestBell)
        self.models = place.models
        self.request_timeout_s = place.request_timeout_s
        self.shared = SharedPort(place, self._take, self._apply)
        self.bell = place.bell
        self.channel = place.channel
        self._place = place
        self._port = place.port
        self._lock = self.shared.lock
        #: Publishes pushed records to the batcher; called under the lock. With asyncio, once per turn of the event
        #: loop.
        self.flush = place.port.flush
        self._leading = threading.Lock()
        self._news = threading.Event()  # set after each message, such as one with a reply's segment
        # Changed under the lock: number → open request; number → lock of a sleeping thread; whether the connection is
        # lost; whether the server stops.
        self._open: dict[int, Waiter] = {}
        self._sleeping: dict[int, threading.Lock] = {}
        self.is_lost = self.is_exiting = False
        # Changed by finalizers, which may run anywhere, even under the lock: requests to cancel, replies to release,
        # blocks to free.
        self._unwanted: deque[Waiter] = deque()
        self._unused: deque[tuple[int, int, int]] = deque()
        #: The number of replies whose blocks in the server's memory arrays still refer to, and the bytes of these
        #: blocks.
        self._num_held = self._held_nbytes = 0
        #: The number of replies whose blocks are not released yet: the connection to a server that is stopping is kept
        #: until there is none.
        self._num_unread = 0
        self._unused_blocks: deque[int] = deque()
        _living.add(self)

    @classmethod
    def to(cls, path: str, limit_s: float) -> "Connection":
        """Connect to the server at `path`. Raises ShoalError if it refuses, OSError or EOFError if there is none,
        TimeoutError after `limit_s` seconds."""
        return cls(join_as_guest(path, limit_s))

    def start(self) -> None:
        """Listen to the supervisor in a daemon thread."""
        threading.Thread(target=self._listen, name="shoal-client", daemon=True).start()

    def close(self) -> None:
        """Close the connection: open requests end with ConnectionLostError."""
        self.channel.shutdown()
        self.lose("the client was closed")

    @property
    def num_open(self) -> int:
        """The number of requests whose last reply has not arrived."""
        return len(self._open)

    # --- submitting ---

    def submit(
        self,
        waiter: Waiter,
        request: CheckedRequest,
        wishes: SchedulingHints,
        block: Block,
        header: int,
        start_ns: int,
        deadline_ns: int,
    ) -> None:
        """Submit the request in a filled block; the block is freed if that fails. See Port.submit for the arguments.
        Raises ShoalError."""
        with self._lock:
            try:
                if self.is_lost:
                    raise NotSubmittedError(_LOST)
                waiter.number = number = self._port.submit(
                    request, wishes, block, header, start_ns, deadline_ns=deadline_ns
                )
            except RingFullError:
                self._port.slab.free(block.ref)
                raise UnavailableError("Exceeds maximum queue size") from None
            except BaseException:
                self._port.slab.free(block.ref)
                raise
            self._open[number] = waiter
            if waiter.wants_timing:
                with suppress(RingFullError):  # the ring is full: this request gets no times
                    waiter.times = self._port.trace(number, is_shown=True)
            self.flush()

    def allocate(self, nbytes: int, model_id: int) -> Block:
        """A block of the slab for a request of `nbytes` to a model; the caller owns the block until `submit`. Raises
        ShoalError."""
        self.tidy_if_needed()
        with self._lock:
            if self.is_lost:
                raise NotSubmittedError(_LOST)
            return self._port.allocate(nbytes, model_id)

    def cancel(self, waiter: Waiter) -> None:
        """Cancel a request. Its replies are released as they arrive."""
        with self._lock:
            waiter.is_wanted = False
            replies, waiter.replies = waiter.replies, deque()
            if waiter.number in self._open and not self.is_lost:
                with suppress(RingFullError):  # the ring is full: the request is executed nevertheless
                    self._port.cancel(waiter.number)
            for reply in replies:
                self._num_unread -= reply.block is not None
                self._release(reply.number, reply.part, reply)
            self.flush()
        self._leave_if_exiting()

    def release(self, reply: Reply) -> None:
        """Release a reply whose block has been read."""
        with self._lock:
            self._num_unread -= reply.block is not None
            self._release(reply.number, reply.part, reply)
            self.flush()
        self._leave_if_exiting()

    def _leave_if_exiting(self) -> None:
        if self.is_exiting and self.leave():
            self.channel.shutdown()

    def _release(self, number: int, part: int, reply: Reply) -> None:
        if reply.block is not None and not self.is_lost:
            try:
                self._port.release(number, part, prompt=False)
            except RingFullError:  # the ring is full: `tidy` tries again when the batcher has read some records
                self._unused.append((number, part, 0))

    # --- waiting, in the threads that have asked ---

    def wait(self, waiter: Waiter, sleeper: threading.Lock, deadline_s: float) -> bool:
        """Wait for a reply to `waiter`, whose `notify` releases the locked `sleeper`. False if no reply has come by
        `deadline_s`."""
        leading = self._leading
        while not (waiter.replies or waiter.is_over):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            if leading.acquire(blocking=False):
                try:
                    self._lead(waiter, deadline_s)
                finally:
                    leading.release()
                    self._appoint()
                continue
            with self._lock:
                self._sleeping[waiter.number] = sleeper
            # The leading thread may have stopped leading before this thread was listed, and so have appointed no other.
            if leading.locked():
                sleeper.acquire(timeout=left_s)
            with self._lock:
                self._sleeping.pop(waiter.number, None)
        # This thread may have been appointed just when it got its own reply: then it appoints the next one.
        if self._sleeping and not leading.locked():
            self._appoint()
        self._leave_if_exiting()
        return True

    def _lead(self, waiter: Waiter, deadline_s: float) -> None:
        # The thread that led before has handed out all replies for which it has cleared the bell.
        hand_out, bell, port = self.hand_out, self.bell, self._port
        while not (waiter.replies or waiter.is_over):
            if port.wanted:
                self._news.wait(WAIT_S)
                self._news.clear()
            elif not bell.wait():
                self._news.wait(WAIT_S)  # the bell is closed: the listening thread will end the wait
            hand_out()
            if time.monotonic() >= deadline_s:
                return

    def hand_out(self) -> None:
        """Hand out all replies that have arrived. The bell must have been cleared."""
        try:
            self.shared.hand_out()
        except OSError:  # the connection is closed, which the listening thread may not have noticed
            self.channel.shutdown()
            self.lose("the server is gone, or has hung up")

    def _appoint(self) -> None:
        """Wake a sleeping thread, which then leads."""
        if self._sleeping:
            with self._lock:
                for sleeper in self._sleeping.values():
                    if sleeper.locked():
                        sleeper.release()
                        return

    # --- replies and messages: under the lock, in any thread ---

    def _take(self, reply: Reply) -> None:
        waiter = self._open.get(reply.number)
        if reply.is_final:
            self._open.pop(reply.number, None)
        if waiter is None or not waiter.is_wanted:
            self._release(reply.number, reply.part, reply)
            return
        waiter.replies.append(reply)
        self._num_unread += reply.block is not None
        if reply.is_final:
            waiter.is_over = True
        waiter.notify()

    def _apply(self, message: ToClient, seq: int) -> None:
        if isinstance(message, ServerStopping):
            self.is_exiting = True
        self._place.apply(message, seq)

    def leave(self) -> bool:
        """Give up the connection to a server that is stopping, unless a request is open or a reply lies in the server's
        memory. True if the connection is lost now; later requests are not submitted."""
        return self.lose("the server is stopping", only_idle=True)

    def lose(self, why: str, *, only_idle: bool = False) -> bool:
        """Give up the connection: all open requests end with ConnectionLostError. With `only_idle`, only if no request
        is open and no reply is held. True if the connection is lost."""
        with self._lock:
            if self.is_lost or (only_idle and (self._open or self._num_unread)):
                return self.is_lost
            self.is_lost = True
            waiters = list(self._open.values())
            self._open.clear()
            for waiter in waiters:
                waiter.error = ConnectionLostError(why)
                waiter.is_over = True
                waiter.notify()
        self._news.set()
        self.shared.lose(ConnectionLostError(why))
        self.bell.hang_up()
        return True

    # --- memory that is no longer used ---

    def hold(self, reply: Reply) -> HeldBlock:
        """A reply's block as an array of bytes; the block is released with the last view of the array. A copy of the
        block if too much is held already."""
        assert reply.block is not None
        nbytes = len(reply.block)
        with self._lock:
            is_too_much = self._held_nbytes + nbytes > MAX_HELD_NBYTES or self._num_held >= MAX_HELD
            if not is_too_much:
                self._held_nbytes += nbytes
                self._num_held += 1
        if is_too_much:
            held = HeldBlock((nbytes,), np.uint8, bytes(whole(reply.block)))
            self.release(reply)
        else:
            held = HeldBlock((nbytes,), np.uint8, whole(reply.block))
            weakref.finalize(held, self._unused.append, (reply.number, reply.part, nbytes)).atexit = False
        return held

    def free_later(self, ref: int) -> None:
        """Have the next `tidy` free a block of `shared.allocate_beside`. For finalizers, which may run anywhere."""
        self._unused_blocks.append(ref)

    def cancel_later(self, waiter: Waiter) -> None:
        """Have the next `tidy` cancel a request that is open then. For finalizers, which may run anywhere."""
        if waiter.is_wanted and not (waiter.is_over and not waiter.replies):
            self._unwanted.append(waiter)

    def tidy_if_needed(self) -> None:
        """Like `tidy`, and cheap if there is nothing to do."""
        if self._unused or self._unused_blocks or self._unwanted:
            self.tidy()

    def tidy(self) -> None:
        """Cancel the requests, release the replies and free the blocks that finalizers have noted. Several threads may
        call this at a time."""
        while (waiter := _taken(self._unwanted)) is not None:
            self.cancel(waiter)
        while not self.is_lost and (ref := _taken(self._unused_blocks)) is not None:
            self.shared.free(ref)
        with self._lock:
            while self._unused and not self.is_lost and not self._port.is_crowded:
                number, part, nbytes = self._unused.popleft()
                self._held_nbytes -= nbytes
                self._num_held -= nbytes > 0
                self._num_unread -= nbytes > 0  # 0: a release that is tried again, and was counted before
                self._port.release(number, part, prompt=False)
            self.flush()

    # --- the control connection ---

    def _listen(self) -> None:
        while self.receive():
            pass

    def receive(self) -> bool:
        """Apply the supervisor's next message; False if the connection is closed."""
        try:
            self.shared.receive()
        except (*GONE, OSError, MessageError):
            self.lose("the server is gone, or has hung up")
            self.channel.close()
            return False
        self._news.set()
        self.tidy_if_needed()
        if self.is_exiting and self.leave():
            self.channel.close()
            return False
        return True

    def ask(self, verb: str, arguments: dict[str, Any], limit_s: float = QUESTION_S) -> Any:
        """Ask the supervisor a question. Not to be called in the listening thread. Raises ShoalError; TimedOutError if
        the answer takes more than `limit_s` seconds."""
        try:
            return self.shared.ask(verb, arguments, limit_s)
        except NoAnswerError:
            raise TimedOutError(f"the server has not answered within {limit_s:.3g} s. {STANDSTILL_REMEDY}") from None
        except OSError as error:
            raise ConnectionLostError(f"the server is gone: {error}") from error

    def catch_up(self, limit_s: float = QUESTION_S) -> None:
        """Wait until all messages that the supervisor has sent are applied: the models may have changed with the answer
        to a question. Raises the errors of `ask`."""
        self.ask("ping", {}, limit_s)

    def abandon(self) -> None:
        """In a forked copy of the process: close the copy's descriptors, so that the server notices the original's end,
        and change nothing in shared memory."""
        self._lock = threading.Lock()  # a thread of the original may have held it at the fork
        self.flush = lambda: None  # the rings belong to the original process
        self.is_lost = True
        self._open.clear()
        self.channel.close()
        self.bell.close()


def question_limit_s(timeout_s: float | None) -> float:
    """How many seconds a server may take to let a client join, or to answer a question, for a call with this timeout.
    Raises InvalidArgumentError for what is no timeout."""
    return QUESTION_S if timeout_s is None else min(max(0.0, checked_timeout(timeout_s)), QUESTION_S)


def _taken(noted: deque[T]) -> T | None:
    """Remove and return the first entry; None if there is none. To test that first would not do: another thread may
    take the last entry between the test and the removal."""
    try:
        return noted.popleft()
    except IndexError:
        return None


def _after_fork() -> None:
    for connection in list(_living):
        connection.abandon()


os.register_at_fork(after_in_child=_after_fork)

"""A client's port for many threads: all may submit, one listens.

The port is not thread-safe; every use of it is under one lock, held for microseconds. The listening thread owns the
bell and the control connection: it hands out replies, applies the supervisor's messages, and passes on answers to
questions. Used on the road, by guests, and in workers whose models call others.
"""

import logging
import math
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shoal import errors
from shoal.control import GONE
from shoal.errors import ShoalError, UnavailableError
from shoal.fault import IS_ARMED, reached
from shoal.messages import shared
from shoal.messages.message import Message, close_descriptors, on, table
from shoal.messages.to_client import TO_CLIENT, QuestionAnswered, ToClient
from shoal.shared_settings import SLAB_PARTS
from shoal.shm.port import NoRoomError, Reply
from shoal.shm.segment import Segment
from shoal.shm.slab import Block
from shoal.shm.whole_slabs import WholeSlabs
from shoal.star.place import REPLIES_FIRST, Apply, Place
from shoal.star.questions import OpenQuestions


class ClientOversizeBlocks:
    """The blocks of one client for requests that are too large for a slab: each is a segment of its own, made by the
    supervisor. The thread that listens to the supervisor passes on the answers. `send` sends the supervisor a message,
    from any thread; an allocation waits for its segment for `wait_s` seconds at most."""

    def __init__(self, send: Callable[[Message], None], wait_s: float) -> None:
        self._send = send
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._slabs = WholeSlabs()
        # Changed under the lock. Waiting threads' queues, by the number of the request for a segment until it is
        # granted, and then by the segment's owner id.
        self._request = 0
        self._waiting: dict[int, queue.SimpleQueue[shared.PayloadNews]] = {}
        self._mapped: dict[int, queue.SimpleQueue[shared.PayloadNews]] = {}

    def allocate(self, nbytes: int, model_id: int, deadline_s: float = math.inf) -> Block:
        """A block of `nbytes`, in whole pages, that a model's workers have mapped by `deadline_s` (monotonic); the
        caller must `free` it once.

        Raises InvalidArgumentError if the payload can never fit, UnavailableError if there is no room now, or if a
        worker, which maps the segment between two batches, has not done so in time.
        """
        if (kept := self._slabs.allocate(nbytes, model_id)) is not None:
            return kept
        deadline_s = min(deadline_s, time.monotonic() + self._wait_s)
        news: queue.SimpleQueue[shared.PayloadNews] = queue.SimpleQueue()
        with self._lock:
            self._request = request = self._request + 1
            self._waiting[request] = news
        self._send(shared.PayloadWanted(request, nbytes, model_id))
        granted = self._next(self._waiting, request, news, deadline_s)
        if granted is None:
            raise self._late(nbytes)
        if isinstance(granted, shared.PayloadRefused):
            raise errors.from_wire(granted.wire, granted.sentence)
        assert isinstance(granted, shared.PayloadGranted)
        owner = granted.owner
        segment = Segment.attach(granted.segment, populate=False)
        block = self._slabs.add(segment, model_id, may_be_kept=granted.may_be_kept)
        with self._lock:
            self._mapped[owner] = news
        self._send(shared.PayloadMapped(owner))
        ready = self._next(self._mapped, owner, news, deadline_s)
        if ready is None or isinstance(ready, shared.PayloadRefused):
            with suppress(OSError):  # the supervisor may be gone
                self.free(block.ref)
            raise self._late(nbytes) if ready is None else errors.from_wire(ready.wire, ready.sentence)
        if IS_ARMED:
            reached("mapped")
        return block

    def _next(
        self,
        waiting: "dict[int, queue.SimpleQueue[shared.PayloadNews]]",
        key: int,
        news: "queue.SimpleQueue[shared.PayloadNews]",
        deadline_s: float,
    ) -> shared.PayloadNews | None:
        try:
            return news.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            with self._lock:
                # If `receive` has removed the entry, the answer has arrived just now.
                return None if waiting.pop(key, None) is not None else news.get_nowait()

    def _late(self, nbytes: int) -> UnavailableError:
        return UnavailableError(
            f"Request timeout expired: no shared memory for {nbytes} bytes within {self._wait_s:g} s "
            "(--request-timeout-secs)"
        )

    def receive(self, message: shared.PayloadNews) -> None:
        """Pass on the supervisor's answer about a segment, with the segment's descriptor."""
        with self._lock:
            if isinstance(message, shared.PayloadReady):
                waiter = self._mapped.pop(message.owner, None)
            else:
                waiter = self._waiting.pop(message.request, None)
            if waiter is not None:
                waiter.put(message)
                return
        if isinstance(message, shared.PayloadGranted):  # the waiting thread has given up
            close_descriptors(message)
            self._send(shared.PayloadReleased(message.owner))

    def lose(self, why: ShoalError) -> None:
        """Fail all waiting allocations with this error: the supervisor is gone, or the server ends."""
        with self._lock:
            waiting = [*self._waiting.values(), *self._mapped.values()]
            self._waiting.clear()
            self._mapped.clear()
            for waiter in waiting:
                waiter.put(shared.PayloadRefused(0, why.wire, str(why)))

    def free(self, ref: int, *, keep: bool = False) -> None:
        """Free a block whose request has been answered, or was never submitted. With `keep`, its segment is kept for
        the next request; the caller must then call `look` from time to time."""
        if owner := self._slabs.free(ref, time.monotonic(), keep=keep):
            self._send(shared.PayloadReleased(owner))

    def look(self) -> float | None:
        """Give back kept segments that were not reused in time. Returns the seconds until the next call; None if none
        is needed."""
        if not self._slabs.kept:
            return None
        idle, left_s = self._slabs.expire(time.monotonic())
        for owner in idle:
            self._send(shared.PayloadReleased(owner))
        return left_s


#: Messages after which a reply whose segment was missing can be opened, or is known to be lost.
SEGMENT_NEWS = (shared.SegmentAnnounced, shared.SegmentMissing)
#: The smallest request that gets a segment of its own if the slab has no room (ours: about the smallest body that a
#: lane without memory hands over to the road; each segment costs the supervisor work).
LEAST_OVERSIZE_BYTES = 48 * 1024

_log = logging.getLogger(__name__)


def _never() -> None:
    return None


class SharedPort:
    """A client's port under a lock; `start` it once.

    The listening thread calls `take` for each reply and `apply` for each message, both under the lock, and `look`,
    without it, before each sleep; `look` returns the longest sleep in seconds (None: unlimited).

    Where submitting threads wait for the bell themselves, as in guests (connection.py), `start` is not called: these
    threads call `hand_out`, and one thread calls `receive`.
    """

    def __init__(
        self, place: Place, take: Callable[[Reply], None], apply: Apply, look: Callable[[], float | None] = _never
    ) -> None:
        #: Held during every use of the port.
        self.lock = threading.Lock()
        self._place = place
        self._port = place.port
        self._take = take
        self._apply = apply
        self._look = look
        self._channel_lock = threading.Lock()
        self._oversize = ClientOversizeBlocks(self._send, place.request_timeout_s)
        self._questions = OpenQuestions(self._send)
        #: Handlers of messages that a thread waits for; `apply` gets the others.
        self.handlers = table(
            *[on(kind, self._oversize.receive) for kind in shared.PAYLOAD_NEWS],
            on(QuestionAnswered, self._questions.receive),
        )
        # Changed under the lock: messages of REPLIES_FIRST that arrived while a reply waited for its segment.
        self._put_off: list[tuple[ToClient, int]] = []
        self._largest_shared_nbytes = place.port.slab.largest_nbytes // SLAB_PARTS

    # --- submitting, in any thread ---

    def allocate(self, nbytes: int, model_id: int, deadline_s: float = math.inf) -> Block:
        """A block for a request to a model, in the slab or in a segment of its own. A request gets a segment if it is
        too large for the slab, or if it has at least LEAST_OVERSIZE_BYTES and the slab has no room for the model now.
        The wait for a segment ends at `deadline_s` (monotonic). Raises ShoalError."""
        with self.lock:
            if nbytes <= self._largest_shared_nbytes:
                try:
                    return self._port.allocate(nbytes, model_id)
                except NoRoomError:
                    if nbytes < LEAST_OVERSIZE_BYTES:
                        raise
            if not self._port.has_place(model_id):
                raise NoRoomError(model_id)
        return self._oversize.allocate(nbytes, model_id, deadline_s)

    def free(self, ref: int) -> None:
        """Free a block whose request was never submitted."""
        with self.lock:
            if self._port.slab.free(ref):
                return
        self._oversize.free(ref)

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor a question; supervisor/supervisor.py collects the verbs. Raises the ShoalError of a
        refusal, or NoAnswerError.

        Without `timeout_s` the answer may take as long as loading a model.
        """
        return self._questions.ask(verb, arguments, self._place.answer_timeout_s if timeout_s is None else timeout_s)

    def _send(self, message: Message) -> None:
        with self._channel_lock:
            self._place.channel.send(message)

    def allocate_beside(self, nbytes: int) -> Block:
        """A block for a tensor of several requests, in the slab or in a segment of its own. The caller must `free` the
        block after the last of these requests. Raises ShoalError."""
        if nbytes <= self._largest_shared_nbytes:
            with self.lock:
                block = self._port.slab.allocate(nbytes)
            if block is not None:
                return block
        return self._oversize.allocate(nbytes, 0)

    def lose(self, why: ShoalError) -> None:
        """Fail all waiting threads, and those that will ask, with this error: the supervisor is gone, or the server
        ends."""
        self._questions.lose(why)
        self._oversize.lose(why)

    # --- the listening thread ---

    def start(self, name: str) -> None:
        """Start the listening thread, a daemon."""
        threading.Thread(target=self._listen, name=name, daemon=True).start()

    def _listen(self) -> None:
        bell, channel = self._place.bell.fileno(), self._place.channel.fileno()
        poller = select.epoll()
        poller.register(bell, select.EPOLLIN)
        poller.register(channel, select.EPOLLIN)
        try:
            while True:
                events = dict(poller.poll(self._pause_s()))
                if bell in events:
                    self.deliver()
                if channel in events:
                    self.receive()
        except GONE:
            os._exit(0)  # the supervisor is gone: no reply can arrive any more
        except Exception:  # noqa: BLE001 - without this, requests would wait for ever
            _log.exception("this process cannot go on without its place in the star")
            os._exit(1)  # the status of a process that ends with an uncaught exception

    def _pause_s(self) -> float | None:
        pauses = [each for each in (self._look(), self._oversize.look()) if each is not None]
        return min(pauses, default=None)

    def deliver(self) -> None:
        """Clear the bell, and hand out every reply that has arrived."""
        self._place.bell.clear()
        self.hand_out()

    def hand_out(self) -> None:
        """Hand out every reply that has arrived. The listening thread clears the bell before this call, so that it
        notices replies that come during the call. A thread that looks for its own reply one last time need not clear
        it."""
        port = self._port
        with self.lock:
            was_wanted = port.wanted
            for reply in port.poll():
                self._take(reply)
            port.flush()
            if self._put_off and not port.wanted:
                self._apply_put_off()
            spent, port.spent = port.spent, []
            wanted = port.wanted if port.wanted != was_wanted else 0
        if wanted:
            self._send(shared.SegmentWanted(wanted))
        for ref in spent:
            self._oversize.free(ref, keep=True)

    def receive(self) -> None:
        """Apply one message of the supervisor, and acknowledge it if it has a sequence number."""
        message, seq = self._place.channel.receive(TO_CLIENT)
        handler = self.handlers.get(type(message))
        if handler is not None:
            handler(message)
        else:
            if isinstance(message, REPLIES_FIRST):
                self.deliver()
            with self.lock:
                if isinstance(message, REPLIES_FIRST) and self._port.wanted:
                    self._put_off.append((message, seq))
                else:
                    with self._channel_lock:
                        self._apply(message, seq)
            if isinstance(message, SEGMENT_NEWS) and self._port.asks_for_segments:
                self.hand_out()  # replies that lie in this segment can be read now

    def _apply_put_off(self) -> None:
        """Apply the messages in `_put_off`, when all replies before them have been collected. To be called under the
        lock."""
        put_off, self._put_off = self._put_off, []
        with self._channel_lock:
            for message, seq in put_off:
                self._apply(message, seq)

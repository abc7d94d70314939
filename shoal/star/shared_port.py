"""A client's port for many threads: they ask, one thread listens.

The port is not thread-safe; every use of it is under one lock, held for microseconds. The listening thread owns the
bell and the control connection: it hands out replies, keeps the table of models current, and passes on what the
supervisor says to who has asked it. On the road, and in a worker whose model calls others.
"""

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from shoal.control import GONE
from shoal.errors import ShoalError
from shoal.messages import shared
from shoal.messages.message import Message, on, table
from shoal.messages.to_client import TO_CLIENT, QuestionAnswered, ToClient
from shoal.options import SLAB_PARTS
from shoal.shm.port import NoRoomError, Reply
from shoal.shm.slab import Block
from shoal.star.oversize import OversizeBlocks
from shoal.star.place import REPLIES_FIRST, Apply, Place
from shoal.star.questions import Questions

#: After which what could not be opened can, or never will.
SEGMENT_NEWS = (shared.SegmentAnnounced, shared.SegmentMissing)

_log = logging.getLogger(__name__)


def _never() -> None:
    return None


class SharedPort:
    """This process's; `start` it once.

    Of the listening thread's calls, `take` gets each reply and `apply` each message, both under the lock; `look` is
    called without it before each sleep, and says how long that may be (s; None for ever).

    Where those who ask wait for the bell themselves, they call `hand_out`, and `receive` is all that is left to listen
    for: that is how guests have it (connection.py).
    """

    def __init__(
        self, place: Place, take: Callable[[Reply], None], apply: Apply, look: Callable[[], float | None] = _never
    ) -> None:
        #: For every use of the port.
        self.lock = threading.Lock()
        self._place = place
        self._port = place.port
        self._take = take
        self._apply = apply
        self._look = look
        self._channel_lock = threading.Lock()
        self._oversize = OversizeBlocks(self._send, place.request_timeout_s)
        self._questions = Questions(self._send)
        #: A table of the messages that answer a waiting thread; `apply` gets all others.
        self.handlers = table(
            *[on(kind, self._oversize.hear) for kind in shared.PAYLOAD_NEWS],
            on(QuestionAnswered, self._questions.hear),
        )
        # Changed under the lock: messages of REPLIES_FIRST that came while a reply waited for its segment.
        self._put_off: list[tuple[ToClient, int]] = []
        self._largest_shared_nbytes = place.port.slab.largest_nbytes // SLAB_PARTS

    # --- threads that ask ---

    def allocate(self, nbytes: int, model_id: int) -> Block:
        """A block for a request to a model, of the slab or, for a large one, of its own. Raises ShoalError."""
        if nbytes <= self._largest_shared_nbytes:
            with self.lock:
                return self._port.allocate(nbytes, model_id)
        with self.lock:
            if not self._port.has_place(model_id):
                raise NoRoomError(model_id)
        return self._oversize.allocate(nbytes, model_id)

    def free(self, ref: int) -> None:
        """Give back a block whose request was never submitted."""
        with self.lock:
            if self._port.slab.free(ref):
                return
        self._oversize.free(ref)

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor (its verbs: supervisor/supervisor.py). Raises ShoalError: its refusal, or no answer.

        Without `timeout_s` it may take as long as a model may take to load.
        """
        return self._questions.ask(verb, arguments, timeout_s or self._place.answer_timeout_s)

    def _send(self, message: Message) -> None:
        with self._channel_lock:
            self._place.channel.send(message)

    def allocate_beside(self, nbytes: int) -> Block:
        """A block for a tensor of several requests, in the same places. `free` it when the last of them is answered.

        Raises ShoalError.
        """
        if nbytes <= self._largest_shared_nbytes:
            with self.lock:
                block = self._port.slab.allocate(nbytes)
            if block is not None:
                return block
        return self._oversize.allocate(nbytes, 0)

    def lose(self, why: ShoalError) -> None:
        """The supervisor is gone: nobody waits for its word any more."""
        self._questions.lose(why)
        self._oversize.lose(why)

    # --- the listening thread ---

    def start(self, name: str) -> None:
        """Begin to listen, in a daemon thread of this process."""
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
            os._exit(0)  # the supervisor is gone, and with it whoever could answer
        except Exception:  # noqa: BLE001  the thread's rim: without it, requests would wait for nobody
            _log.exception("this process cannot go on without its place in the star")
            os._exit(1)  # as after any exception that nobody catches

    def _pause_s(self) -> float | None:
        pauses = [each for each in (self._look(), self._oversize.look()) if each is not None]
        return min(pauses, default=None)

    def deliver(self) -> None:
        """Hand out every reply that has come."""
        self._place.bell.clear()
        self.hand_out()

    def hand_out(self) -> None:
        """The same, after the bell was cleared."""
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
        """Take one message of the supervisor into force and acknowledge it."""
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
                self.hand_out()  # what lies there could not be read before

    def _apply_put_off(self) -> None:
        """Every reply that came before them has been collected. Under the lock."""
        put_off, self._put_off = self._put_off, []
        with self._channel_lock:
            for message, seq in put_off:
                self._apply(message, seq)

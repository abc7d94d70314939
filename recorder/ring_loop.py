"""The loop of a process that reads batchers' rings: the recorder and the comparator.

No process waits for such a reader: entries for which a ring has no room are dropped by the batcher, and counted. No
bell is rung for the reader: it looks into the ring from time to time, so that it takes many entries at once and costs a
busy batcher nothing.
"""

import logging
import select
from collections.abc import Callable
from contextlib import suppress

from shoal import log
from shoal.control import GONE, Channel
from shoal.messages import to_recorder
from shoal.messages.message import Handlers, Kinds, on, table
from shoal.messages.shared import LogChanged
from shoal.shm.byte_ring import ByteRingReader
from shoal.shm.layout import LayoutError
from shoal.shm.segment import Segment, SegmentView

_log = logging.getLogger(__name__)

#: Pauses (s) between looks into the ring (ours): the first after entries were found, doubled up to the second. In
#: that time a ring of 64 MiB takes the entries that come at 300 MB/s.
SHORT_PAUSE_S, LONG_PAUSE_S = 0.02, 0.2


class RingLoop:
    """The rings of all batchers, and the loop that looks into them. `step` takes entries of a ring, all or as many as
    it has time for, and returns their number; `looked` is called after each look; `own` are the handlers of
    the messages that this process alone gets."""

    def __init__(
        self,
        supervisor: Channel,
        own: Handlers,
        step: Callable[[ByteRingReader], int],
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._supervisor = supervisor
        self._step = step
        self._looked = looked
        self.handlers = own | table(
            on(to_recorder.RingAdded, self._add), on(LogChanged, lambda message: log.configure(**message.settings))
        )
        # Changed by RingAdded messages and by the loop: rings by number, in the order of their batchers.
        self._rings: dict[int, ByteRingReader] = {}

    def run(self) -> None:
        """Read until the supervisor closes the connection, and then the rest of the rings."""
        kinds, poller, pause_s = Kinds(*self.handlers), select.epoll(), SHORT_PAUSE_S
        poller.register(self._supervisor.fileno(), select.EPOLLIN)
        try:
            while True:
                if poller.poll(pause_s):
                    message, seq = self._supervisor.receive(kinds)
                    self.handlers[type(message)](message)
                    self._supervisor.acknowledge(seq)
                pause_s = SHORT_PAUSE_S if self._look() else min(2 * pause_s, LONG_PAUSE_S)
                self._looked()
        except GONE:
            while self._look():
                pass  # until no ring has entries

    def _add(self, message: to_recorder.RingAdded) -> None:
        readers = Segment.attach(message.recorders)
        self._rings[message.number] = ByteRingReader(readers, SegmentView.attach(message.segment))

    def _look(self) -> int:
        """Read all entries in the rings; returns their number. Drop each ring that is empty, except the newest: the
        batchers of the older ones are dead."""
        found = 0
        for number, ring in tuple(self._rings.items()):
            try:
                found += self._step(ring)
            except LayoutError as error:
                _log.error("the rest of what a batcher has left in its ring is lost: %s", error)
                ring.skip()
            if number != max(self._rings) and not ring.has_unread():
                del self._rings[number]
                with suppress(*GONE):  # `run` finds by itself that the supervisor is gone
                    self._supervisor.send(to_recorder.RingDrained(number))
        return found

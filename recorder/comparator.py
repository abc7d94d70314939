"""The comparator: compares answers of versions with those of their shadows. `python -m shoal.recorder.comparator`.

    batcher ── pairs of answers, in a ring ──► comparator ── figures and the worst examples ──► supervisor

The process runs while requests are mirrored, apart from the recorder: a recording must not lose requests because
answers are compared, and numpy is imported here alone. ring_loop.py has its loop.
"""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from shoal.control import GONE, Channel
from shoal.errors import ShoalError
from shoal.messages import to_comparator
from shoal.messages.message import on, table
from shoal.process_start import join_supervisor
from shoal.recorder.disagreements import Disagreements
from shoal.recorder.entry import EntryError
from shoal.recorder.ring_loop import SHORT_PAUSE_S, RingLoop
from shoal.shm.byte_ring import ByteRingReader

# Not __name__: run with -m, this module is __main__, and the log is configured for shoal.
_log = logging.getLogger("shoal.recorder.comparator")

#: Seconds between two lines about answers that cannot be read (ours).
COMPLAINT_S = 10.0
#: Seconds after which messages of the supervisor are looked for, however much is in the ring (ours): a model's own
#: function may take up to a second for each pair.
STEP_S = 0.5
#: Seconds after which findings are sent and room in the ring is freed (ours): as often as the ring is looked into.
SETTLE_S = SHORT_PAUSE_S


class Comparator:
    """The comparator's work on one ring after the other."""

    def __init__(self, supervisor: Channel, disagreements: Disagreements) -> None:
        self._supervisor = supervisor
        self._disagreements = disagreements
        # Changed by step: the number of pairs that could not be read, and when the next log line is due.
        self._num_unreadable = 0
        self._quiet_until_s = 0.0

    def step(self, ring: ByteRingReader) -> int:
        """Compare pairs that are in the ring, for about STEP_S; returns their number."""
        number, begun_s = 0, time.monotonic()
        end_s, settles_s = begun_s + STEP_S, begun_s + SETTLE_S
        for memory in ring.read():
            number += 1
            if ring.was_begun_last:  # the last process may have died of this pair, and this one must not
                copied = memoryview(bytes(memory))
                self._settle(ring)
                self._handle(self._disagreements.drop, copied)
                continue
            ring.begin()
            self._handle(self._disagreements.take, memory)
            now_s = time.monotonic()
            if now_s > end_s:
                break
            if now_s > settles_s:
                self._settle(ring)
                settles_s = now_s + SETTLE_S
        self._settle(ring)
        return number

    def _handle(self, handle: Callable[[memoryview], None], memory: memoryview) -> None:
        try:
            handle(memory)
        except (EntryError, ShoalError, ValueError) as error:
            self._complain(error)

    def _settle(self, ring: ByteRingReader) -> None:
        """Send the supervisor the findings, and free the room of the compared pairs, so that a successor does not
        compare them again."""
        with suppress(*GONE):  # `RingLoop.run` finds by itself that the supervisor is gone
            for message in self._disagreements.reports():
                self._supervisor.send(message)
        ring.acknowledge()

    def _complain(self, error: Exception) -> None:
        self._num_unreadable += 1
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + COMPLAINT_S
            _log.error("two answers cannot be compared: %s; %d such pairs so far", error, self._num_unreadable)


def main() -> int:
    """Run the process; returns its exit status."""
    joined = join_supervisor("comparator", to_comparator.ComparatorConnected(), to_comparator.COMPARATOR_WELCOME)
    if joined is None:
        return 0
    supervisor, welcome = joined
    disagreements = Disagreements(welcome.rules)
    comparator = Comparator(supervisor, disagreements)
    own = table(on(to_comparator.ComparisonsChanged, lambda message: disagreements.change(message.rules)))
    with supervisor:
        RingLoop(supervisor, own, comparator.step).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The recorder: writes what requests were, and how they ended, out of shared memory into files. `python -m
shoal.recorder.main`.

    batcher ── entries, in a ring ──► recorder ── files
    supervisor ── rings ──► recorder

The process runs while requests are recorded. No process waits for it: what the ring has no room for is dropped by the
batcher, and counted. No bell is rung for it either: it looks into the ring from time to time, so that it takes many
entries at once and costs a batcher that is busy nothing.
"""

import faulthandler
import logging
import select
import sys
import time
from pathlib import Path

from shoal import control, log
from shoal.control import GONE, Channel
from shoal.messages import to_recorder
from shoal.messages.message import Kinds, on, table
from shoal.messages.shared import LogChanged
from shoal.process import die_with_parent, ignore_group_signals, set_title
from shoal.recorder.folder import RecordingFolder
from shoal.recorder.tail import Tail
from shoal.shm.byte_ring import ByteRingReader
from shoal.shm.layout import LayoutError
from shoal.shm.segment import Segment, SegmentView

# Not __name__: run with -m, this module is __main__, and the log is configured for shoal.
_log = logging.getLogger("shoal.recorder.main")

#: Pauses between looks into the ring (ours): after entries were found, and the longest, doubled from one to the other.
#: The ring takes 300 MB/s for as long as the longest one.
SHORT_PAUSE_S, LONG_PAUSE_S = 0.02, 0.2


class Recorder:
    """The recorder's loop."""

    def __init__(self, supervisor: Channel, tail: Tail) -> None:
        self._supervisor = supervisor
        self._tail = tail
        self.handlers = table(
            on(to_recorder.RingAdded, self._add),
            on(to_recorder.BoundChanged, lambda message: tail.folder.bound(message.max_bytes)),
            on(LogChanged, lambda message: log.configure(**message.settings)),
        )
        # Changed by messages and by the loop: rings by number, in the order of their batchers.
        self._rings: dict[int, ByteRingReader] = {}

    def run(self) -> None:
        """Record until the supervisor closes the connection, and then what is left in the rings."""
        kinds, poller, pause_s = Kinds(*self.handlers), select.epoll(), SHORT_PAUSE_S
        poller.register(self._supervisor.fileno(), select.EPOLLIN)
        try:
            while True:
                if poller.poll(pause_s):
                    message, seq = self._supervisor.receive(kinds)
                    self.handlers[type(message)](message)
                    self._supervisor.acknowledge(seq)
                pause_s = SHORT_PAUSE_S if self._look() else min(2 * pause_s, LONG_PAUSE_S)
        except GONE:
            self._look()
            self._tail.close()

    def _add(self, message: to_recorder.RingAdded) -> None:
        recorders = Segment.attach(message.recorders)
        self._rings[message.number] = ByteRingReader(recorders, SegmentView.attach(message.segment))

    def _look(self) -> int:
        """Take what is in the rings; returns the number of entries. A ring behind which there is another is done."""
        found = 0
        for number, ring in tuple(self._rings.items()):
            try:
                found += self._tail.step(ring)
            except LayoutError as error:
                _log.error("the rest of what a batcher has recorded is lost: %s", error)
                ring.skip()
            if number != max(self._rings):
                del self._rings[number]
                self._supervisor.send(to_recorder.RingDrained(number))
        return found


def main() -> int:
    """Run the process; returns its exit status."""
    die_with_parent()
    faulthandler.enable()
    set_title("recorder")
    ignore_group_signals()
    try:
        supervisor = control.join(to_recorder.RecorderConnected())
        welcome, _ = supervisor.receive(to_recorder.RECORDER_WELCOME)
    except GONE:
        return 0  # the supervisor is gone, or nothing is recorded any more
    log.describe("recorder")
    log.configure(**welcome.log)
    folder = RecordingFolder(Path(welcome.folder), welcome.max_bytes, welcome.max_age_s, time.time)
    with supervisor:
        Recorder(supervisor, Tail(folder, welcome.redact, time.monotonic_ns)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The recorder: writes what requests were, and how they ended, out of shared memory into files. `python -m
shoal.recorder.main`.

    batcher ── entries, in a ring ──► recorder ── files
    supervisor ── rings ──► recorder

The process runs while requests are recorded; ring_loop.py has its loop.
"""

import sys
import time
from pathlib import Path

from shoal.control import Channel
from shoal.messages import to_recorder
from shoal.messages.message import on, table
from shoal.process_start import join_supervisor
from shoal.recorder.folder import RecordingFolder
from shoal.recorder.ring_loop import RingLoop
from shoal.recorder.tail import Tail


class Losses:
    """The supervisor's knowledge of requests that could not be written."""

    def __init__(self, supervisor: Channel, tail: Tail) -> None:
        self._supervisor = supervisor
        self._tail = tail
        self._num_reported = 0  # changed by report

    def report(self) -> None:
        """Send the supervisor how many requests have been lost since the last call, if any were."""
        if self._tail.num_lost > self._num_reported:
            self._supervisor.send(to_recorder.RequestsLost(self._tail.num_lost - self._num_reported))
            self._num_reported = self._tail.num_lost


def main() -> int:
    """Run the process; returns its exit status."""
    joined = join_supervisor("recorder", to_recorder.RecorderConnected(), to_recorder.RECORDER_WELCOME)
    if joined is None:
        return 0
    supervisor, welcome = joined
    folder = RecordingFolder(Path(welcome.folder), welcome.max_bytes, welcome.max_age_s, time.time)
    tail = Tail(folder, welcome.redact, time.monotonic_ns)
    own = table(on(to_recorder.BoundChanged, lambda message: folder.bound(message.max_bytes)))
    losses = Losses(supervisor, tail)
    with supervisor:
        RingLoop(supervisor, own, tail.step, losses.report).run()
    tail.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

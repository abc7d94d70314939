"""The recorder: writes what requests were, and how they ended, out of shared memory into files. `python -m
shoal.recorder.main`.

    batcher ── entries, in a ring ──► recorder ── files
    supervisor ── rings ──► recorder

The process runs while requests are recorded; ring_loop.py has its loop.
"""

import faulthandler
import sys
import time
from pathlib import Path

from shoal import control, log
from shoal.control import GONE
from shoal.messages import to_recorder
from shoal.messages.message import on, table
from shoal.process import die_with_parent, ignore_group_signals, set_title
from shoal.recorder.folder import RecordingFolder
from shoal.recorder.ring_loop import RingLoop
from shoal.recorder.tail import Tail


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
    tail = Tail(folder, welcome.redact, time.monotonic_ns)
    own = table(on(to_recorder.BoundChanged, lambda message: folder.bound(message.max_bytes)))
    with supervisor:
        RingLoop(supervisor, own, tail.step).run()
    tail.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

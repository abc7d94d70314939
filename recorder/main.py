"""The recorder: reads requests and outcomes from shared memory and writes them into files.
`python -m shoal.recorder.main`.

    batcher ── entries, in a ring ──► recorder ── files
    supervisor ── the ring of each new batcher ──► recorder

The process runs while requests are recorded; ring_loop.py has its loop.
"""

import sys
import time
from pathlib import Path

from shoal.messages import to_recorder
from shoal.messages.message import on, table
from shoal.process_start import join_supervisor
from shoal.recorder.folder import RecordingFolder
from shoal.recorder.recorder import Recorder
from shoal.recorder.ring_loop import RingLoop


def main() -> int:
    """Run the process; returns its exit status."""
    joined = join_supervisor("recorder", to_recorder.RecorderConnected(), to_recorder.RECORDER_WELCOME)
    if joined is None:
        return 0
    supervisor, welcome = joined
    folder = RecordingFolder(Path(welcome.folder), welcome.max_bytes, welcome.max_age_s, time.time)
    recorder = Recorder(folder, welcome.redact, time.monotonic_ns)
    own = table(on(to_recorder.BoundChanged, lambda message: folder.bound(message.max_bytes)))
    num_reported = 0

    def report_losses() -> None:
        nonlocal num_reported
        if recorder.num_lost > num_reported:
            supervisor.send(to_recorder.RequestsLost(recorder.num_lost - num_reported))
            num_reported = recorder.num_lost

    with supervisor:
        RingLoop(supervisor, own, recorder.step, report_losses).run()
    recorder.write_deaths()
    folder.end_file()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""supervisor/signals.py: SIGHUP reads again, and ends a server whose terminal has gone."""

import os
import pty
import select
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.signals import Signals
loop = EventLoop()
said = os.fdopen(int(sys.argv[1]), "wb", 0)
signals = Signals(loop, lambda: None, lambda: said.write(b"again\\n"), lambda: None)
signals.watch()
signals.first.add_done_callback(lambda done: (said.write(b"ends %d\\n" % done.result()), loop.stop()))
said.write(b"ready\\n")
loop.run()
"""


def start(terminal: int | None, *, ignores: bool = False) -> "tuple[subprocess.Popen[bytes], int]":
    """A process with the signals, in a session of its own, and where it says what they have done."""
    reading, writing = os.pipe()
    prelude = "import os, fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n" if terminal is not None else ""
    # The tests may have been started to ignore it themselves, which is inherited.
    prelude += f"import signal; signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignores else 'SIG_DFL'})\n"
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + SCRIPT, str(writing)],
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    assert heard(reading) == b"ready\n"
    return process, reading


def heard(reading: int) -> bytes:
    assert select.select([reading], [], [], 60)[0]
    return os.read(reading, 100)


@pytest.mark.parametrize("ignores", [False, True])
def test_a_hangup_by_kill_reads_again(ignores: bool) -> None:
    process, reading = start(None, ignores=ignores)
    process.send_signal(signal.SIGHUP)
    assert heard(reading) == b"again\n"
    process.kill()
    process.wait()
    os.close(reading)


@pytest.mark.parametrize(("ignores", "said"), [(False, b"ends 1\n"), (True, b"again\n")], ids=["shell", "nohup"])
def test_a_hangup_of_the_terminal(ignores: bool, said: bytes) -> None:
    ours, theirs = pty.openpty()
    process, reading = start(theirs, ignores=ignores)
    os.close(theirs)
    process.send_signal(signal.SIGHUP)
    assert heard(reading) == b"again\n"
    os.close(ours)
    assert heard(reading) == said
    process.kill()
    process.wait()
    os.close(reading)

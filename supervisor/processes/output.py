"""What a worker writes to stdout and stderr: read at once, passed on by the line within a budget, its end remembered.

User code may print without end; neither the log nor a full pipe shall suffer for it, and where our own output goes into
a pipe that is not read, the supervisor does not wait for its workers' sake. Runs in the supervisor.
"""

import fcntl
import logging
import os
import sys
import termios
from typing import IO

from shoal import log
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.children import Child

_log = logging.getLogger(__name__)

#: Passed on of one worker in a second; the rest is dropped and counted (ours: 5 GB a day at most).
BYTES_PER_S = 64 * 1024
#: A longer line is broken.
MAX_LINE_BYTES = 16 * 1024
#: Kept of stderr for the account of a death: a stack dump of faulthandler's has some 60 bytes per frame.
TAIL_BYTES = 4096

_SECOND_NS = 1_000_000_000
_READ_BYTES = 65536


class Lines:
    """One process's streams: bytes in, whole lines out, as many as the second's budget takes. Pure."""

    def __init__(self, num_streams: int) -> None:
        # Changed by feed: the begun line of each stream.
        self._begun = [b""] * num_streams
        self._second_ends_ns = 0
        self._num_left = 0
        # Changed by feed and take_dropped.
        self.num_dropped = 0

    def feed(self, stream: int, data: bytes, now_ns: int, room: int = sys.maxsize) -> bytes:
        """What is to be passed on, `room` bytes at most, now that `data` has come; b"" is the end of the stream."""
        begun = self._begun[stream] + data
        whole, newline, rest = begun.rpartition(b"\n")
        whole += newline
        if rest and (not data or len(rest) > MAX_LINE_BYTES):
            whole, rest = begun + b"\n", b""
        self._begun[stream] = rest
        return self._admit(whole, now_ns, room) if whole else b""

    def take_dropped(self, now_ns: int) -> int:
        """How many lines the second that is over has cost; 0 while it lasts."""
        if now_ns < self._second_ends_ns:
            return 0
        count, self.num_dropped = self.num_dropped, 0
        return count

    def _admit(self, lines: bytes, now_ns: int, room: int) -> bytes:
        if now_ns >= self._second_ends_ns:
            self._second_ends_ns = now_ns + _SECOND_NS
            self._num_left = BYTES_PER_S
        admitted, most = lines, min(self._num_left, room)
        if len(lines) > most:
            admitted = lines[: lines.rfind(b"\n", 0, most) + 1]
            self.num_dropped += lines.count(b"\n", len(admitted))
            self._num_left = len(admitted)  # one gap a second, not one at each long line
        self._num_left -= len(admitted)
        return admitted


def room_of(file: IO[str]) -> int:
    """How much of workers' output it takes before any of them waits: of a pipe half, the rest is for our own log."""
    try:
        capacity = fcntl.fcntl(file.fileno(), fcntl.F_GETPIPE_SZ)
        unread = fcntl.ioctl(file.fileno(), termios.FIONREAD, bytes(4))
    except OSError:
        return sys.maxsize  # a file, a terminal, or nothing that has a descriptor
    return max(0, capacity // 2 - int.from_bytes(unread, sys.byteorder))


class ChildOutput:
    """Both streams of one worker, between its start and its end."""

    def __init__(self, loop: EventLoop, name: str, child: Child) -> None:
        self._loop = loop
        self._name = name
        self._pipes = child.outputs
        self._lines = Lines(len(self._pipes))
        # Changed by _read: the last of stderr, and the streams that have not ended.
        self._tail = b""
        self._is_open = [False] * len(self._pipes)

    @property
    def tail(self) -> str:
        """The last that came from stderr."""
        return self._tail.decode("utf-8", "replace")

    def start(self) -> None:
        """Begin to read."""
        for stream, pipe in enumerate(self._pipes):
            os.set_blocking(pipe.fileno(), False)
            self._is_open[stream] = True
            self._loop.on_readable(pipe.fileno(), lambda stream=stream: self._read(stream))  # type: ignore[misc]

    def finish(self) -> None:
        """The process has ended: read what it left, and close. A process of its own that still writes is cut off."""
        for stream, pipe in enumerate(self._pipes):
            # As much as a pipe holds; a child of the worker's that writes on must not keep us here.
            for _ in range(2):
                if self._is_open[stream]:
                    self._read(stream)
            if self._is_open[stream]:
                self._take(stream, b"")
                self._close(stream, pipe)
        self._log_dropped(sys.maxsize)

    def _read(self, stream: int) -> None:
        pipe = self._pipes[stream]
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if stream:
            self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._take(stream, data)
        if not data:
            self._close(stream, pipe)

    def _take(self, stream: int, data: bytes) -> None:
        now_ns = int(self._loop.now_s() * 1e9)
        self._log_dropped(now_ns)
        had_dropped = self._lines.num_dropped
        file = (sys.stdout, sys.stderr)[stream]
        passed_on = self._lines.feed(stream, data, now_ns, room_of(file))
        if passed_on and not log.put(file, passed_on, patience_ms=0):
            self._lines.num_dropped += passed_on.count(b"\n")
        if self._lines.num_dropped and not had_dropped:
            self._loop.call_after(1.0, lambda: self._log_dropped(int(self._loop.now_s() * 1e9)))

    def _log_dropped(self, now_ns: int) -> None:
        if num_dropped := self._lines.take_dropped(now_ns):
            _log.warning(
                "worker %s writes more than %d bytes a second, or than the log takes: %d lines were dropped",
                self._name, BYTES_PER_S, num_dropped,
            )  # fmt: skip

    def _close(self, stream: int, pipe: IO[bytes]) -> None:
        self._is_open[stream] = False
        self._loop.forget(pipe.fileno())
        pipe.close()

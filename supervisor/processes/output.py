"""Workers' stdout and stderr: read at once, logged line by line within a budget; the end of stderr is kept.

User code may print without end; neither the log nor a full pipe may suffer for it. Where the supervisor's own output
goes into a pipe that is not read, the supervisor does not wait on its workers' account. Runs in the supervisor.
"""

import fcntl
import logging
import os
import sys
import termios
import time
from collections.abc import Mapping
from typing import IO

from shoal import log
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.children import Child

_log = logging.getLogger(__name__)

#: Bytes of one worker's output that are passed on in a second (ours; 5 GB a day); lines beyond are dropped and counted.
BYTES_PER_S = 64 * 1024
#: A longer line is passed on in several lines.
MAX_LINE_BYTES = 16 * 1024
#: Bytes of stderr kept for the report of a death: a stack dump of faulthandler's has some 60 bytes per frame.
TAIL_BYTES = 4096

_SECOND_NS = 1_000_000_000
_READ_BYTES = 65536


class Lines:
    """The output streams of one process: bytes in, whole lines out, as many as a second's budget takes. Pure."""

    def __init__(self, num_streams: int) -> None:
        # Changed by feed: the unfinished line of each stream; the end of the present second, and the bytes that may
        # still be passed on in it.
        self._begun = [b""] * num_streams
        self._second_ends_ns = 0
        self._num_left = 0
        # Lines dropped and not reported yet. Changed by feed and take_dropped.
        self.num_dropped = 0

    def feed(self, stream: int, data: bytes, now_ns: int, room: int = sys.maxsize) -> bytes:
        """Add data of a stream (b"" is its end); returns the lines to pass on, at most `room` bytes."""
        begun = self._begun[stream] + data
        whole, newline, rest = begun.rpartition(b"\n")
        whole += newline
        if rest and (not data or len(rest) > MAX_LINE_BYTES):
            whole, rest = begun + b"\n", b""
        self._begun[stream] = rest
        return self._admit(whole, now_ns, room) if whole else b""

    def take_dropped(self, now_ns: int) -> int:
        """The number of lines dropped in the second that is over; 0 while the second lasts."""
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
            self._num_left = len(admitted)  # nothing more in this second: one gap, not one at each long line
        self._num_left -= len(admitted)
        return admitted


def room_of(file: IO[str]) -> int:
    """Bytes of workers' output that a file takes without blocking: half of a pipe, as the rest is for the log."""
    try:
        capacity = fcntl.fcntl(file.fileno(), fcntl.F_GETPIPE_SZ)
        unread = fcntl.ioctl(file.fileno(), termios.FIONREAD, bytes(4))
    except OSError:
        return sys.maxsize  # a file, a terminal, or an object without a descriptor
    return max(0, capacity // 2 - int.from_bytes(unread, sys.byteorder))


class ChildOutput:
    """Both output streams of one worker, from its start to its end. `fields` go into its lines in the JSON format."""

    def __init__(self, loop: EventLoop, name: str, child: Child, fields: Mapping[str, str] | None = None) -> None:
        self._loop = loop
        self._name = name
        self._child = child
        self._fields = fields or {"instance": name}
        self._pipes = child.outputs
        self._lines = Lines(len(self._pipes))
        # Changed by _read: the end of stderr, and which streams have not ended.
        self._tail = b""
        self._is_open = [False] * len(self._pipes)

    @property
    def tail(self) -> str:
        """The last bytes of stderr, as text."""
        return self._tail.decode("utf-8", "replace")

    def start(self) -> None:
        for stream, pipe in enumerate(self._pipes):
            os.set_blocking(pipe.fileno(), False)
            self._is_open[stream] = True
            self._loop.on_readable(pipe.fileno(), lambda stream=stream: self._read(stream))  # type: ignore[misc]

    def finish(self) -> None:
        """Read the rest of an ended process's output, and close its streams. A child of it that still writes is cut
        off."""
        for stream, pipe in enumerate(self._pipes):
            # At most a full pipe: a child of the worker that goes on writing must not delay the supervisor.
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
        if passed_on and log.is_json():
            passed_on = self._as_json(stream, passed_on)
        if passed_on and not log.put(file, passed_on, patience_ms=0):
            self._lines.num_dropped += passed_on.count(b"\n")
        if self._lines.num_dropped and not had_dropped:
            self._loop.call_after(1.0, lambda: self._log_dropped(int(self._loop.now_s() * 1e9)))

    def _as_json(self, stream: int, lines: bytes) -> bytes:
        """A model's printed lines in the JSON format; lines of the worker's own log have that format already."""
        fields = {"process": "worker", "pid": self._child.pid, **self._fields, "stream": ("stdout", "stderr")[stream]}
        level = ("info", "warning")[stream]
        now_s = time.time()
        return b"".join(
            line
            if line.startswith(log.JSON_START)
            else log.json_line(now_s, level, fields, line.decode("utf-8", "replace").rstrip("\n")).encode() + b"\n"
            for line in lines.splitlines(keepends=True)
        )

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

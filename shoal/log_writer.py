"""The writer of log lines, one for each output stream of a process: a slow or stopped reader of the log never stops the
process.

A pipe or terminal is opened a second time, in non-blocking mode, since the descriptor that a process inherits belongs
to its parent, too; a socket (journald's) is sent to without blocking. Nothing is kept for later: lines that cannot be
written are lost, and the caller counts them. Imports nothing of Shoal.
"""

import os
import select
import socket
import stat
import time
from collections.abc import Callable

#: The most ms that a process waits for its log's reader in any second (ours): a burst of lines is not lost to a reader
#: that is slow for a moment, and a reader that has stopped costs the process a tenth of its time at most.
PATIENCE_MS = 100
#: The most bytes of one write: all of them. A line of one write stays in one piece, in a file always and in a pipe that
#: has room for it; with several writes, other processes' lines came between the parts of a line (a ledger has 6 KB).
_WHOLE = 1 << 30
#: Bytes that a pipe with room takes without waiting (pipe(7)), though its descriptor blocks.
_PART_THAT_DOES_NOT_BLOCK = select.PIPE_BUF

UNREAD = "was not read"


class PatientWriter:
    """Writes to one descriptor, whatever it refers to at each write: a file, a pipe, a socket or a terminal."""

    def __init__(self, fd: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._fd = fd
        self._now_s = now_s
        # Changed by the methods, as are the fields below.
        #: Why data were lost last: "was not read", or "could not be written (No space left on device)".
        self.problem = ""
        self._file = (0, 0)  # the device and inode that the descriptor referred to last
        self._own_fd = -1
        self._write: Callable[[bytes], int] = self._write_if_ready
        self._part = 0  # the most bytes of one write
        self._second_ends_s = 0.0
        self._left_ms = PATIENCE_MS

    def write(self, data: bytes, patience_ms: int = PATIENCE_MS) -> bool:
        """Write data; False if all or the rest is lost: the reader has stopped or gone, or the disk is full.

        Waits for room no longer than `patience_ms`, nor than what is left of PATIENCE_MS in this second.
        """
        try:
            self.follow()
            while data:
                try:
                    data = data[self._write(data[: self._part]) :]
                except BlockingIOError:
                    if not self._wait(patience_ms):
                        self.problem = UNREAD
                        return False
        except OSError as error:
            self.problem = f"could not be written ({error.strerror or error})"
            return False
        return True

    def close(self) -> None:
        """Close the second descriptor; the next write opens it again."""
        if self._own_fd >= 0:
            os.close(self._own_fd)
        self._own_fd, self._file = -1, (0, 0)

    def follow(self) -> None:
        """Choose how to write if the descriptor refers to another file than before: at the first call, or after a
        zygote's child, or --log-file, has redirected it. Opens a pipe or terminal a second time. Raises OSError if the
        descriptor is closed."""
        found = os.fstat(self._fd)
        if (found.st_dev, found.st_ino) == self._file:
            return
        self.close()
        self._write, self._part = self._write_if_ready, _PART_THAT_DOES_NOT_BLOCK
        if stat.S_ISREG(found.st_mode):
            self._write, self._part = self._write_to_file, _WHOLE
        elif stat.S_ISSOCK(found.st_mode):
            self._write, self._part = self._send, _WHOLE
        elif stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode):
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._own_fd = os.open(f"/proc/self/fd/{self._fd}", flags)
            except OSError:  # no /proc, another user's terminal, or no descriptor left
                self._own_fd = -1
            else:
                self._write, self._part = self._write_to_own, _WHOLE
        self._file = found.st_dev, found.st_ino

    def _write_to_file(self, data: bytes) -> int:
        return os.write(self._fd, data)

    def _write_to_own(self, data: bytes) -> int:
        return os.write(self._own_fd, data)

    def _send(self, data: bytes) -> int:
        with socket.socket(fileno=os.dup(self._fd)) as sending:
            return sending.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _write_if_ready(self, data: bytes) -> int:
        # Another process may take the room first, and this write then waits for the reader: the last resort.
        if not self._poll(0):
            raise BlockingIOError
        return os.write(self._fd, data)

    def _wait(self, patience_ms: int) -> bool:
        """Whether there is room, perhaps after a wait: at most `patience_ms`, or what is left of PATIENCE_MS in this
        second."""
        begun_s = self._now_s()
        if begun_s >= self._second_ends_s:
            self._second_ends_s, self._left_ms = begun_s + 1.0, PATIENCE_MS
        has_room = self._poll(max(0, min(patience_ms, self._left_ms)))
        self._left_ms -= round((self._now_s() - begun_s) * 1000)
        return has_room

    def _poll(self, timeout_ms: int) -> bool:
        room = select.poll()
        room.register(self._fd, select.POLLOUT)
        return bool(room.poll(timeout_ms))


_WRITERS: dict[int, PatientWriter] = {}


def writer_of(fd: int) -> PatientWriter:
    """The log writer of this process to a descriptor."""
    found = _WRITERS.get(fd)
    if found is None:
        found = _WRITERS[fd] = PatientWriter(fd)
    return found

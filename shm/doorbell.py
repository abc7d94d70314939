"""A doorbell: "look at your rings". An eventfd, pollable beside sockets; it carries no information but that.

Rung once per published group of records, always: the system call is also the memory barrier between the store of a
tail and the reader's look at it, so there is no "asleep" flag to race with (a store followed by a load of another word
is reordered even by x86). 0.3 µs when nobody waits.

A reader waits for edges (EPOLLET): each ring since its last wait ends the next one, and nothing need be cleared, which
saves a system call per wake. One that waits otherwise clears the bell first and looks at its rings second.
"""

import os
import socket
from contextlib import suppress

#: Answers of a worker wait at most this long for others before it rings for all of them, or until the end of the
#: execution that it is at: a ring for each would cost more than an execution that short (measured, with eight identity
#: requests in the ring: 2.3 times).
RING_AFTER_NS = 100_000
#: How long a guest waits before it looks at its deadlines again (ours).
WAIT_S = 0.05
_WAIT = (0).to_bytes(8, "little") + round(WAIT_S * 1e6).to_bytes(8, "little")
#: Rings that are taken at once: mostly there is one, and a larger buffer takes longer to make.
_MANY = 64
# Plain numbers: two members of an enum take 8 µs to be joined.
_AT_ONCE = int(socket.MSG_DONTWAIT)
_RING = _AT_ONCE | int(socket.MSG_NOSIGNAL)


class Doorbell:
    """Either end of one bell; owns its descriptor."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> "Doorbell":
        """A new bell, silent."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def fileno(self) -> int:
        """For selectors: readable while the bell has rung and was not cleared."""
        return self.fd

    def ring(self) -> None:
        """Wake the reader. Cannot block: where somebody has run the count up to 2^64, it begins again."""
        try:
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            self.clear()
            with suppress(BlockingIOError):
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Silence the bell, for who does not wait for edges; the caller looks at its rings after this, never before."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptor back; it goes with the bell at the latest."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class GuestBell:
    """One end of the two bells between the batcher and a client that is no process of ours: ring to be heard there,
    clear what was rung here.

    A socket: who shares an eventfd can make it block for everybody, since O_NONBLOCK belongs to the open file, not to
    the process. 1 µs instead of 0.3.
    """

    __slots__ = ("_socket", "fd")

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _WAIT)
        self.fd = fd

    @classmethod
    def pair(cls) -> "tuple[GuestBell, GuestBell]":
        """Both ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one.detach()), cls(other.detach())

    def fileno(self) -> int:
        """For selectors: readable while the other end has rung and this one was not cleared, and once that is gone."""
        return self.fd

    def ring(self) -> None:
        """Wake the other end. Where nothing fits into the socket it has been rung; where nobody reads, nobody hears."""
        try:
            self._socket.send(b"\0", _RING)
        except (BlockingIOError, ConnectionError):
            return

    def clear(self) -> None:
        """Silence this end; the caller looks at its rings after this, never before."""
        try:
            while len(self._socket.recv(_MANY, _AT_ONCE)) == _MANY:
                continue
        except (BlockingIOError, ConnectionError):
            return

    def wait(self) -> bool:
        """Until the other end rings, but no longer than WAIT_S; silences this end. False where nobody will ring again.

        One system call, which select would double. For a thread that has nothing else to wait for.
        """
        try:
            return bool(self._socket.recv(_MANY))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def hang_up(self) -> None:
        """Wake whoever waits at either end; nothing is heard here any more. For any thread, unlike `close`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end has gone

    def close(self) -> None:
        """Give the descriptor back; it goes with the bell at the latest."""
        self.fd = -1
        self._socket.close()

    __del__ = close

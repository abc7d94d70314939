"""A doorbell wakes a process to look at its rings: an eventfd, pollable together with sockets, that carries no other
information.

A doorbell is rung for every published group of records, whether its reader sleeps or not: the system call is also the
memory barrier between the store of a tail and the reader's load of that tail. A flag "asleep" would be a race, since
even x86 reorders a store with a later load of another word. Ringing takes 0.3 µs if no process waits.

A reader that waits for edges (EPOLLET) need not clear the bell, which saves a system call per wake: if the bell has
rung since the reader's last wait, the next wait ends at once. Any other reader clears the bell first and looks at its
rings second.
"""

import os
import socket
from contextlib import suppress

from shoal.fault import IS_ARMED, reached

#: How long (ns) a worker's responses wait for further ones before one ring announces all of them; the end of the
#: running execution rings, too. With a ring for each response, short executions would cost more (measured with eight
#: requests to the identity model in the ring: 2.3 times as much).
RING_AFTER_NS = 100_000
#: How long (s) a guest waits before it checks its deadlines again (ours).
WAIT_S = 0.05
_WAIT = (0).to_bytes(8, "little") + round(WAIT_S * 1e6).to_bytes(8, "little")
#: Most bytes that one `recv` reads: usually one ring, a byte, has come, and a larger buffer takes longer to allocate.
_MANY = 64
# MSG_DONTWAIT as an int: joining two members of an enum takes 8 µs.
_AT_ONCE = int(socket.MSG_DONTWAIT)
_RING = _AT_ONCE | int(socket.MSG_NOSIGNAL)


class Doorbell:
    """Either end of a bell, the ringing process's or the reader's. Owns a descriptor of the eventfd, closed with the
    object."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> "Doorbell":
        """A new bell, not rung."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def fileno(self) -> int:
        """For selectors: readable while the bell has rung and was not cleared."""
        return self.fd

    def ring(self) -> None:
        """Wake the reader. Never blocks: a count that has reached 2^64 - 2 is cleared first."""
        try:
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            self.clear()
            with suppress(BlockingIOError):
                os.eventfd_write(self.fd, 1)
        if IS_ARMED:
            reached("rung")

    def clear(self) -> None:
        """Undo all rings so far, for a reader that does not wait for edges; the reader looks at its rings after this
        call, never before."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor at once instead of with the last reference to the object."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class GuestBell:
    """One end of the two bells between the batcher and a guest: `ring` wakes the other end, `clear` undoes the other
    end's rings.

    The two ends are a socket pair: a process that shares an eventfd can make its peer's calls block, since O_NONBLOCK
    belongs to the open file, not to the process. A ring takes 1 µs instead of 0.3.
    """

    __slots__ = ("_socket", "fd")

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _WAIT)
        self.fd = fd

    @classmethod
    def pair(cls) -> "tuple[GuestBell, GuestBell]":
        """Two connected ends: the batcher's and the guest's. Each owns its descriptor."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one.detach()), cls(other.detach())

    def fileno(self) -> int:
        """For selectors: readable while rung by the other end and not cleared, and once the other end is closed."""
        return self.fd

    def ring(self) -> None:
        """Wake the other end. Never blocks: a full socket means that the other end has been rung already; a closed one
        is ignored."""
        try:
            self._socket.send(b"\0", _RING)
        except (BlockingIOError, ConnectionError):
            return

    def clear(self) -> None:
        """Undo the other end's rings; the process looks at its rings in shared memory after this call, never before."""
        try:
            while len(self._socket.recv(_MANY, _AT_ONCE)) == _MANY:
                continue
        except (BlockingIOError, ConnectionError):
            return

    def wait(self) -> bool:
        """Wait until the other end rings, for at most WAIT_S seconds, and clear the bell. False once the other end is
        closed.

        A single system call, where select would need two. For a thread that waits for nothing else.
        """
        try:
            return bool(self._socket.recv(_MANY))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def hang_up(self) -> None:
        """Wake waiting threads at both ends and make the bell unusable. May be called by any thread, unlike `close`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end is closed

    def close(self) -> None:
        """Close the descriptor at once instead of with the last reference to the object."""
        self.fd = -1
        self._socket.close()

    def __del__(self) -> None:
        self.close()

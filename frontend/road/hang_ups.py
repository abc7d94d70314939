"""Clients that hang up while the road waits for an answer to them: one epoll for all of them, in a thread of its own.

As on the lane: from whoever is gone comes a reset, and the request is cancelled. The end of what a client sends may
mean that it has gone, or that it has closed its side only: a model that is at work is told, and the client is asked.
Whoever still reads passes over an interim answer (RFC 9110, section 15.2), from whoever is gone comes a reset. Not
asked are clients of HTTP/1.0, who know no interim answers (the same section), and those whose answer has begun.
"""

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from shoal.frontend.response import CONTINUE

_GONE = select.EPOLLHUP | select.EPOLLERR


class Caller:
    """The connection that a request came in by; `can_be_asked` says whether an interim answer may be sent on it now."""

    def __init__(self, connection: socket.socket, can_be_asked: Callable[[], bool]) -> None:
        self._connection = connection
        self._can_be_asked = can_be_asked

    def fileno(self) -> int:
        """For epoll."""
        return self._connection.fileno()

    def ask(self) -> None:
        """Whether it is still there. Only the thread that will answer it may ask it."""
        # It would block where the client has not read the answers before; then it is not asked.
        if self._can_be_asked() and select.select([], [self._connection], [], 0)[1]:
            with suppress(OSError):  # it is gone; who watches it says so
                self._connection.sendall(CONTINUE)


#: The caller, where it may have hung up; None, where it has.
Tell = Callable[[Caller | None], None]


class HangUps:
    """Who is watched; `start` it once."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self._lock = threading.Lock()
        # Changed by watch, under the lock.
        self._watched: dict[int, tuple[Caller, Tell]] = {}

    def start(self) -> None:
        """Begin to listen, in a daemon thread of this process."""
        threading.Thread(target=self._listen, name="shoal-hang-ups", daemon=True).start()

    @contextmanager
    def watch(self, caller: Caller, tell: Tell) -> Iterator[None]:
        """Meanwhile, who waits for the answer is told, from another thread."""
        fd = caller.fileno()
        with self._lock:
            self._watched[fd] = caller, tell
            # An edge each: for the end of what it sends, for the reset. What it sends wakes nobody.
            self._poller.register(fd, select.EPOLLRDHUP | select.EPOLLET)
        try:
            yield
        finally:
            with self._lock:
                del self._watched[fd]
                self._poller.unregister(fd)

    def _listen(self) -> None:
        while True:
            self.step()

    def step(self, timeout_s: float | None = None) -> None:
        """Tell those whose clients have hung up."""
        for fd, _ in self._poller.poll(timeout_s):
            with self._lock:
                watched = self._watched.get(fd)
                if watched is not None:
                    caller, tell = watched
                    # Asked again: meanwhile the descriptor may have become another connection's.
                    event = _event(fd)
                    if event:
                        tell(None if event & _GONE else caller)


def _event(fd: int) -> int:
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    return next((event for _, event in poller.poll(0)), 0)

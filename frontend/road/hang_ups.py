"""Clients that hang up while the road waits for an answer to them: one epoll for all of them, in a thread of its own.

As on the lane, a client that is gone sends a reset, and its request is cancelled. The end of its stream may mean that
it has gone, or has closed its side only: the model at work is notified, and the client is probed. One that still reads
ignores an interim response (RFC 9110, section 15.2); one that is gone sends a reset. Clients of HTTP/1.0, which know no
interim responses (the same section), are not probed, nor those whose response has begun.
"""

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from shoal.frontend.response import CONTINUE

_GONE = select.EPOLLHUP | select.EPOLLERR


class Caller:
    """The connection of a request; `can_be_asked` says whether an interim response may be sent on it now."""

    def __init__(self, connection: socket.socket, can_be_asked: Callable[[], bool]) -> None:
        self._connection = connection
        self._can_be_asked = can_be_asked

    def fileno(self) -> int:
        """For epoll."""
        return self._connection.fileno()

    def ask(self) -> None:
        """Probe the client with an interim response. Only for the thread that will send the final one."""
        # A probe would block if the client has not read earlier responses; then it is left out.
        if self._can_be_asked() and select.select([], [self._connection], [], 0)[1]:
            with suppress(OSError):  # gone: the thread that watches the connection reports it
                self._connection.sendall(CONTINUE)


#: Called with the caller if it may have hung up, with None if it has.
Notify = Callable[[Caller | None], None]


class HangUps:
    """The watched connections; `start` it once."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self._lock = threading.Lock()
        # Changed by watch, under the lock.
        self._watched: dict[int, tuple[Caller, Notify]] = {}

    def start(self) -> None:
        """Start the watching thread, a daemon."""
        threading.Thread(target=self._listen, name="shoal-hang-ups", daemon=True).start()

    @contextmanager
    def watch(self, caller: Caller, notify: Notify) -> Iterator[None]:
        """Within the context, call `notify` from another thread when the caller hangs up."""
        fd = caller.fileno()
        with self._lock:
            self._watched[fd] = caller, notify
            # Edges only: for the end of the stream, and for the reset. Bytes wake no thread.
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
        """Report the clients that have hung up."""
        for fd, _ in self._poller.poll(timeout_s):
            with self._lock:
                watched = self._watched.get(fd)
                if watched is not None:
                    caller, notify = watched
                    # Checked again: the descriptor may have become another connection's.
                    event = _event(fd)
                    if event:
                        notify(None if event & _GONE else caller)


def _event(fd: int) -> int:
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    return next((event for _, event in poller.poll(0)), 0)

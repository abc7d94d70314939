"""Notices clients that hang up while the road works on their requests: one thread with one epoll watches all of them.

As on the lane, the request of a client that resets its connection is cancelled. A client that closes only its half of
the connection may be gone, or may still wait for the response: then the model at work is notified, and the client is
probed with an interim response (RFC 9110, section 15.2). A client that still reads ignores the probe; one that is gone
resets the connection. Not probed are clients of HTTP/1.0, which know no interim responses (same section), and clients
to which the response has begun to be sent.
"""

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from shoal.frontend.response import CONTINUE

_GONE = select.EPOLLHUP | select.EPOLLERR


class WatchedClient:
    """The client of a request, by its connection; `can_be_probed` says whether an interim response may be sent now."""

    def __init__(self, connection: socket.socket, can_be_probed: Callable[[], bool]) -> None:
        self._connection = connection
        self._can_be_probed = can_be_probed

    def fileno(self) -> int:
        return self._connection.fileno()

    def probe(self) -> None:
        """Probe the client with an interim response. Only for the thread that will send the final response."""
        # No probe if it would block, since the client has not read earlier responses.
        if self._can_be_probed() and events_of(self.fileno(), select.POLLOUT):
            with suppress(OSError):  # the client is gone: the thread that watches the connection reports it
                self._connection.sendall(CONTINUE)


#: A function that is called with a client that may have hung up, or with None if the client has hung up.
Notify = Callable[[WatchedClient | None], None]


class HangUps:
    """Watches the connections of clients, in a thread of its own, which `start` begins."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self._lock = threading.Lock()
        # Changed by watch, under the lock: by descriptor, each watched client and the function to call.
        self._watched: dict[int, tuple[WatchedClient, Notify]] = {}

    def start(self) -> None:
        threading.Thread(target=self._listen, name="shoal-hang-ups", daemon=True).start()

    @contextmanager
    def watch(self, client: WatchedClient, notify: Notify) -> Iterator[None]:
        """Within the context, `notify` is called from the watching thread when the client hangs up or may have hung up
        (see Notify); never if epoll takes no further descriptor."""
        fd = client.fileno()
        with self._lock, suppress(OSError):
            # Edge-triggered, for the end of the stream and for the reset; bytes that arrive wake no thread.
            self._poller.register(fd, select.EPOLLRDHUP | select.EPOLLET)
            self._watched[fd] = client, notify
        try:
            yield
        finally:
            with self._lock:
                if self._watched.pop(fd, None) is not None:
                    self._poller.unregister(fd)

    def _listen(self) -> None:
        while True:
            self.step()

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for hang-ups, for at most `timeout_s`, and report each to the function given to `watch`."""
        for fd, _ in self._poller.poll(timeout_s):
            with self._lock:
                watched = self._watched.get(fd)
                if watched is not None:
                    client, notify = watched
                    # Checked again, since another connection may have the descriptor by now.
                    event = events_of(fd, select.POLLRDHUP)
                    if event:
                        notify(None if event & _GONE else client)


def has_left(client: WatchedClient) -> bool:
    """Whether a client has gone: its connection has been reset, before or because of an interim response sent now."""
    event = events_of(client.fileno(), select.POLLRDHUP)
    if event and not event & _GONE:
        client.probe()
        event = events_of(client.fileno(), select.POLLRDHUP)
    return bool(event & _GONE)


def events_of(fd: int, events: int) -> int:
    """The `events` of a descriptor that are pending now, and its errors, as flags of poll. (select would not take
    descriptors above 1023.)"""
    poller = select.poll()
    poller.register(fd, events)
    return next((event for _, event in poller.poll(0)), 0)

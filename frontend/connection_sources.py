"""The sockets by which connections come to a lane and leave it: the listening sockets, and the two sockets for the
hand-over to and from the road. Never blocks."""

import os
import select
import socket
from contextlib import suppress
from typing import Any

from shoal.frontend import handover
from shoal.frontend.addressed_sockets import with_addresses

#: Most connections that are accepted at once: open connections must not wait long, and other lanes that have been woken
#: get some of the new ones.
MAX_ACCEPTED = 16

Arrival = tuple[socket.socket, bytes]


class ConnectionSources:
    """All sockets by which connections come to one lane and leave it, registered with its poller."""

    def __init__(self, poller: select.epoll, listeners: list[Any]) -> None:
        self._poller = poller
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._road = handover.Sender(socket.socket(fileno=int(os.environ["SHOAL_SEND_FD"])))
        # Without this variable, as on lanes for gRPC, connections do not come back from the road.
        returns = os.environ.get("SHOAL_RECEIVE_FD")
        self._returns = None if returns is None else socket.socket(fileno=int(returns))
        # The fields below are changed by every method.
        self._is_open = False
        self._is_road_watched = False

    def open(self) -> None:
        """Accept connections from now on. If the kernel watches no further descriptor, none are accepted until a later
        `resume` succeeds."""
        self._is_open = True
        try:
            for fd, listener in self._listeners.items():
                listener.setblocking(False)
                self._poller.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            if self._returns is not None:
                self._poller.register(self._returns.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)
        except OSError:
            self.pause()

    def pause(self) -> None:
        """Accept no connections for now; they wait in the kernel."""
        if self._is_open and self._listeners:
            self._is_open = False
            for fd in [*self._listeners, *([] if self._returns is None else [self._returns.fileno()])]:
                with suppress(FileNotFoundError):  # registering this socket had failed
                    self._poller.unregister(fd)

    def resume(self) -> None:
        """Accept connections again after `pause`; no effect after `close`."""
        if not self._is_open and self._listeners:
            self.open()

    def close(self) -> list[Arrival]:
        """Accept no more connections. Returns the connections that the kernel has accepted already: closing the
        listeners would reset these.

        Connections still come back from the road, until no lane is left to receive them.
        """
        last = []
        is_open, self._is_open = self._is_open, False
        # The listeners leave the poller first: no later connection wakes this lane alone, and connections that have
        # woken it are accepted below.
        for fd in self._listeners if is_open else ():
            self._poller.unregister(fd)
        for fd, listener in self._listeners.items():
            while arrivals := self.accept(fd):
                last += arrivals
            listener.close()
        self._listeners.clear()
        self._is_open = is_open
        return last

    def end(self) -> None:
        """End the hand-over from and to the road, after `close`."""
        self._road.close()
        if self._returns is not None:
            self._returns.close()

    def has(self, fd: int) -> bool:
        return fd in self._listeners or fd in (each.fileno() for each in (self._road, self._returns) if each)

    def is_listener(self, fd: int) -> bool:
        return fd in self._listeners

    def accept(self, fd: int) -> list[Arrival]:
        """Connections that have come through the socket with this descriptor; none for any other descriptor."""
        arrivals: list[Arrival] = []
        if self._returns is not None and fd == self._returns.fileno():
            while (received := handover.receive(self._returns)) is not None:
                arrivals.append(received)
            self._go_last(fd)
        elif fd == self._road.fileno():
            self._road.flush()
            self._watch_road()
        elif (listener := self._listeners.get(fd)) is not None:
            for _ in range(MAX_ACCEPTED):
                try:
                    accepted, _ = listener.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    break
                except OSError:  # no descriptor is left: the lane's next tick tries again
                    self.pause()
                    break
                arrivals.append((with_addresses(accepted), b""))
            self._go_last(fd)
        return arrivals

    def _go_last(self, fd: int) -> None:
        """Register a socket again, so that the next connection wakes another lane: the kernel would always wake the
        lane that was registered first. No connection is lost in between: a waiting connection wakes a lane that
        registers."""
        if self._is_open:
            self._poller.unregister(fd)
            try:
                self._poller.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            except OSError:  # the kernel watches no further descriptor: another process took the last place
                self.pause()

    @property
    def is_busy(self) -> bool:
        """Whether a connection is still on its way to the road."""
        return self._road.wants_to_write

    @property
    def waiting_nbytes(self) -> int:
        """Bytes of connections that are still on their way to the road."""
        return self._road.waiting_nbytes

    def hand_over(self, connection: socket.socket, data: bytes) -> None:
        """Hand a connection over to the road, with the bytes that were read from it."""
        connection.setblocking(True)
        self._road.send(connection, data)
        self._watch_road()

    def _watch_road(self) -> None:
        waits = self._road.wants_to_write
        if waits and not self._is_road_watched:
            try:
                self._poller.register(self._road.fileno(), select.EPOLLOUT)
            except OSError:  # the kernel watches no further descriptor: the next connection tries again
                return
        elif self._is_road_watched and not waits:
            self._poller.unregister(self._road.fileno())
        self._is_road_watched = waits

"""The loop of a lane: one thread that serves one protocol's connections, and waits for nothing but its epoll.

One pass of the loop handles all descriptors that are ready, of replies, connections and messages, and then wakes the
batcher once.
"""

import os
import resource
import select
import socket
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from shoal.frontend.connection_sources import ConnectionSources
from shoal.frontend.counted_warning import CountedWarning
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.standstill import standstill_s
from shoal.messages.to_client import (
    TO_CLIENT,
    ApiKeysChanged,
    CertificatesChanged,
    RegionRegistered,
    RegionUnregistered,
)
from shoal.star.place import REPLIES_FIRST

#: Open connections of one lane, at most (ours); further ones wait in the kernel.
MAX_CONNECTIONS = 10_000
#: Descriptors that the lane's connections leave free, for the lane's segments and clients' regions, and for connections
#: on their way to the road; if the process's limit of descriptors is low, half of the limit is left free (ours: under
#: the same limit, the supervisor starts workers for no more than a tenth of it, and admits regions for no more than a
#: quarter).
RESERVE = 4096
#: Seconds that a stopping lane leaves idle connections open, for requests that are on their way already.
LINGER_S: Final = 2.0
#: Seconds that a client may take for its first bytes, and for a head from its first byte on.
HEAD_S: Final = 10.0
HEAD_LATE = f"the head of the request has not come within {HEAD_S:g} s"
#: Seconds between two checks of deadlines while no event comes.
TICK_S: Final = 0.5

ConnectionT = TypeVar("ConnectionT")


def max_connections() -> int:
    """The most connections that this process may have open: its limit of descriptors less those in reserve."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, limit - reserve())


def reserve() -> int:
    """The number of descriptors that this process keeps free of connections."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return RESERVE if limit == resource.RLIM_INFINITY else min(limit // 2, RESERVE)


class GunicornHandle(NamedTuple):
    """The attributes of a lane's gunicorn worker that the lane uses."""

    listeners: list[Any]
    wakeup_fd: int  # readable when a signal has come
    is_alive: Callable[[], bool]
    notify: Callable[[], None]  # shows gunicorn's arbiter that this process is alive


class Lane(Generic[ConnectionT]):  # no ABC: it is compiled (tests/test_packaging.py)
    """The loop, and all connections of one process; each protocol has a subclass."""

    def __init__(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> None:
        self._front_end = front_end
        self._state = front_end.state
        self._place = front_end.place
        self._port = front_end.place.port
        self._wakeup_fd = gunicorn.wakeup_fd
        self._is_alive = gunicorn.is_alive
        self._notify = gunicorn.notify
        self._max_connections = max_connections()
        self._poller = select.epoll()
        self._sources = ConnectionSources(self._poller, gunicorn.listeners)
        # The fields below are changed by every pass of the loop.
        self._connections: dict[int, ConnectionT] = {}
        self.now_s = time.monotonic()  # when this pass began
        self._patience_s = TICK_S  # how long the next pass may wait for events
        self._stops_at_s = 0.0
        self._looked_s = 0.0  # while the lane stops: when the last pass began, to notice a standstill
        self._has_given_up = False
        self._unwatched = CountedWarning("connections that epoll does not watch, and that were closed: %d, the last: ")

    @abstractmethod
    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        """Take over a connection, new or back from the road, with the bytes that have been read from it already."""

    def _watch(self, accepted: socket.socket, connection: ConnectionT) -> bool:
        """Serve a connection from now on; its socket is `accepted`. False if the kernel watches no further descriptor
        (fs.epoll.max_user_watches): the connection is then closed."""
        try:
            self._poller.register(accepted.fileno(), select.EPOLLIN)
        except OSError as error:
            self._unwatched.add(self.now_s, str(error))
            accepted.close()
            return False
        self._connections[accepted.fileno()] = connection
        return True

    def _endpoint_of(self, accepted: socket.socket) -> str:
        """The name of the endpoint that a client has connected to; "" if the client is gone."""
        try:
            address, port = accepted.getsockname()[:2]
        except OSError:
            return ""
        return self._state.endpoint_at(address, port)

    @property
    def _head_ends_s(self) -> float:
        """The time by which a connection that begins in this pass must have sent its first bytes."""
        return self.now_s + (LINGER_S if self._stops_at_s else HEAD_S)

    @abstractmethod
    def _serve(self, connection: ConnectionT, event: int) -> None:
        """Handle an event of a connection."""

    @abstractmethod
    def _give_up(self, connection: ConnectionT) -> None:
        """Log the unexpected exception that is being handled, and close `connection`, whose service raised it, if it is
        still open."""

    @abstractmethod
    def _refuse_all(self) -> None:
        """Refuse all open requests with the error of ServerState.no_answer, since the server ends."""

    @abstractmethod
    def _deliver(self) -> None:
        """Turn all replies that have come into responses."""

    @abstractmethod
    def _tick(self) -> None:
        """Check deadlines; called every TICK_S."""

    @abstractmethod
    def _begin_to_stop(self) -> None:
        """Begin to stop: accept no more connections, and close idle ones after LINGER_S."""

    @abstractmethod
    def _forget_admitted(self) -> None:
        """Forget the kept requests: a repeated one would be recognised by its bytes and pass unchecked, but API keys
        have changed."""

    def _forget_regions(self) -> None:
        """Forget the templates of requests whose tensors lie in regions, since regions have changed."""

    def _renew_certificates(self) -> None:
        """Read the files with TLS certificates again, for connections from now on. No effect on a lane without TLS."""

    def _on_other(self, fd: int, event: int) -> None:
        """Handle an event of a descriptor that a subclass has registered and that belongs to no connection."""

    def _finish_pass(self) -> None:
        """Finish a pass of the loop, after all ready descriptors have been handled."""

    def run(self, graceful_timeout_s: float) -> None:
        """Serve until gunicorn's `is_alive` is false, then stop once no connection is left or `graceful_timeout_s` is
        over."""
        self._sources.open()
        self._poller.register(self._place.bell.fd, select.EPOLLIN | select.EPOLLET)
        for fd in (self._place.channel.fileno(), self._wakeup_fd):
            self._poller.register(fd, select.EPOLLIN)
        next_tick_s, slab = 0.0, self._port.slab
        while not self._is_done(graceful_timeout_s):
            events = self._poller.poll(self._patience_s)
            self.now_s = time.monotonic()
            others = []
            for fd, event in events:
                connection = self._connections.get(fd)
                if connection is None:
                    others.append((fd, event))
                else:
                    try:
                        self._serve(connection, event)
                    except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all of them
                        self._give_up(connection)
            # New connections come last: one could have the descriptor of a connection that was closed in this very
            # pass.
            for fd, event in others:
                self._dispatch(fd, event)
            self._finish_pass()
            self._port.flush()
            if slab.is_scarce:
                slab.prepare()
            if self.now_s >= next_tick_s:
                next_tick_s = self.now_s + TICK_S
                self._notify()
                if len(self._connections) < self._max_connections and not self._stops_at_s:
                    self._sources.resume()
                self._port.prepare()
                self._unwatched.log(self.now_s)
                self._tick()
        self._sources.end()

    def _is_done(self, graceful_timeout_s: float) -> bool:
        if self._is_alive():
            return False
        if not self._stops_at_s:
            self._stops_at_s = self.now_s + graceful_timeout_s
            self._begin_to_stop()
            for accepted, data in self._sources.close():
                self._add(accepted, data, is_new=True)
        else:
            self._stops_at_s += standstill_s(self._looked_s, self.now_s)
        self._looked_s = self.now_s
        if self._state.gives_up and not self._has_given_up:
            self._has_given_up = True
            self._stops_at_s = self.now_s + LINGER_S
            self._refuse_all()
            self._finish_pass()
        return self._is_idle or self.now_s >= self._stops_at_s

    @property
    def _is_idle(self) -> bool:
        """Whether a stopping lane has nothing left to wait for."""
        return not self._connections and not self._sources.is_busy

    def _dispatch(self, fd: int, event: int) -> None:
        if fd == self._place.bell.fd:
            self._deliver()
        elif fd == self._place.channel.fileno():
            self._receive_message()
        elif fd == self._wakeup_fd:
            self._drain_wakeup()
        elif self._sources.has(fd):
            is_new = self._sources.is_listener(fd)
            for accepted, data in self._sources.accept(fd):
                self._add(accepted, data, is_new=is_new)
            if len(self._connections) >= self._max_connections:
                self._sources.pause()
        else:
            self._on_other(fd, event)

    def _receive_message(self) -> None:
        message, seq = self._place.channel.receive(TO_CLIENT)
        if isinstance(message, REPLIES_FIRST):
            self._deliver()
        self._front_end.apply(message, seq)
        if isinstance(message, ApiKeysChanged):
            self._forget_admitted()
        elif isinstance(message, (RegionRegistered, RegionUnregistered)):
            self._forget_regions()
        elif isinstance(message, CertificatesChanged):
            self._renew_certificates()

    def _drain_wakeup(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wakeup_fd, 4096)

"""The supervisor's event loop: descriptors, timers, one thread. Nothing in it blocks longer than it is told to.

A callback belongs to the failure domain in which it is registered (failure_domains.py).
"""

import heapq
import itertools
import select
import time
from collections.abc import Callable

from shoal.supervisor.failure_domains import bound

#: A connection that cannot be accepted, as descriptors have run out, is tried again after this (ours).
ACCEPT_AGAIN_S = 0.5

Callback = Callable[[], None]


class EventLoop:
    """Callbacks for readable (and, on request, writable) descriptors and for points in monotonic time."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        # Changed by the methods below.
        self._readable: dict[int, Callback] = {}
        self._writable: dict[int, Callback] = {}
        self._timers: list[tuple[int, int, Callback]] = []
        self._order = itertools.count()
        self._running = False

    def on_readable(self, fd: int, callback: Callback) -> None:
        """Call back whenever `fd` can be read or has been hung up."""
        self._poller.register(fd, select.EPOLLIN)
        self._readable[fd] = bound(callback)

    def on_writable(self, fd: int, callback: Callback | None) -> None:
        """Call back, too, whenever `fd`, which is registered already, can be written; None ends that."""
        if callback is None:
            self._writable.pop(fd, None)
        else:
            self._writable[fd] = bound(callback)
        self._poller.modify(fd, select.EPOLLIN | (select.EPOLLOUT if callback else 0))

    def pause(self, fd: int, delay_s: float) -> None:
        """Let what can be read from `fd` wait for so long: there is no descriptor for what would come of it."""
        callback = self._readable[fd]
        self._poller.modify(fd, 0)

        def go_on() -> None:
            if self._readable.get(fd) is callback:
                self._poller.modify(fd, select.EPOLLIN)

        self.call_after(delay_s, go_on)

    def forget(self, fd: int) -> None:
        """No more callbacks for `fd`; call before closing it."""
        if self._readable.pop(fd, None) is not None:
            self._writable.pop(fd, None)
            self._poller.unregister(fd)

    def now_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def call_after(self, delay_s: float, callback: Callback) -> None:
        """Call back once, `delay_s` seconds from now."""
        due_ns = time.monotonic_ns() + int(delay_s * 1e9)
        heapq.heappush(self._timers, (due_ns, next(self._order), bound(callback)))

    def run(self) -> None:
        """Dispatch until `stop`."""
        self._running = True
        while self._running:
            timeout_s = -1.0
            if self._timers:
                timeout_s = max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)
            for fd, event in self._poller.poll(timeout_s):
                self._dispatch(fd, event)
            now_ns = time.monotonic_ns()
            while self._timers and self._timers[0][0] <= now_ns:
                heapq.heappop(self._timers)[2]()

    def _dispatch(self, fd: int, event: int) -> None:
        # An earlier callback of the same round may have forgotten the descriptor.
        if event & select.EPOLLOUT and fd in self._writable:
            self._writable[fd]()
        if event & ~select.EPOLLOUT and fd in self._readable:
            self._readable[fd]()

    def stop(self) -> None:
        """Return from `run` after this round."""
        self._running = False

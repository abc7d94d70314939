"""Signals of the supervisor: handlers only note the number, the event loop interprets it. Runs in the supervisor."""

import signal
import socket
from collections.abc import Callable

from shoal import log
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.processes.children import reap_orphans


class Signals:
    """SIGTERM and SIGINT resolve `first`, then `second`, with their number; SIGUSR1 goes to `on_usr1`; SIGCHLD has
    orphans waited for."""

    def __init__(self, loop: EventLoop, on_usr1: Callable[[], None]) -> None:
        self._loop = loop
        self._on_usr1 = on_usr1
        # Changed by handlers, and by watch and close.
        self.first: Future[int] = loop.future()
        self.second: Future[int] = loop.future()
        self._received: list[int] = []
        self._sockets: tuple[socket.socket, ...] = ()

    def watch(self) -> None:
        """Handle them from now on."""
        reading, writing = self._sockets = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda received, _frame: self._received.append(received))
        self._loop.on_readable(reading.fileno(), lambda: self._handle(reading))

    def close(self) -> None:
        """Stop handling signals: those that come from now on have no effect."""
        signal.set_wakeup_fd(-1)
        for each in self._sockets:
            each.close()

    def _handle(self, reading: socket.socket) -> None:
        reading.recv(4096)
        while self._received:
            number = self._received.pop(0)
            if number == signal.SIGCHLD:
                self._reap_orphans()
            elif number == signal.SIGUSR1:
                self._on_usr1()
            else:
                log.print_line(f"Signal ({number}) received.")  # Triton's line, no log line there either
                ending = self.second if self.first.done() else self.first
                if not ending.done():
                    ending.set_result(number)

    def _reap_orphans(self) -> None:
        if not reap_orphans():
            self._loop.call_after(0, self._reap_orphans)

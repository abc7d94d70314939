"""Signals of the supervisor: handlers only note the number, the event loop interprets it. Runs in the supervisor."""

import os
import signal
import socket
from collections.abc import Callable

from shoal import log
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.processes.children import reap_orphans

_HANDLED = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


class Signals:
    """The supervisor's signals: SIGTERM and SIGINT resolve `first`, then `second`, with their number; SIGUSR1 calls
    `on_usr1`, SIGHUP `on_hup`, SIGUSR2 `on_usr2`; for SIGCHLD orphans are waited for.

    SIGHUP also comes when the terminal has gone that the server was started from: then it ends the server, as SIGTERM
    does, unless the server was started to ignore it (nohup).
    """

    def __init__(
        self, loop: EventLoop, on_usr1: Callable[[], None], on_hup: Callable[[], None], on_usr2: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_usr1 = on_usr1
        self._on_hup = on_hup
        self._on_usr2 = on_usr2
        # Changed by handlers, and by watch and close.
        self._ends_with_terminal = False
        self.first: Future[int] = loop.future()
        self.second: Future[int] = loop.future()
        self._received: list[int] = []
        self._sockets: tuple[socket.socket, ...] = ()

    def watch(self) -> None:
        """Handle signals from now on."""
        reading, writing = self._sockets = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        self._ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()
        for number in _HANDLED:
            signal.signal(number, lambda received, _frame: self._received.append(received))
        self._loop.on_readable(reading.fileno(), lambda: self._handle(reading))

    @property
    def is_ending(self) -> bool:
        """Whether a signal has come that ends the server, handled or not yet."""
        return self.first.done() or not _ENDING.isdisjoint(self._received)

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
            elif number == signal.SIGUSR2:
                self._on_usr2()
            elif number == signal.SIGHUP and not (self._ends_with_terminal and not _has_terminal()):
                self._on_hup()
            else:
                # Triton's line, which Triton, too, prints outside its log.
                log.print_line(f"Signal ({number}) received.")
                ending = self.second if self.first.done() else self.first
                if not ending.done():
                    ending.set_result(number)

    def _reap_orphans(self) -> None:
        if not reap_orphans():
            self._loop.call_after(0, self._reap_orphans)


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal, which it loses when that is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return False
    return True

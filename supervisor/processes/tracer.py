"""The tracer's process: there while something is traced, started again when it dies, ended when nothing is traced.

    nothing traced ─first setting─► starting ─joined, told the settings─► collecting ─last setting is off─► ended

What front ends send lies in a socket that the supervisor keeps open, so they notice nothing of a tracer's death. Runs
in the supervisor.
"""

import dataclasses
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal.control import ADDRESS_VARIABLE
from shoal.messages.message import on, table
from shoal.messages.shared import LogChanged
from shoal.messages.to_tracer import TracerWelcomed, TracesCollected, TracingChanged
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.members import Acknowledgements, Member
from shoal.supervisor.processes.restarts import HEALTHY_AFTER_S, backoff_s
from shoal.tracer.command_line import TraceConfig
from shoal.tracer.settings import TraceSetting

_log = logging.getLogger(__name__)

#: Each tracer numbers its traces from a beginning of its own; the first one of a server from 1, as Triton.
NUMBER_BITS = 32
#: How long it may take to write and export the rest once nothing is traced any more (ours).
CLOSE_S = 5.0


class Tracer:
    """It, and the one after it. `on_collected` is told how many traces were counted under which setting."""

    def __init__(
        self,
        loop: EventLoop,
        control_address: str,
        log_settings: dict[str, Any],
        config: TraceConfig,
        acknowledgements: Acknowledgements,
        on_collected: Callable[[int, int], None],
    ) -> None:
        self._loop = loop
        self._control_address = control_address
        self._log_settings = log_settings
        self._config = config
        self._acknowledgements = acknowledgements
        self._on_collected = on_collected
        self._since_s = time.time()
        # Changed by set, and as it starts, joins and ends.
        self._settings: Sequence[TraceSetting] = ()  # those that are on
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._child: Child | None = None
        self._member: Member | None = None
        self._waiting: list[Callable[[], None]] = []  # until what is on is in force
        self._ending: set[Child] = set()  # hung up on, with something left to write
        self._on_closed: Callable[[], None] | None = None
        self._is_pausing = False  # before it is started again
        self._num_started = 0
        self._num_deaths = 0
        self._started_s = 0.0

    def inlet(self) -> int:
        """The descriptor that front ends send to, the same for as long as something is traced."""
        if self._sockets is None:
            self._sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return self._sockets[1].fileno()

    def set(self, settings: Sequence[TraceSetting], then: Callable[[], None]) -> None:
        """These are on from now; `then` when what is sent is collected under them, or nobody is there to do so."""
        self._settings = settings
        if self._member is not None:
            self._tell(self._member, then)
        elif settings and not self._is_pausing:
            self._waiting.append(then)
            if self._child is None:
                self._start()
        else:
            then()

    def configure_log(self) -> None:
        """The settings of the log have changed."""
        if self._member is not None:
            self._member.send(LogChanged(self._log_settings))

    def close(self, then: Callable[[], None]) -> None:
        """Nothing is traced any more; `then` when everything is written and exported, or has taken too long."""
        self._on_closed = then
        self.set((), lambda: None)
        if self._child is not None:
            self._watch_end(self._child)
        self._check_closed()

    # --- its life ---

    def _start(self) -> None:
        self._is_pausing = False
        if not self._settings:
            return
        self._started_s = self._loop.now_s()
        # numpy's BLAS would start threads at import.
        environment = {ADDRESS_VARIABLE: self._control_address, "OPENBLAS_NUM_THREADS": "1"}
        try:
            self._child = spawn(self._loop, "tracer", ["shoal.tracer.main"], environment)
        except OSError as error:
            self._pause(f"the tracer cannot be started: {error}")
        else:
            self._child.watch(self._exited)

    def join(self, member: Member) -> None:
        """It has imported what it needs."""
        if self._child is None or member.pid != self._child.pid:
            member.hang_up()
            return
        self.inlet()
        assert self._sockets is not None
        self._member = member
        member.listen(table(on(TracesCollected, self._on_traces)))
        first_number = self._num_started << NUMBER_BITS | 1
        options, resource, traces = self._config.options, self._config.resource, self._sockets[0].fileno()
        self._num_started += 1
        member.send(TracerWelcomed(self._log_settings, first_number, self._since_s, options, resource, traces))
        waiting, self._waiting = self._waiting, []
        self._tell(member, lambda: _call_all(waiting))

    def _tell(self, member: Member, then: Callable[[], None]) -> None:
        told = self._settings
        message = TracingChanged([dataclasses.asdict(each) for each in told])
        self._acknowledgements.announce([(member, message)], lambda: self._in_force(member, told, then))

    def _in_force(self, member: Member, told: Sequence[TraceSetting], then: Callable[[], None]) -> None:
        # Only when it has heard of nothing being traced it has written everything.
        if not told and not self._settings and member is self._member:
            self._end()
        then()

    def _end(self) -> None:
        """Nothing is traced: hang up, which it takes as the end."""
        ending, self._child = self._child, None
        member, self._member = self._member, None
        assert ending is not None
        assert member is not None
        assert self._sockets is not None
        self._watch_end(ending)
        member.hang_up()
        for each in self._sockets:
            each.close()
        self._sockets = None

    def _watch_end(self, child: Child) -> None:
        if child in self._ending:
            return

        def kill() -> None:
            if child in self._ending:
                _log.error("the tracer (pid %d) has not ended within %g s; it is killed", child.pid, CLOSE_S)
                child.signal(signal.SIGKILL)

        self._ending.add(child)
        self._loop.call_after(CLOSE_S, kill)

    def _exited(self, child: Child, code: int) -> None:
        self._ending.discard(child)
        if child is self._child:
            self._died(child, code)
        self._check_closed()

    def _check_closed(self) -> None:
        if self._on_closed is not None and self._child is None and not self._ending:
            then, self._on_closed = self._on_closed, None
            then()

    def _died(self, child: Child, code: int) -> None:
        self._child = None
        member, self._member = self._member, None
        if member is not None:
            member.hang_up()
        self._pause(f"the tracer (pid {child.pid}) {describe_exit(code)}")

    def _pause(self, what_happened: str) -> None:
        waiting, self._waiting = self._waiting, []
        _call_all(waiting)
        has_been_healthy = self._loop.now_s() - self._started_s >= HEALTHY_AFTER_S
        self._num_deaths = 1 if has_been_healthy else self._num_deaths + 1
        pause_s = backoff_s(self._num_deaths)
        _log.error("%s; it is started again in %g s", what_happened, pause_s)
        self._is_pausing = True
        self._loop.call_after(pause_s, self._start)

    def _on_traces(self, message: TracesCollected) -> None:
        for revision, count in message.counts:
            self._on_collected(revision, count)


def _call_all(waiting: Sequence[Callable[[], None]]) -> None:
    for then in waiting:
        then()

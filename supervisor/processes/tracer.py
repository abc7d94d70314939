"""The tracer's process: runs while something is traced, is started again when it dies, and ends when nothing is traced.

    nothing traced ─first setting─► starting ─joined, told the settings─► collecting ─last setting is off─► ended

What front ends send lies in a socket that the supervisor keeps open, so a tracer's death does not concern them. Runs in
the supervisor.
"""

import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence

from shoal.control import ADDRESS_VARIABLE
from shoal.messages.message import on, table
from shoal.messages.shared import LogChanged, LogSettings
from shoal.messages.to_tracer import TracerWelcomed, TracesCollected, TracingChanged
from shoal.open_files import explain
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop, Future, Task, first, shared
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.members import Acknowledgements, Member
from shoal.supervisor.processes.restarts import Pauses
from shoal.tracer.command_line import TraceConfig
from shoal.tracer.settings import TraceSetting

_log = logging.getLogger(__name__)

#: Each tracer numbers its traces from a start of its own; the first one of a server from 1, as Triton.
NUMBER_BITS = 32
#: How long a tracer may take to write and export the rest once nothing is traced any more (ours).
CLOSE_S = 5.0


class TracerProcess:
    """The tracer's process and its successors. `on_collected` gets a setting's revision and a number of traces."""

    def __init__(
        self,
        loop: EventLoop,
        control_address: str,
        log_settings: LogSettings,
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
        self._settings: Sequence[TraceSetting] = ()  # the settings that are on
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._child: Child | None = None
        self._member: Member | None = None
        self._ending: dict[Child, Task[None]] = {}  # tracers with something left to write, and at most CLOSE_S for that
        self._in_force: Future[None] = _done(loop)  # done when `_settings` are in force
        self._is_pausing = False  # the pause before the process is started again
        self._num_started = 0
        self._pauses = Pauses()

    def inlet(self) -> int:
        """The descriptor that front ends send traces to; stays as long as something is traced."""
        if self._sockets is None:
            self._sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return self._sockets[1].fileno()

    def set(self, settings: Sequence[TraceSetting]) -> Future[None]:
        """Put settings in force. The future is done when traces are collected under them, or no tracer runs."""
        self._settings = settings
        if self._member is not None:
            return self._send_settings(self._member)
        if not settings or self._is_pausing:
            return _done(self._loop)
        if self._child is None:
            self._start()
        return self._in_force

    def configure_log(self) -> None:
        """Send the tracer the changed log settings."""
        if self._member is not None:
            self._member.send(LogChanged(self._log_settings))

    async def close(self) -> None:
        """End tracing; returns when everything is written and exported, or has taken too long."""
        self.set(())
        if self._child is not None:
            self._watch_end(self._child)
        while self._ending:
            await first(*self._ending.values())

    # --- the process ---

    def _start(self) -> None:
        self._is_pausing = False
        if not self._settings:
            return
        self._in_force = self._loop.future()
        self._pauses.started(self._loop.now_s())
        # numpy's BLAS would start threads at import.
        environment = {ADDRESS_VARIABLE: self._control_address, "OPENBLAS_NUM_THREADS": "1"}
        try:
            self._child = spawn(self._loop, "tracer", ["shoal.tracer.main"], environment)
        except OSError as error:
            self._pause(f"the tracer cannot be started: {explain(error)}")
        else:
            self._loop.start(self._watch(self._child))

    async def _watch(self, child: Child) -> None:
        code = await shared(child.exited)
        if child is self._child:
            self._child = None
            member, self._member = self._member, None
            if member is not None:
                member.hang_up()
            self._pause(f"the tracer (pid {child.pid}) {describe_exit(code)}")

    def join(self, member: Member) -> None:
        """Take in the tracer, which has connected."""
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
        in_force = self._in_force
        self._loop.after(self._send_settings(member), lambda: _resolve(in_force))

    def _send_settings(self, member: Member) -> Task[None]:
        message = TracingChanged([each.fields for each in self._settings])
        acknowledged = self._acknowledgements.announce([(member, message)])
        return self._loop.start(self._await_tracer(member, self._settings, acknowledged))

    async def _await_tracer(self, member: Member, sent: Sequence[TraceSetting], acknowledged: Future[None]) -> None:
        """Await that a tracer has applied settings: it has written what came before, and collects under them."""
        await acknowledged
        if not sent and not self._settings and member is self._member:
            self._end()

    def _end(self) -> None:
        """Close the connection, which the tracer takes as its end: nothing is traced."""
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
        if child not in self._ending:
            self._ending[child] = self._loop.start(self._see_end(child))

    async def _see_end(self, child: Child) -> None:
        if not await first(child.exited, limit_s=CLOSE_S):
            _log.error("the tracer (pid %d) has not ended within %g s; it is killed", child.pid, CLOSE_S)
            child.signal(signal.SIGKILL)
            await first(child.exited)
        del self._ending[child]

    def _pause(self, what_happened: str) -> None:
        _resolve(self._in_force)
        pause_s = self._pauses.ended(self._loop.now_s())
        _log.error("%s; it is started again in %g s", what_happened, pause_s)
        self._is_pausing = True
        self._loop.call_after(pause_s, self._start)

    def _on_traces(self, message: TracesCollected) -> None:
        for revision, count in message.counts:
            self._on_collected(revision, count)


def _resolve(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _done(loop: EventLoop) -> Future[None]:
    done = loop.future()
    done.set_result(None)
    return done

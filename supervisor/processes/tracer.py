"""The tracer's process: runs while something is traced, is started again when it dies, and ends when nothing is traced.

    nothing traced ─first setting─► starting ─joined, told the settings─► collecting ─last setting is off─► ended

Traces from front ends wait in a socket that the supervisor keeps open, so front ends are not affected by a tracer's
death. Runs in the supervisor.
"""

import socket
import time
from collections.abc import Callable, Sequence

from shoal.messages.message import Handlers, on, table
from shoal.messages.to_tracer import TracerWelcomed, TracesCollected, TracingChanged
from shoal.supervisor.event_loop import Future, Task, first, resolve
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.children import Child
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.outside_process import OutsideProcess
from shoal.tracer.command_line import TraceConfig
from shoal.tracer.settings import TraceSetting

#: The first tracer numbers its traces from 1 on, as Triton does; each successor begins 2^NUMBER_BITS further on.
NUMBER_BITS = 32


class TracerProcess(OutsideProcess):
    """The tracer's process and its successors. `on_collected` gets a setting's revision and a number of traces."""

    def __init__(
        self, star: Star, control_address: str, config: TraceConfig, on_collected: Callable[[int, int], None]
    ) -> None:
        super().__init__(star, control_address, "tracer", "shoal.tracer.main")
        self._config = config
        self._on_collected = on_collected
        self._age_from_s = self._loop.now_s()
        # Changed by set, and as the process starts, joins and ends.
        self._since_s = time.time()  # the server's start; earlier where the clock was set back
        self._settings: Sequence[TraceSetting] = ()  # the settings that are on
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._ending: dict[Child, Task[None]] = {}  # tracers that have at most CLOSE_S to write what is left
        self._in_force: Future[None] = self._loop.done_future()  # done when `_settings` are in force
        self._num_started = 0

    @property
    def _is_needed(self) -> bool:
        return bool(self._settings)

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
            return self._loop.done_future()
        if self._child is None:
            self._start()
        return self._in_force

    async def close(self) -> None:
        """End tracing; returns when everything is written and exported, or has taken too long."""
        self.set(())
        if self._child is not None:
            self._watch_end(self._child)
        while self._ending:
            await first(*self._ending.values())

    # --- the process ---

    def _start(self) -> None:
        if self._is_needed:
            self._in_force = self._loop.future()
        super()._start()

    def _handlers(self) -> Handlers:
        return table(on(TracesCollected, self._on_traces))

    def _welcome(self, member: Member) -> None:
        self.inlet()
        assert self._sockets is not None
        first_number = self._num_started << NUMBER_BITS | 1
        options, resource, traces = self._config.options, self._config.resource, self._sockets[0].fileno()
        self._num_started += 1
        # By a clock that has been set back, files that an earlier tracer has written since are older than the server.
        self._since_s = min(self._since_s, time.time() - (self._loop.now_s() - self._age_from_s))
        member.send(TracerWelcomed(self._star.log_settings, first_number, self._since_s, options, resource, traces))
        in_force = self._in_force
        self._loop.after(self._send_settings(member), lambda: resolve(in_force, None))

    def _send_settings(self, member: Member) -> Task[None]:
        message = TracingChanged([each.fields for each in self._settings])
        acknowledged = self._star.acknowledgements.announce([(member, message)])
        return self._loop.start(self._await_tracer(member, self._settings, acknowledged))

    async def _await_tracer(self, member: Member, sent: Sequence[TraceSetting], acknowledged: Future[None]) -> None:
        """Await that a tracer has applied settings: it has written what came before, and collects under them."""
        await acknowledged
        if not sent and not self._settings and member is self._member:
            self._end()

    def _end(self) -> None:
        """Have the tracer end: nothing is traced."""
        assert self._child is not None
        assert self._sockets is not None
        self._watch_end(self._child)
        self._hang_up()
        for each in self._sockets:
            each.close()
        self._sockets = None

    def _watch_end(self, child: Child) -> None:
        if child not in self._ending:
            self._ending[child] = self._loop.start(self._see_end(child))

    async def _see_end(self, child: Child) -> None:
        await super()._see_end(child)
        del self._ending[child]

    def _hang_up(self) -> None:
        super()._hang_up()
        resolve(self._in_force, None)

    def _pause(self, what_happened: str) -> None:
        resolve(self._in_force, None)
        super()._pause(what_happened)

    def _on_traces(self, message: TracesCollected) -> None:
        for revision, count in message.counts:
            self._on_collected(revision, count)

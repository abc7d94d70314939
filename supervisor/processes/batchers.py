"""The batcher's processes: one active in the middle of the star, and one standing by to take its place.

    spawn ─► joined ─► standing by ─► active ─► ended, or silent and killed (silent_members.py) ─► spawn the next

A take-over by a process that has yet to start costs 15 ms where a zygote forks it and 0.3 s where it is exec'd, during
which no request is served; by one that stands by, less. The star sends a successor what it has to know. Runs in the
supervisor.
"""

import logging
import signal
from collections.abc import Callable

from shoal.control import ADDRESS_VARIABLE
from shoal.messages.message import MessageError
from shoal.open_files import explain, explain_start
from shoal.reasons import describe_exit
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future, first, shared
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.children import Child, ChildProgram
from shoal.supervisor.processes.death import OUT_OF_MEMORY
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.oom_kills import OomKills
from shoal.supervisor.processes.restarts import backoff_s
from shoal.supervisor.processes.zygotes import BASE, Zygotes

_log = logging.getLogger(__name__)

#: This many batchers may end by a fault of their own in a row, each within FAULT_S of becoming active: then the fault
#: is in what they are sent, and only a clean start removes it (ours).
MAX_FAULTS, FAULT_S = 3, 10.0


class Batchers:
    """Keeps a batcher active, and one standing by; `on_active` is called with each batcher that becomes active."""

    title = "the batcher"  # in the log

    def __init__(
        self,
        star: Star,
        zygotes: Zygotes,
        control_address: str,
        on_active: Callable[[Member], None],
        oom_kills: OomKills,
    ) -> None:
        self._loop = star.loop
        self._zygotes = zygotes
        self._program = ChildProgram("batcher", ["shoal.batcher.main"], {ADDRESS_VARIABLE: control_address})
        self._star = star
        self._on_active = on_active
        self._oom_kills = oom_kills
        # Changed as processes join and end.
        self.active: Member | None = None
        self._standby: Member | None = None
        self._num_faults = 0  # batchers' own faults in a row (MAX_FAULTS)
        self._num_refusals = 0  # refusals of a process or of memory by the system, in a row
        #: How many batchers have been active so far; each but the first was a successor.
        self.num_active = 0
        self._active_since_s = 0.0
        self._children: set[Child] = set()
        self._hopeless: Future[None] = star.loop.future()
        #: Done once `stop` has been called: no further process is started.
        self._stopping: Future[None] = star.loop.future()

    async def run(self) -> None:
        """Keep a batcher active. Returns when one after another has failed and no further one is tried."""
        self._loop.start(self._fill_place())
        await shared(self._hopeless)

    def start_standby(self) -> None:
        """From now on keep a second batcher ready: the server serves."""
        self._loop.start(self._fill_place())

    async def _fill_place(self) -> None:
        """Fill one of the two places for a batcher: whenever its process has ended, another is started."""
        while not self.is_stopping:
            with contained(self):
                await self._run_process()
            await first(self._stopping, limit_s=self._pause_s)

    async def _run_process(self) -> None:
        """Start a batcher's process, wait for its end, and handle that end."""
        num_oom_kills = self._oom_kills.count()
        try:
            child = self._zygotes.spawn(BASE, self._program)
            self._children.add(child)
            try:
                code = await shared(child.exited)
            finally:
                self._children.discard(child)
        except OSError as error:
            self._refused(f"no batcher can be started: {explain_start(error)}")
        else:
            is_oom_kill = code == -signal.SIGKILL and self._oom_kills.claim(num_oom_kills)
            self._leave(child, code, OUT_OF_MEMORY if is_oom_kill else "")

    def _refused(self, what_happened: str) -> None:
        self._num_refusals += 1
        _log.error("%s; it is tried again in %g s", what_happened, self._pause_s)

    @property
    def _pause_s(self) -> float:
        # A batcher that fails by itself fails again; the death of one that is killed says nothing about the next.
        return backoff_s(max(self._num_faults, self._num_refusals))

    def contain(self, _error: Exception) -> None:
        """Kill the active batcher after an unexpected error; another takes its place, unless too many have failed."""
        self._note_fault()
        for child in self._children:
            if self.active is not None and child.pid == self.active.pid:
                child.signal(signal.SIGKILL)

    def _on_malformed(self, error: MessageError) -> None:
        _log.error("a batcher has sent %s", error)
        self.contain(error)

    def _note_fault(self) -> None:
        is_new = self._loop.now_s() - self._active_since_s < FAULT_S
        self._num_faults = self._num_faults + 1 if is_new else 1
        if self._num_faults > MAX_FAULTS and not (self.is_stopping or self._hopeless.done()):
            self._hopeless.set_result(None)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.done()

    async def stop(self) -> None:
        """Close the connections of both batchers, which makes them end. Returns when the active one has ended."""
        self._stopping.set_result(None)
        pid = 0 if self.active is None else self.active.pid
        for member in (self._standby, self.active):
            if member is not None:
                member.hang_up()
        for child in self._children:
            if child.pid == pid:
                await first(child.exited)
                return

    def join(self, member: Member) -> None:
        """Take in a batcher that has finished its imports and waits for its first message."""
        member.domain = self
        member.on_malformed = self._on_malformed
        if self.is_stopping:
            member.hang_up()
        elif self.active is None:
            self._activate(member)
        elif self._standby is None:
            self._standby = member
        else:
            member.hang_up()

    def _activate(self, member: Member) -> None:
        """Make a batcher the active one. All messages that it needs are sent when this returns."""
        self.active = member
        self.num_active += 1
        self._active_since_s = self._loop.now_s()
        try:
            self._on_active(member)
        except (OutOfSharedMemoryError, OSError) as error:
            self._refused(f"the batcher (pid {member.pid}) cannot have its memory: {explain(error)}")
            member.hang_up()  # this batcher ends, and another is tried
            return
        self._num_refusals = 0

    def _leave(self, child: Child, code: int, cause: str) -> None:
        """Handle the end of a batcher's process; the standby has taken an active batcher's place when this returns."""
        if self._standby is not None and self._standby.pid == child.pid:
            self._standby.hang_up()
            self._standby = None
        elif self.active is not None and self.active.pid == child.pid:
            ended, self.active = self.active, None
            ended.hang_up()
            self._star.leave_batcher(ended)
            self._succeed(child, code, cause)

    def _succeed(self, child: Child, code: int, cause: str) -> None:
        if self.is_stopping:
            return
        _log.error("the batcher (pid %d) %s%s; another takes its place", child.pid, describe_exit(code), cause)
        if code > 0:
            self._note_fault()
        successor, self._standby = self._standby, None
        if successor is not None:
            self._activate(successor)

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
from shoal.supervisor.processes.restarts import HEALTHY_AFTER_S, backoff_s
from shoal.supervisor.processes.zygotes import BASE, Zygotes

_log = logging.getLogger(__name__)

#: This many batchers may end by a fault of their own in a row, each within FAULT_S of becoming active: then the fault
#: is in what they are sent, and only a clean start removes it (ours).
MAX_FAULTS, FAULT_S = 3, 10.0
#: The longest pause before another batcher is started while none is active (ours): no request is answered meanwhile.
MAX_PAUSE_S = 2.0

#: Signals by which a process ends for a fault of its own. SIGKILL is an operator's, the kernel's or the supervisor's.
_FAULT_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)


class Place:
    """One of the two places for batchers: a batcher is in each, and is the failure domain of what it causes here."""

    title = "the batcher"  # in the log

    def __init__(self, on_error: Callable[["Place"], None]) -> None:
        self._on_error = on_error
        # Changed as processes start, become active and end.
        self.child: Child | None = None
        self.started_s = 0.0
        self.num_failed = 0  # starts in a row, each within a minute of the last, after which no batcher became active

    def contain(self, _error: Exception) -> None:
        """Kill the batcher of this place after an unexpected error; another takes its place, unless too many have
        failed."""
        self._on_error(self)


class Batchers:
    """Keeps a batcher active, and one standing by; `on_active` is called with each batcher that becomes active."""

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
        self._num_refusals = 0  # refusals of memory by the system to batchers that became active, in a row
        #: How many batchers have been active so far; each but the first was a successor.
        self.num_active = 0
        self._active_since_s = 0.0
        self._places: list[Place] = []
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
        place = Place(self._fail)
        self._places.append(place)
        while not self.is_stopping:
            with contained(place):
                await self._run_process(place)
            await first(self._stopping, limit_s=self._pause_s(place))

    async def _run_process(self, place: Place) -> None:
        """Start a batcher's process, wait for its end, and handle that end."""
        num_oom_kills = self._oom_kills.count()
        place.child, place.started_s = None, self._loop.now_s()
        try:
            child = place.child = self._zygotes.spawn(BASE, self._program)
            code = await shared(child.exited)
        except OSError as error:
            place.num_failed += 1
            self._log_refusal(f"no batcher can be started: {explain_start(error)}", place)
        else:
            is_oom_kill = code == -signal.SIGKILL and self._oom_kills.claim(num_oom_kills)
            self._leave(place, child, code, OUT_OF_MEMORY if is_oom_kill else "")

    def _log_refusal(self, what_happened: str, place: Place) -> None:
        _log.error("%s; it is tried again in %g s", what_happened, self._pause_s(place))

    def _pause_s(self, place: Place) -> float:
        # A batcher that fails by itself fails again; the death of one that is killed says nothing about the next.
        pause_s = backoff_s(max(self._num_faults, self._num_refusals, place.num_failed))
        return pause_s if self.active is not None else min(pause_s, MAX_PAUSE_S)

    def _fail(self, place: Place) -> None:
        """Kill the batcher of a place after an unexpected error, which is a fault."""
        child = place.child
        self._note_fault(is_active=child is not None and self.active is not None and child.pid == self.active.pid)
        if child is not None:
            child.signal(signal.SIGKILL)
        if child is None or child.is_over:
            place.num_failed += 1  # no end of a process follows, which would be counted

    def _on_malformed(self, error: MessageError, place: Place) -> None:
        _log.error("a batcher has sent %s", error)
        place.contain(error)

    def _note_fault(self, *, is_active: bool) -> None:
        """Count a fault of the active batcher, or of one while none is active: the server cannot go on without one."""
        if self.active is not None and not is_active:
            return
        is_next = not is_active or self._loop.now_s() - self._active_since_s < FAULT_S
        self._num_faults = self._num_faults + 1 if is_next else 1
        if self._num_faults > MAX_FAULTS and not (self.is_stopping or self._hopeless.done()):
            self._hopeless.set_result(None)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.done()

    async def stop(self) -> None:
        """Close the connections of both batchers, which makes them end. Returns when the active one has ended."""
        self._stopping.set_result(None)
        place = None if self.active is None else self._place_of(self.active)
        for member in (self._standby, self.active):
            if member is not None:
                member.hang_up()
        if place is not None and place.child is not None:
            await first(place.child.exited)

    def _place_of(self, member: Member) -> Place | None:
        """The place of a batcher that runs; None of any other process, and of one that has ended."""
        running = [each for each in self._places if each.child is not None and not each.child.is_over]
        return next((each for each in running if each.child and each.child.pid == member.pid), None)

    def join(self, member: Member) -> None:
        """Take in a batcher that has finished its imports and waits for its first message. Any other process, and a
        second connection of a batcher, is disconnected."""
        place = self._place_of(member)
        if place is None or self.is_stopping or any(each and each.pid == member.pid for each in self._joined):
            member.hang_up()
            return
        member.domain = place
        member.on_malformed = lambda error: self._on_malformed(error, place)
        if self.active is None:
            self._activate(member, place)
        else:
            self._standby = member

    @property
    def _joined(self) -> tuple[Member | None, Member | None]:
        return self.active, self._standby

    def _activate(self, member: Member, place: Place) -> None:
        """Make a batcher the active one. All messages that it needs are sent when this returns."""
        self.active = member
        self.num_active += 1
        self._active_since_s = self._loop.now_s()
        with contained(place):
            try:
                self._on_active(member)
            except (OutOfSharedMemoryError, OSError) as error:
                self._num_refusals += 1
                self._log_refusal(f"the batcher (pid {member.pid}) cannot have its memory: {explain(error)}", place)
                member.hang_up()  # this batcher ends, and another is tried
            else:  # a message for which no descriptor is left closes the connection
                self._num_refusals = 0 if member.is_open else self._num_refusals + 1

    def _leave(self, place: Place, child: Child, code: int, cause: str) -> None:
        """Handle the end of a batcher's process; the standby has taken an active batcher's place when this returns."""
        is_fault = code > 0 or -code in _FAULT_SIGNALS
        if self.active is not None and self.active.pid == child.pid:
            ended, self.active = self.active, None
            ended.hang_up()
            place.num_failed = 0
            self._star.leave_batcher(ended)
            self._succeed(child, code, cause, is_fault=is_fault)
            return
        if self._standby is not None and self._standby.pid == child.pid:
            self._standby.hang_up()
            self._standby = None
        has_lasted = self._loop.now_s() - place.started_s >= HEALTHY_AFTER_S
        place.num_failed = 1 if has_lasted else place.num_failed + 1
        if not self.is_stopping:
            if is_fault:
                self._note_fault(is_active=False)
            _log.error(
                "a batcher (pid %d) %s%s before it was active; another is started in %g s",
                child.pid, describe_exit(code), cause, self._pause_s(place),
            )  # fmt: skip

    def _succeed(self, child: Child, code: int, cause: str, *, is_fault: bool) -> None:
        if self.is_stopping:
            return
        _log.error("the batcher (pid %d) %s%s; another takes its place", child.pid, describe_exit(code), cause)
        if is_fault:
            self._note_fault(is_active=True)
        successor, self._standby = self._standby, None
        if successor is not None and (place := self._place_of(successor)) is not None:
            self._activate(successor, place)

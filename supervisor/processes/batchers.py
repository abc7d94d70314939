"""The batcher's processes: one in the middle of the star, one standing by, imported and waiting to take its place.

    spawn ─► joined ─► standing by ─► active ─► ended, or silent for a second and killed ─► spawn the next

A take-over by a process that has yet to start costs 15 ms where a zygote forks it and 0.3 s where it is exec'd, during
which nobody is served; by one that stands by, less. What a successor is told is the star's business. Runs in the
supervisor.
"""

import logging
import signal
from collections.abc import Callable

from shoal.control import ADDRESS_VARIABLE
from shoal.messages.shared import Ping
from shoal.reasons import describe_exit
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.failure_domains import run_in
from shoal.supervisor.processes.children import Child, Program
from shoal.supervisor.processes.members import Acknowledgements, Member
from shoal.supervisor.processes.restarts import backoff_s
from shoal.supervisor.processes.silence import Silence, observe
from shoal.supervisor.processes.zygotes import Zygotes

_log = logging.getLogger(__name__)

#: Batchers that may end by a fault of their own, one after the other, each within FAULT_S of becoming active: the fault
#: is in what they are told then, and only a clean start rids the server of it (ours).
MAX_FAULTS, FAULT_S = 3, 10.0
#: The active one, and one to follow it.
NUM_BATCHERS = 2
#: An active batcher is asked for a sign of life so often, and ended when it has given none for so long though it could
#: (silence.py): nobody is served meanwhile, and no request fails for it (ours; requests are delayed by 1.5 s at most
#: where there are cores enough).
PING_S, SILENCE_S = 0.5, 1.0


class Batchers:
    """Keeps an active one and one to follow it.

    `on_active` is called with each that takes the place, `on_inactive` when it has ended, `on_hopeless` when no further
    one will be tried.
    """

    def __init__(
        self,
        loop: EventLoop,
        zygotes: Zygotes,
        control_address: str,
        acknowledgements: Acknowledgements,
        *,
        on_active: Callable[[Member], None],
        on_inactive: Callable[[Member], None],
        on_hopeless: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._zygotes = zygotes
        self._control_address = control_address
        self._acknowledgements = acknowledgements
        self._on_active = on_active
        self._on_inactive = on_inactive
        self._on_hopeless = on_hopeless
        # Changed as processes join and end. Nobody is spawned any more once `is_stopping`.
        self.active: Member | None = None
        self._standby: Member | None = None
        self._num_faults = 0
        self._num_refusals = 0  # of the system, one after the other: of a process, or of memory
        #: How many have been active so far; each but the first took a dead one's place.
        self.num_active = 0
        self._active_since_s = 0.0
        self._silence = Silence(0.0)
        self._children: set[Child] = set()
        self.is_stopping = False

    def start(self) -> None:
        """Start a batcher; it joins, and becomes what is missing. Where the system refuses, it is tried again."""
        run_in(self, self._start)

    def _start(self) -> None:
        if self.is_stopping or len(self._children) >= NUM_BATCHERS:
            return
        program = Program("batcher", ["shoal.batcher.batcher"], {ADDRESS_VARIABLE: self._control_address})
        try:
            child = self._zygotes.spawn("batcher", program)
        except OSError as error:
            self._refused(f"no batcher can be started: {error}")
            self._start_later()
            return
        self._children.add(child)
        child.watch(self._exited)

    def _refused(self, what_happened: str) -> None:
        self._num_refusals += 1
        _log.error("%s; it is tried again in %g s", what_happened, self._pause_s)

    @property
    def _pause_s(self) -> float:
        # One that fails by itself does so again; one that is killed says nothing about the next.
        return backoff_s(max(self._num_faults, self._num_refusals))

    def _start_later(self) -> None:
        self._loop.call_after(self._pause_s, self.start)

    @property
    def title(self) -> str:
        """For the log."""
        return "the batcher"

    def contain(self, _error: Exception) -> None:
        """As a failure domain: the active one ends, and another takes its place, unless that fails time and again."""
        self._note_fault()
        if self.active is not None and any(child.pid == self.active.pid for child in self._children):
            self._kill(self.active.pid)
        else:
            self._start_later()

    def _note_fault(self) -> None:
        is_new = self._loop.now_s() - self._active_since_s < FAULT_S
        self._num_faults = self._num_faults + 1 if is_new else 1
        if self._num_faults > MAX_FAULTS and not self.is_stopping:
            self._on_hopeless()

    def stop(self) -> None:
        """Have both end; `on_inactive` is called when the active one has."""
        self.is_stopping = True
        for member in (self._standby, self.active):
            if member is not None:
                member.hang_up()

    def join(self, member: Member) -> None:
        """A batcher has imported all it needs and waits for its first message."""
        member.domain = self
        if self.is_stopping:
            member.hang_up()
        elif self.active is None:
            self._activate(member)
        elif self._standby is None:
            self._standby = member
        else:
            member.hang_up()

    def _activate(self, member: Member) -> None:
        self.active = member
        self.num_active += 1
        self._active_since_s = self._loop.now_s()
        self._silence = Silence(self._active_since_s)
        try:
            self._on_active(member)
        except (OutOfSharedMemoryError, OSError) as error:
            self._refused(f"the batcher (pid {member.pid}) cannot have its memory: {error}")
            member.hang_up()  # it ends, and another is tried
            return
        self._num_refusals = 0
        self._silence.look(self._loop.now_s(), observe(member.pid))  # what it computed before does not count
        self._hear()

    def watch(self) -> None:
        """From now on, end an active batcher that does not turn its loop."""
        self._hear()
        self._look(self._loop.now_s())

    def _look(self, due_s: float) -> None:
        now_s = self._loop.now_s()
        if not self.is_stopping:  # first: an error in this look must not be the end of all others
            self._loop.call_after(PING_S, lambda: self._look(now_s + PING_S))
        if now_s - due_s > PING_S:
            self._hear()  # this process itself was held up, and with it perhaps the machine: nobody is to blame
        if self.active is not None:
            if self._silence.look(now_s, observe(self.active.pid)) >= SILENCE_S:
                _log.error("the batcher (pid %d) has not moved for %g s; it is killed", self.active.pid, SILENCE_S)
                self._hear()
                self._kill(self.active.pid)
            else:
                self._acknowledgements.announce([(self.active, Ping())], self._hear)

    def _kill(self, pid: int) -> None:
        for child in self._children:
            if child.pid == pid:
                child.signal(signal.SIGKILL)

    def _hear(self) -> None:
        self._silence.hear(self._loop.now_s())

    def _exited(self, child: Child, code: int) -> None:
        self._children.discard(child)
        try:
            self._leave(child, code)
        finally:
            self._start_later()

    def _leave(self, child: Child, code: int) -> None:
        if self._standby is not None and self._standby.pid == child.pid:
            self._standby.hang_up()
            self._standby = None
        elif self.active is not None and self.active.pid == child.pid:
            ended, self.active = self.active, None
            ended.hang_up()
            self._on_inactive(ended)
            self._succeed(child, code)

    def _succeed(self, child: Child, code: int) -> None:
        if self.is_stopping:
            return
        _log.error("the batcher (pid %d) %s; another takes its place", child.pid, describe_exit(code))
        if code > 0:
            self._note_fault()
        successor, self._standby = self._standby, None
        if successor is not None:
            self._activate(successor)

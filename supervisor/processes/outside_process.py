"""A process outside the star, and its successors: the tracer, the recorder, the comparator. Runs in the supervisor.

    need ─► spawned ─joined, welcomed─► working ─it dies─► pause ─► spawned …

The process takes orders from the supervisor alone (shoal/process_start.py), and is started again as long as there is
need.
"""

import logging
import signal
from abc import ABC, abstractmethod

from shoal.control import ADDRESS_VARIABLE
from shoal.messages.message import Handlers
from shoal.messages.shared import LogChanged
from shoal.open_files import explain_start
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import first, shared
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.restarts import Pauses

_log = logging.getLogger(__name__)

#: How long the process may take to end once it is told to (ours): it writes, exports or reads the rest.
CLOSE_S = 5.0


class OutsideProcess(ABC):
    """The process of one role. A subclass says when it is needed, and what it is sent."""

    def __init__(
        self, star: Star, control_address: str, role: str, module: str, *, has_low_priority: bool = False
    ) -> None:
        self._loop = star.loop
        self._star = star
        self._control_address = control_address
        self._role = role
        self._module = module
        self._has_low_priority = has_low_priority
        # Changed as the process starts, joins and ends.
        self._child: Child | None = None
        self._member: Member | None = None
        self._is_pausing = False  # before the process is started again
        self._pauses = Pauses()

    @property
    @abstractmethod
    def _is_needed(self) -> bool:
        """Whether there is work for the process."""

    @abstractmethod
    def _handlers(self) -> Handlers:
        """The handlers of the process's messages."""

    @abstractmethod
    def _welcome(self, member: Member) -> None:
        """Send the process, which has connected, its first messages."""

    def configure_log(self) -> None:
        if self._member is not None:
            self._member.send(LogChanged(self._star.log_settings))

    def join(self, member: Member) -> None:
        """Take in the process, which has connected."""
        if self._child is None or member.pid != self._child.pid:
            member.hang_up()
            return
        self._member = member
        member.listen(self._handlers())
        self._welcome(member)

    def _start(self) -> None:
        self._is_pausing = False
        if not self._is_needed or self._child is not None:
            return
        self._pauses.started(self._loop.now_s())
        # numpy's BLAS would start threads at import.
        environment = {ADDRESS_VARIABLE: self._control_address, "OPENBLAS_NUM_THREADS": "1"}
        try:
            self._child = spawn(
                self._loop, self._role, [self._module], environment, has_low_priority=self._has_low_priority
            )
        except OSError as error:
            self._pause(f"the {self._role} cannot be started: {explain_start(error)}")
        else:
            self._loop.start(self._watch(self._child))

    async def _watch(self, child: Child) -> None:
        code = await shared(child.exited)
        if child is self._child:
            self._hang_up()
            if self._is_needed:
                self._pause(f"the {self._role} (pid {child.pid}) {describe_exit(code)}")

    def _hang_up(self) -> None:
        """Close the connection, which ends the process if it runs."""
        self._child = None
        member, self._member = self._member, None
        if member is not None:
            member.hang_up()

    def _pause(self, what_happened: str) -> None:
        pause_s = self._pauses.ended(self._loop.now_s())
        _log.error("%s; it is started again in %g s", what_happened, pause_s)
        self._is_pausing = True
        self._loop.call_after(pause_s, self._start)

    async def _see_end(self, child: Child) -> None:
        """Return when a process that was told to end has done so; it is killed if that takes too long."""
        if not await first(child.exited, limit_s=CLOSE_S):
            _log.error("the %s (pid %d) has not ended within %g s; it is killed", self._role, child.pid, CLOSE_S)
            child.signal(signal.SIGKILL)
            await first(child.exited)

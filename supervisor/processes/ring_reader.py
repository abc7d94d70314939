"""A process that reads batchers' rings, and the rings: the recorder and the comparator. Runs in the supervisor.

    first rule ─► ring for the batcher, process starts ─joined, sent the rings─► reading ─last rule ends─► …
    a batcher dies ─► its successor has a ring of its own; the dead one's goes when the process has drained it
    the process dies ─► another is started, after a pause, and goes on where that one was

A server without rules has neither process nor ring. Once begun, it keeps its process until the server ends: what is
read is said by the rules that the batcher has.
"""

import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.control import ADDRESS_VARIABLE
from shoal.messages.message import Handlers, Message, on, table
from shoal.messages.shared import LogChanged, LogSettings
from shoal.messages.to_recorder import RingAdded, RingDrained
from shoal.open_files import explain
from shoal.reasons import describe_exit
from shoal.shm import layout, segment
from shoal.shm.layout import Geometry
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import EventLoop, first, shared
from shoal.supervisor.memory.participant import create_segment
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.restarts import Pauses

_log = logging.getLogger(__name__)

#: How long the process may take to read the rest once the server ends (ours).
CLOSE_S = 5.0
#: Owner id of segments whose memory no reference names.
_NO_OWNER = 0


@dataclass(slots=True)
class _Ring:
    """A batcher's ring: descriptors of both segments, writable for their owners."""

    number: int
    segment_fd: int
    readers_fd: int

    def close(self) -> None:
        os.close(self.segment_fd)
        os.close(self.readers_fd)


class RingReaderProcess(ABC):
    """The process of one kind, and its successors. A subclass says which program it is and what it and the batcher are
    sent."""

    def __init__(
        self, loop: EventLoop, control_address: str, log_settings: LogSettings, star: Star, role: str, module: str,
        ring_nbytes: int, *, gives_way: bool,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._control_address = control_address
        self.log_settings = log_settings
        self._star = star
        self._role = role
        self._module = module
        self._ring_nbytes = ring_nbytes
        self._gives_way = gives_way
        # Changed by follow, as batchers join, and as the process starts, joins and ends.
        self.rules: Sequence[tuple[Any, ...]] = ()
        self.member: Member | None = None
        self._batcher: Member | None = None  # the one that had a ring last
        self._rings: dict[int, _Ring] = {}
        self._num_rings = 0
        self._child: Child | None = None
        self._pauses = Pauses()
        self._is_closing = False

    @abstractmethod
    def _ring_made(self, segment_fd: int, readers_fd: int) -> Message:
        """The message that gives a batcher its ring."""

    @abstractmethod
    def _rules_changed(self) -> Message:
        """The message that tells a batcher the rules."""

    @abstractmethod
    def _welcome(self) -> Message:
        """The first message to the process."""

    def _handlers(self) -> Handlers:
        """The handlers of the process's own messages."""
        return {}

    def _follow(self, rules: Sequence[tuple[Any, ...]]) -> None:
        """Have batchers act on these rules from now on; the first rule starts the process. Raises
        OutOfSharedMemoryError or OSError, and changes nothing."""
        before, self.rules = self.rules, rules
        batcher = self._star.batcher
        try:
            if batcher is not None and batcher is self._batcher:
                batcher.send(self._rules_changed())
            elif batcher is not None:
                self.join_batcher(batcher)
        except (OutOfSharedMemoryError, OSError):
            self.rules = before
            raise
        if rules and self._child is None and self._num_rings:
            self._start()

    def join_batcher(self, batcher: Member) -> None:
        """Give a batcher a ring, and the rules, if there are any; before it is sent models. Raises
        OutOfSharedMemoryError or OSError."""
        if not self.rules:
            return
        self._num_rings = number = self._num_rings + 1
        made = create_segment(layout.RECORDING, _NO_OWNER, Geometry(0, self._ring_nbytes), sealed=True, lazy=True)
        try:
            readers = create_segment(layout.LINK, _NO_OWNER, Geometry(0, 0), sealed=False)
        except (OutOfSharedMemoryError, OSError):
            os.close(made)
            raise
        ring = _Ring(number, made, readers)
        try:
            to_read = segment.read_only(readers)
        except OSError:
            ring.close()
            raise
        self._rings[number], self._batcher = ring, batcher
        batcher.send(self._ring_made(made, to_read))
        os.close(to_read)
        batcher.send(self._rules_changed())
        if self.member is not None:
            self._send_ring(self.member, ring)
        elif self._child is None:
            self._start()

    def configure_log(self) -> None:
        """Send the process the changed log settings."""
        if self.member is not None:
            self.member.send(LogChanged(self.log_settings))

    async def close(self) -> None:
        """End the process, after the last batcher; returns when everything was read, or that has taken too long."""
        self._is_closing = True
        child, member = self._child, self.member
        if member is not None:
            member.hang_up()
        if child is not None and not await first(child.exited, limit_s=CLOSE_S):
            _log.error("the %s (pid %d) has not ended within %g s; it is killed", self._role, child.pid, CLOSE_S)
            child.signal(signal.SIGKILL)
            await first(child.exited)
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    # --- the process ---

    def _start(self) -> None:
        if self._is_closing or self._child is not None:
            return
        self._pauses.started(self._loop.now_s())
        try:
            environment = {ADDRESS_VARIABLE: self._control_address}
            self._child = spawn(self._loop, self._role, [self._module], environment, gives_way=self._gives_way)
        except OSError as error:
            self._pause(f"the {self._role} cannot be started: {explain(error)}")
        else:
            self._loop.start(self._watch(self._child))

    async def _watch(self, child: Child) -> None:
        code = await shared(child.exited)
        self._child = None
        member, self.member = self.member, None
        if member is not None:
            member.hang_up()
        if not self._is_closing:
            self._pause(f"the {self._role} (pid {child.pid}) {describe_exit(code)}")

    def _pause(self, what_happened: str) -> None:
        pause_s = self._pauses.ended(self._loop.now_s())
        _log.error("%s; it is started again in %g s", what_happened, pause_s)
        self._loop.call_after(pause_s, self._start)

    def join(self, member: Member) -> None:
        """Take in the process, which has connected."""
        if self._child is None or member.pid != self._child.pid:
            member.hang_up()
            return
        self.member = member
        member.listen(table(on(RingDrained, self._on_drained)) | self._handlers())
        member.send(self._welcome())
        for ring in self._rings.values():
            self._send_ring(member, ring)

    def _send_ring(self, member: Member, ring: _Ring) -> None:
        to_read = segment.read_only(ring.segment_fd)
        member.send(RingAdded(ring.number, to_read, ring.readers_fd))
        os.close(to_read)

    def _on_drained(self, message: RingDrained) -> None:
        ring = self._rings.pop(message.number, None)
        if ring is not None:
            ring.close()

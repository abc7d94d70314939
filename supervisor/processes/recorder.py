"""The recorder's process, and the rings by which batchers leave it what they record. Runs in the supervisor.

    first rule ─► ring for the batcher, recorder starts ─joined, sent the rings─► recording ─last rule ends─► …
    a batcher dies ─► its successor has a ring of its own; the dead one's goes when the recorder has drained it

The supervisor keeps the rings open, so that a recorder's death loses nothing: the next one goes on where the dead one's
last acknowledgement was. Recording that has begun once keeps its process until the server ends: what is recorded is
said by the rules that the batcher has.
"""

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.control import ADDRESS_VARIABLE
from shoal.messages.message import on, table
from shoal.messages.shared import LogChanged, LogSettings
from shoal.messages.to_batcher import RecordingChanged, RecordingMade
from shoal.messages.to_recorder import BoundChanged, RecorderWelcomed, RingAdded, RingDrained
from shoal.open_files import explain
from shoal.reasons import describe_exit
from shoal.recording_settings import RecordLimits, RecordRule
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

#: Bytes of a ring (ours): what a server of 10,000 small requests a second leaves in six seconds. Pages are taken as
#: they are written to.
RING_NBYTES = 64 << 20
#: How long the recorder may take to write the rest once the server ends (ours).
CLOSE_S = 5.0
#: Owner id of segments whose memory no reference names.
_NO_OWNER = 0


@dataclass(slots=True)
class _Ring:
    """A batcher's ring: descriptors of both segments, writable for their owners."""

    number: int
    segment_fd: int
    recorders_fd: int

    def close(self) -> None:
        os.close(self.segment_fd)
        os.close(self.recorders_fd)


class RecorderProcess:
    """The recorder's process and its successors."""

    def __init__(
        self,
        loop: EventLoop,
        control_address: str,
        log_settings: LogSettings,
        star: Star,
    ) -> None:
        self._loop = loop
        self._control_address = control_address
        self._log_settings = log_settings
        self._star = star
        # Changed by record, as batchers join, and as the process starts, joins and ends.
        self.folder = ""
        self.limits = RecordLimits()
        self.rules: Sequence[RecordRule] = ()
        self._rings: dict[int, _Ring] = {}
        self._num_rings = 0
        self._child: Child | None = None
        self._member: Member | None = None
        self._pauses = Pauses()
        self._is_closing = False

    def record(self, folder: str, limits: RecordLimits, rules: Sequence[RecordRule]) -> None:
        """Record from now on as these rules say; the first rule starts the process. Raises OutOfSharedMemoryError."""
        self.folder, self.rules = folder, rules
        self._star.payloads.are_recorded = bool(rules)
        if limits != self.limits:
            self.limits = limits
            if self._member is not None:
                self._member.send(BoundChanged(limits.max_bytes))
        if not self._rings:
            if rules and self._star.batcher is not None:
                self.join_batcher(self._star.batcher)
        elif self._star.batcher is not None:
            self._star.batcher.send(self._message)
        if rules and self._child is None and self._num_rings:
            self._start()

    @property
    def _message(self) -> RecordingChanged:
        return RecordingChanged([tuple(rule) for rule in self.rules])

    def join_batcher(self, batcher: Member) -> None:
        """Give a batcher a ring, and the rules, if requests are recorded; before it is sent models. Raises
        OutOfSharedMemoryError."""
        if not self.rules:
            return
        self._num_rings = number = self._num_rings + 1
        geometry = Geometry(0, RING_NBYTES)
        made = create_segment(layout.RECORDING, _NO_OWNER, geometry, sealed=True, lazy=True)
        try:
            recorders = create_segment(layout.LINK, _NO_OWNER, Geometry(0, 0), sealed=False)
        except (OutOfSharedMemoryError, OSError):
            os.close(made)
            raise
        self._rings[number] = ring = _Ring(number, made, recorders)
        to_read = segment.read_only(recorders)
        batcher.send(RecordingMade(made, to_read))
        os.close(to_read)
        batcher.send(self._message)
        if self._member is not None:
            self._send_ring(self._member, ring)
        elif self._child is None:
            self._start()

    def configure_log(self) -> None:
        """Send the recorder the changed log settings."""
        if self._member is not None:
            self._member.send(LogChanged(self._log_settings))

    async def close(self) -> None:
        """End recording, after the last batcher; returns when everything is written, or has taken too long."""
        self._is_closing = True
        child, member = self._child, self._member
        if member is not None:
            member.hang_up()
        if child is not None and not await first(child.exited, limit_s=CLOSE_S):
            _log.error("the recorder (pid %d) has not ended within %g s; it is killed", child.pid, CLOSE_S)
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
            self._child = spawn(self._loop, "recorder", ["shoal.recorder.main"], environment)
        except OSError as error:
            self._pause(f"the recorder cannot be started: {explain(error)}")
        else:
            self._loop.start(self._watch(self._child))

    async def _watch(self, child: Child) -> None:
        code = await shared(child.exited)
        self._child = None
        member, self._member = self._member, None
        if member is not None:
            member.hang_up()
        if not self._is_closing:
            self._pause(f"the recorder (pid {child.pid}) {describe_exit(code)}")

    def _pause(self, what_happened: str) -> None:
        pause_s = self._pauses.ended(self._loop.now_s())
        _log.error("%s; it is started again in %g s", what_happened, pause_s)
        self._loop.call_after(pause_s, self._start)

    def join(self, member: Member) -> None:
        """Take in the recorder, which has connected."""
        if self._child is None or member.pid != self._child.pid:
            member.hang_up()
            return
        self._member = member
        member.listen(table(on(RingDrained, self._on_drained)))
        limits = self.limits
        member.send(
            RecorderWelcomed(self._log_settings, self.folder, limits.max_bytes, limits.max_age_s, list(limits.redact))
        )
        for ring in self._rings.values():
            self._send_ring(member, ring)

    def _send_ring(self, member: Member, ring: _Ring) -> None:
        to_read = segment.read_only(ring.segment_fd)
        member.send(RingAdded(ring.number, to_read, ring.recorders_fd))
        os.close(to_read)

    def _on_drained(self, message: RingDrained) -> None:
        ring = self._rings.pop(message.number, None)
        if ring is not None:
            ring.close()

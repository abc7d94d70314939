"""The processes that read batchers' rings, and the rings: the recorder and the comparator. Runs in the supervisor.

    first rule ─► ring for the batcher, process starts ─joined, sent the rings─► reading ─last rule ends─► …
    a batcher dies ─► its successor has a ring of its own; the dead one's goes when the process has drained it
    the process dies ─► another is started, after a pause, and goes on where the dead one was

A server without rules has neither process nor ring. Once started, the process stays until the server ends: by its
rules, the batcher decides what it writes into the ring.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.messages import to_batcher, to_comparator, to_recorder
from shoal.messages.message import Handlers, Message, on, table
from shoal.recording_settings import RecordLimits, RecordRule
from shoal.shm import layout, segment
from shoal.shm.layout import Geometry
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.memory.participant import create_segment
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.outside_process import OutsideProcess

#: Bytes of a ring (ours): what a server of 10,000 small requests a second leaves the recorder in six seconds, or four
#: pairs of the largest answers that are mirrored. Pages are taken as they are written to.
RING_NBYTES = 64 << 20
#: Owner id of segments whose memory no reference names.
_NO_OWNER = 0


@dataclass(slots=True)
class _Ring:
    """A batcher's ring: descriptors of the batcher's segment, to read, and of the reader's own, writable."""

    number: int
    segment_fd: int
    readers_fd: int

    def close(self) -> None:
        os.close(self.segment_fd)
        os.close(self.readers_fd)

    def message(self) -> to_recorder.RingAdded:
        return to_recorder.RingAdded(self.number, self.segment_fd, self.readers_fd)


def _make_ring() -> list[int]:
    """Descriptors of a ring's two segments: the batcher's and the reader's own, writable; and both to read, in the
    other order. Raises OutOfSharedMemoryError or OSError, and leaves none open."""
    fds = list[int]()
    try:
        fds.append(create_segment(layout.RECORDING, _NO_OWNER, Geometry(0, RING_NBYTES), sealed=True, lazy=True))
        fds.append(create_segment(layout.LINK, _NO_OWNER, Geometry(0, 0), sealed=False))
        fds.append(segment.read_only(fds[1]))
        fds.append(segment.read_only(fds[0]))
    except (OutOfSharedMemoryError, OSError):
        for fd in fds:
            os.close(fd)
        raise
    return fds


class RingReaderProcess(OutsideProcess):
    """The process that reads batchers' rings in one role, and its successors."""

    #: The messages that give a batcher its ring, and the rules.
    ring_made: Callable[[int, int], Message]
    rules_changed: Callable[[list[tuple[Any, ...]]], Message]

    def __init__(self, star: Star, control_address: str, role: str, module: str, *, has_low_priority: bool) -> None:
        super().__init__(star, control_address, role, module, has_low_priority=has_low_priority)
        # Changed by follow, as batchers join, and as rings are drained.
        self.rules: Sequence[tuple[Any, ...]] = ()
        self._rings: dict[int, _Ring] = {}
        self._num_rings = 0
        self._batcher: Member | None = None  # the batcher that was given a ring last
        self._is_closing = False

    @property
    def _is_needed(self) -> bool:
        return self._num_rings > 0 and not self._is_closing

    @abstractmethod
    def _first_message(self) -> Message:
        """The first message to the process; the rings follow."""

    def _welcome(self, member: Member) -> None:
        member.send(self._first_message())
        for ring in self._rings.values():
            member.send(ring.message())

    def _handlers(self) -> Handlers:
        return table(on(to_recorder.RingDrained, self._on_drained))

    def follow(self, rules: Sequence[tuple[Any, ...]]) -> None:
        """Have batchers act on these rules from now on; the first rule starts the process. Raises
        OutOfSharedMemoryError or OSError, and changes nothing."""
        before, self.rules = self.rules, rules
        batcher = self._star.batcher
        try:
            if batcher is not None and batcher is self._batcher:
                self._send_rules(batcher)
            elif batcher is not None:
                self.join_batcher(batcher)
        except (OutOfSharedMemoryError, OSError):
            self.rules = before
            raise
        if rules and not self._is_pausing:
            self._start()

    def _send_rules(self, batcher: Member) -> None:
        batcher.send(type(self).rules_changed(self._plain_rules))

    @property
    def _plain_rules(self) -> list[tuple[Any, ...]]:
        """The rules as messages have them."""
        return [tuple(rule) for rule in self.rules]

    def join_batcher(self, batcher: Member) -> None:
        """Give a batcher a ring, and the rules, if there are any; before it is sent models. Raises
        OutOfSharedMemoryError or OSError."""
        if not self.rules:
            return
        self._num_rings = number = self._num_rings + 1
        written, readers, to_read, segment_fd = _make_ring()
        self._rings[number] = ring = _Ring(number, segment_fd, readers)
        self._batcher = batcher
        batcher.send(type(self).ring_made(written, to_read))
        os.close(written)
        os.close(to_read)
        self._send_rules(batcher)
        if self._member is not None:
            self._member.send(ring.message())
        elif not self._is_pausing:
            self._start()

    async def close(self) -> None:
        """End the process, after the last batcher; returns when everything was read, or that has taken too long."""
        self._is_closing = True
        child = self._child
        if self._member is not None:
            self._member.hang_up()
        if child is not None:
            await self._see_end(child)
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def _on_drained(self, message: to_recorder.RingDrained) -> None:
        ring = self._rings.pop(message.number, None)
        if ring is not None:
            ring.close()


class RecorderProcess(RingReaderProcess):
    """The recorder's process and its successors."""

    ring_made = to_batcher.RecordingMade
    rules_changed = to_batcher.RecordingChanged

    def __init__(self, star: Star, control_address: str) -> None:
        super().__init__(star, control_address, "recorder", "shoal.recorder.main", has_low_priority=False)
        # Changed by record: where requests go, and what is left out.
        self._folder = ""
        self._limits = RecordLimits()
        #: Requests that recorders could not write. Changed by their messages.
        self.num_lost = 0

    def record(self, folder: str, limits: RecordLimits, rules: Sequence[RecordRule]) -> None:
        """Record from now on as these rules say; the first rule starts the process. Raises OutOfSharedMemoryError or
        OSError."""
        self._folder = folder
        self._star.payloads.are_recorded = bool(rules)  # before the batcher records
        if limits != self._limits:
            self._limits = limits
            if self._member is not None:
                self._member.send(to_recorder.BoundChanged(limits.max_bytes))
        try:
            self.follow(rules)
        finally:
            self._star.payloads.are_recorded = bool(self.rules)

    def _first_message(self) -> to_recorder.RecorderWelcomed:
        limits = self._limits
        return to_recorder.RecorderWelcomed(
            self._star.log_settings, self._folder, limits.max_bytes, limits.max_age_s, list(limits.redact)
        )

    def _handlers(self) -> Handlers:
        return super()._handlers() | table(on(to_recorder.RequestsLost, self._on_lost))

    def _on_lost(self, message: to_recorder.RequestsLost) -> None:
        self.num_lost += message.number


class ComparatorProcess(RingReaderProcess):
    """The comparator's process and its successors, with a priority below all others; `on_compared` is called with its
    results."""

    ring_made = to_batcher.ComparisonRingMade
    rules_changed = to_batcher.ShadowsChanged

    def __init__(
        self, star: Star, control_address: str, on_compared: Callable[[to_comparator.AnswersCompared], None]
    ) -> None:
        super().__init__(star, control_address, "comparator", "shoal.recorder.comparator", has_low_priority=True)
        self._on_compared = on_compared

    def _send_rules(self, batcher: Member) -> None:
        if self._member is not None:  # before the batcher: a pair whose rule is unknown is compared exactly
            self._member.send(to_comparator.ComparisonsChanged(self._plain_rules))
        super()._send_rules(batcher)

    def _first_message(self) -> to_comparator.ComparatorWelcomed:
        return to_comparator.ComparatorWelcomed(self._star.log_settings, self._plain_rules)

    def _handlers(self) -> Handlers:
        return super()._handlers() | table(on(to_comparator.AnswersCompared, self._on_compared))

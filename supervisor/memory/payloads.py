"""Payloads that no slab takes: which process asks for a segment, which map it before a record names it, when it goes.

A request is read by its model's workers, which ask for the segment when they are given the request: the instance that
gets it need not be known before, and the others may be executing. An ensemble's request is read by the batcher. A
result is read by clients: front ends map it before it is named, and the batcher is told which worker wrote it. Runs in
the supervisor, part of the star (star.py).
"""

from collections.abc import Callable

from shoal.errors import ShoalError
from shoal.messages import shared
from shoal.messages.message import Message
from shoal.messages.to_batcher import PayloadAnnounced
from shoal.shared_settings import MIB
from shoal.shm import segment
from shoal.supervisor.memory.available_memory import available_nbytes
from shoal.supervisor.memory.oversize import ASKED_FOR, RESULT, OversizeSegment, OversizeSegments
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.participants import Participants
from shoal.supervisor.processes.members import Member, Recipient


class Payloads:
    """The segments for single payloads of a star; `is_scarce` returns whether so few descriptors are left that
    none is given to a segment."""

    def __init__(self, star: Participants, is_scarce: Callable[[], bool]) -> None:
        self._star = star
        self.segments = OversizeSegments(star.options.shm_oversize_mib * MIB, available_nbytes, is_scarce)
        #: Ids of ensembles, whose requests the batcher reads itself. Changed as ensembles are loaded and unloaded.
        self.ensembles: set[int] = set()
        #: Whether requests are recorded: the batcher then reads them, too. Changed by the recorder's process.
        self.are_recorded = False

    def receive(
        self, asker: Participant, message: shared.PayloadWanted | shared.PayloadMapped | shared.PayloadReleased
    ) -> None:
        """Handle a message: a client or worker wants a segment for one payload, has mapped it, or is done with it."""
        if isinstance(message, shared.PayloadWanted):
            self._make(asker, message)
            return
        found = self.segments.find(message.owner, asker.owner)
        if found is None:
            return
        if isinstance(message, shared.PayloadReleased):
            self._release(found)
        elif not found.is_mapped:
            if not found.is_guests:
                segment.seal_writes(found.segment_fd)
            found.is_mapped = True
            recipients: list[Recipient] = [
                (each, shared.SegmentAnnounced(found.owner, found.read_only_fd)) for each in self._clients(found)
            ]
            if self._is_batchers(found):
                recipients += self._star.to_batcher(_announcement(found))
            ready = shared.PayloadReady(found.owner)
            self._star.loop.after(self._star.acknowledgements.announce(recipients), lambda: asker.member.send(ready))

    def _make(self, asker: Participant, message: shared.PayloadWanted, *, may_wait: bool = True) -> None:
        star = self._star
        if asker.owner in star.workers:
            model_id = RESULT
        else:
            has_readers = asker.is_front_end or message.model_id in self.ensembles
            model_id = message.model_id if has_readers else ASKED_FOR
        try:
            made = self.segments.create(
                star.take_owner(), asker.owner, model_id, message.nbytes, is_guests=asker.is_guest
            )
        except ShoalError as refusal:
            if may_wait and model_id == RESULT and self.segments.has_leaving(asker.owner):
                # The worker has released a segment. Its readers unmap it before they acknowledge a ping: then try
                # again.
                briefly = [*star.to_batcher(shared.Ping()), *star.to_front_ends(shared.Ping())]
                unmapped = star.acknowledgements.announce([], briefly=briefly)
                star.loop.after(unmapped, lambda: self._make_late(asker, message))
                return
            asker.member.send(shared.PayloadRefused(message.request, refusal.wire, str(refusal)))
            return
        asker.member.send(shared.PayloadGranted(message.request, made.owner, made.may_be_kept, made.segment_fd))

    def _make_late(self, worker: Participant, message: shared.PayloadWanted) -> None:
        if self._star.workers.get(worker.owner) is worker:  # else the worker has died meanwhile
            self._make(worker, message, may_wait=False)

    def _clients(self, each: OversizeSegment) -> list[Member]:
        """The clients that must have a segment before a record names it; other readers ask for it."""
        return [client.member for client in self._star.front_ends] if each.model_id == RESULT else []

    def _is_batchers(self, each: OversizeSegment) -> bool:
        """Whether the batcher must map a segment before a record names it. A guest's segment may be passed to any
        model, and so to an ensemble."""
        return each.model_id == RESULT or each.model_id in self.ensembles or each.is_guests or self.are_recorded

    def results_of(self, worker: Participant) -> list[Message]:
        """The messages that announce a worker's results to another batcher that knows the worker."""
        return [_announcement(each) for each in self.segments.written_by(worker.owner) if each.is_mapped]

    def requests_of_batcher(self) -> list[Message]:
        """The messages that announce, to another batcher, the requests that the batcher reads itself."""
        return [
            _announcement(each)
            for each in self.segments.mapped()
            if each.model_id != RESULT and self._is_batchers(each)
        ]

    def _release(self, gone: OversizeSegment) -> None:
        star, message = self._star, shared.SegmentGone(gone.owner)
        self.segments.remove(gone)
        members = [*self._clients(gone), *star.loans.end(gone.owner)]
        recipients: list[Recipient] = [(member, message) for member in members]
        if self._is_batchers(gone):
            recipients += star.to_batcher(message)
        star.loop.after(star.acknowledgements.announce(recipients), lambda: self.segments.close(gone))

    def release_all(self, dead: Participant) -> None:
        for each in self.segments.written_by(dead.owner):
            self._release(each)


def _announcement(segment: OversizeSegment) -> PayloadAnnounced:
    """The message that announces a payload's segment to the batcher."""
    return PayloadAnnounced(segment.owner, segment.asker, segment.model_id == RESULT, segment.read_only_fd)

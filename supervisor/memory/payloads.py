"""Payloads that no slab takes: who asks for a segment, who hears of it before its writer may name it, when it goes.

A request is read by its model's workers, which ask for the segment when they are given the request: the instance that
gets it need not be known before, and the others may be executing. Where the model is an ensemble, the batcher reads it.
A result is read by clients, front ends know it before, and the batcher must know whose it is. Runs in the supervisor,
part of the star (star.py).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.control import Message
from shoal.errors import ShoalError
from shoal.options import MIB
from shoal.shm import segment
from shoal.supervisor.memory.available_memory import available_nbytes
from shoal.supervisor.memory.oversize import ASKED_FOR, RESULT, OversizeSegment, OversizeSegments
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.processes.members import Recipient

if TYPE_CHECKING:
    from shoal.supervisor.memory.star import Star


class Payloads:
    """All of a star's."""

    def __init__(self, star: "Star") -> None:
        self._star = star
        self.segments = OversizeSegments(star.options.shm_oversize_mib * MIB, available_nbytes)
        #: The models without workers, whose requests the batcher reads itself. Changed by them.
        self.ensembles: set[int] = set()

    @property
    def counts(self) -> dict[str, int]:
        """How many such segments there have been, how many are gone."""
        return self.segments.counts

    def hear(self, asker: Participant, message: Message) -> None:
        """A client or a worker wants a segment for one payload, has mapped it, or is done with it."""
        if message["op"] == "oversize":
            self._make(asker, message)
            return
        found = self.segments.find(message["owner"], asker.owner)
        if found is None:
            return
        if message["op"] == "oversize_gone":
            self._release(found)
        elif message["op"] == "oversize_mapped" and not found.is_mapped:
            if not found.is_guests:
                segment.seal_writes(found.segment_fd)
            found.is_mapped = True
            ready = {"op": "oversize_ready", "owner": found.owner}
            announcement = {"op": "segment", "owner": found.owner}
            readers = self._readers(found, announcement, [found.read_only_fd])
            self._star.acknowledgements.announce(readers, lambda: asker.member.send(ready))

    def _make(self, asker: Participant, message: Message, *, may_wait: bool = True) -> None:
        star, answer = self._star, {"op": "oversize", "request": message["request"]}
        if asker.owner in star.workers:
            model_id = RESULT
        else:
            has_readers = asker.is_front_end or message.get("model") in self.ensembles
            model_id = message["model"] if has_readers else ASKED_FOR
        try:
            made = self.segments.create(
                star.take_owner(), asker.owner, model_id, message["nbytes"], is_guests=asker.is_guest
            )
        except ShoalError as refusal:
            if may_wait and model_id == RESULT and self.segments.has_leaving(asker.owner):
                # The worker has given up room, which its readers unmap before they acknowledge a ping.
                ping = {"op": "ping"}
                briefly = [*star.to_batcher(ping), *[(each.member, ping, ()) for each in star.front_ends]]
                star.acknowledgements.announce([], lambda: self._make_late(asker, message), briefly=briefly)
                return
            asker.member.send({**answer, "wire": refusal.wire, "sentence": str(refusal)})
            return
        keep = {"keep": True} if made.may_be_kept else {}
        asker.member.send({**answer, "owner": made.owner, **keep}, [made.segment_fd])

    def _make_late(self, worker: Participant, message: Message) -> None:
        if worker.owner in self._star.workers:  # else it has died meanwhile
            self._make(worker, message, may_wait=False)

    def _readers(self, told: OversizeSegment, message: Message, fds: Sequence[int]) -> list[Recipient]:
        """Those that must have a segment before it is named; the others ask."""
        star = self._star
        if told.model_id == RESULT:
            recipients: list[Recipient] = [(each.member, message, fds) for each in star.front_ends]
            return recipients + star.to_batcher({**message, "worker": told.asker}, fds)
        if told.model_id in self.ensembles:
            return star.to_batcher({**message, "asker": told.asker}, fds)
        return []

    def results_of(self, worker: Participant) -> list[tuple[Message, list[int]]]:
        """What another batcher must hear of a worker's, once it knows the worker."""
        return [
            ({"op": "segment", "owner": each.owner, "worker": worker.owner}, [each.read_only_fd])
            for each in self.segments.written_by(worker.owner)
            if each.is_mapped
        ]

    def requests_to_ensembles(self) -> list[tuple[Message, list[int]]]:
        """And of those that it reads itself."""
        return [
            ({"op": "segment", "owner": each.owner, "asker": each.asker}, [each.read_only_fd])
            for model_id in self.ensembles
            for each in self.segments.read_by(model_id)
        ]

    def _release(self, gone: OversizeSegment) -> None:
        star = self._star
        self.segments.remove(gone)
        message = {"op": "segment_gone", "owner": gone.owner}
        recipients = self._readers(gone, message, ())
        recipients += [(borrower, message, ()) for borrower in star.loans.end(gone.owner)]
        star.acknowledgements.announce(recipients, lambda: self.segments.close(gone))

    def release_all(self, dead: Participant) -> None:
        """Whoever has asked for them is gone."""
        for each in self.segments.written_by(dead.owner):
            self._release(each)

"""Who has been told of which segments because a record named them: of callers, guests, workers, single payloads.

What a model passes on to another by reference lies in memory that the other's workers may not know, and a guest knows
no worker's before it has an answer of it. They ask when they meet it, and are told when its owner is gone. Runs in the
supervisor.
"""

from collections.abc import Iterable

from shoal.messages.shared import SegmentAnnounced, SegmentGone, SegmentMissing
from shoal.supervisor.event_loop import Future
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.processes.members import Acknowledgements, Member

#: How long the memory of a dead worker or batcher is kept for clients that run users' code, which may have an answer
#: there that they have not read; such a process may hold its interpreter for minutes, and the next worker or batcher
#: needs the memory.
ASKING_S = 10.0


class Loans:
    """By owner id of the segment."""

    def __init__(self) -> None:
        # Changed by every method.
        self._borrowers: dict[int, set[Member]] = {}

    def lend(self, borrower: Member, owner: int, fd: int | None, guest: int = 0) -> None:
        """Lend a segment to a process that asks for it; without a descriptor, say that there is none. `guest` is the
        guest whose segment it is, if any."""
        if fd is None:
            borrower.send(SegmentMissing(owner))
            return
        self._borrowers.setdefault(owner, set()).add(borrower)
        borrower.send(SegmentAnnounced(owner, fd, guest))

    def end(self, owner: int) -> Iterable[Member]:
        """The segment is gone; returns who must be told."""
        return self._borrowers.pop(owner, ())

    def send_end(self, owner: int) -> None:
        """End the loans of a segment: borrowers are sent SegmentGone, and not waited for."""
        for borrower in self.end(owner):
            borrower.send(SegmentGone(owner))

    def end_when_read(
        self, owner: int, clients: Iterable[Participant], acknowledgements: Acknowledgements
    ) -> Future[None]:
        """The segment is a dead process's: clients read what lies there, and unmap it. When the future is done, those
        that have asked for it meanwhile are to be told (`send_end`), and it goes.

        Clients that ask for segments may have it until they have acknowledged that it goes, at most for ASKING_S.
        """
        gone = SegmentGone(owner)
        asking = {client.member for client in clients if not client.is_front_end}
        for member in {*self.end(owner), *(client.member for client in clients)} - asking:
            member.send(gone)
        return acknowledgements.announce([], briefly=[(each, gone) for each in asking], patience_s=ASKING_S)

    def forget(self, borrower: Member) -> None:
        """It is dead."""
        for borrowers in self._borrowers.values():
            borrowers.discard(borrower)

"""Loans of segments: which processes were sent a segment because they had read a record that names it.

A tensor that a model passes on to another by reference lies in memory that the other model's workers may not know, and
a guest knows no worker's segment before an answer of that worker. These processes ask for the segment, and are sent
SegmentGone when its owner has ended. Runs in the supervisor.
"""

from collections.abc import Iterable

from shoal.messages.shared import SegmentAnnounced, SegmentGone, SegmentMissing
from shoal.supervisor.event_loop import Future
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.processes.members import Acknowledgements, Member

#: How long the memory of a dead worker or batcher is kept for clients that run users' code: they may have an unread
#: answer there. They could hold their interpreter for minutes, but the next worker or batcher needs the memory.
ASKING_S = 10.0


class Loans:
    """The borrowers of each segment, by the segment's owner id."""

    def __init__(self) -> None:
        # Changed by every method.
        self._borrowers: dict[int, set[Member]] = {}

    def lend(self, borrower: Member, owner: int, fd: int | None, guest: int = 0) -> None:
        """Send a segment to a process that asks for it; without a descriptor, send SegmentMissing. `guest` is the owner
        id of the guest that writes it; 0: no guest does."""
        if fd is None:
            borrower.send(SegmentMissing(owner))
            return
        self._borrowers.setdefault(owner, set()).add(borrower)
        borrower.send(SegmentAnnounced(owner, fd, guest))

    def end(self, owner: int) -> Iterable[Member]:
        """Forget a segment's loans; returns the borrowers, which must be sent SegmentGone."""
        return self._borrowers.pop(owner, ())

    def send_end(self, owner: int) -> None:
        """End the loans of a segment: send the borrowers SegmentGone without waiting for them."""
        for borrower in self.end(owner):
            borrower.send(SegmentGone(owner))

    def end_when_read(
        self, owner: int, clients: Iterable[Participant], acknowledgements: Acknowledgements
    ) -> Future[None]:
        """Let clients read what lies in a dead process's segment, and unmap it. When the future is done, the caller
        must end loans that were made meanwhile (`send_end`), and close the segment.

        Clients that ask for segments keep this one until they have acknowledged SegmentGone, at most for ASKING_S.
        """
        gone = SegmentGone(owner)
        asking = {client.member for client in clients if not client.is_front_end}
        for member in {*self.end(owner), *(client.member for client in clients)} - asking:
            member.send(gone)
        return acknowledgements.announce([], briefly=[(each, gone) for each in asking], patience_s=ASKING_S)

    def forget(self, borrower: Member) -> None:
        """Remove a dead process from all loans."""
        for borrowers in self._borrowers.values():
            borrowers.discard(borrower)

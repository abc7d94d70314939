"""Who has been told of which segments because a record named them: of callers, guests, workers, single payloads.

What a model passes on to another by reference lies in memory that the other's workers may not know, and a guest knows
no worker's before it has an answer of it. They ask when they meet it, and are told when its owner is gone. Runs in the
supervisor.
"""

from collections.abc import Iterable

from shoal.supervisor.members import Member


class Loans:
    """By owner id of the segment."""

    def __init__(self) -> None:
        # Changed by every method.
        self._borrowers: dict[int, set[Member]] = {}

    def lend(self, borrower: Member, owner: int, fd: int | None, guest: int = 0) -> None:
        """Answer whoever asked for a segment; without a descriptor, that there is none. `guest` is whose it is."""
        if fd is None:
            borrower.send({"op": "segment_missing", "owner": owner})
            return
        self._borrowers.setdefault(owner, set()).add(borrower)
        whose = {"guest": guest} if guest else {}
        borrower.send({"op": "segment", "owner": owner, **whose}, [fd])

    def end(self, owner: int) -> Iterable[Member]:
        """The segment is gone; returns who must be told."""
        return self._borrowers.pop(owner, ())

    def tell_end(self, owner: int) -> None:
        """The same; they are told of it, and nobody waits for their word."""
        for borrower in self.end(owner):
            borrower.send({"op": "segment_gone", "owner": owner})

    def forget(self, borrower: Member) -> None:
        """It is dead."""
        for borrowers in self._borrowers.values():
            borrowers.discard(borrower)

"""Which workers have been told of which segments because a request named them: of callers, other workers, payloads.

What a model passes on to another by reference lies in memory that the other's workers may not know. They ask when they
meet it, and are told when its owner is gone. Runs in the supervisor.
"""

from collections.abc import Iterable

from shoal.supervisor.members import Member


class Loans:
    """By owner id of the segment."""

    def __init__(self) -> None:
        # Changed by every method.
        self._borrowers: dict[int, set[Member]] = {}

    def lend(self, worker: Member, owner: int, fd: int | None) -> None:
        """Answer a worker that asked for a segment; without a descriptor, that there is none."""
        if fd is None:
            worker.send({"op": "segment_gone", "owner": owner})
            return
        self._borrowers.setdefault(owner, set()).add(worker)
        worker.send({"op": "segment", "owner": owner}, [fd])

    def end(self, owner: int) -> Iterable[Member]:
        """The segment is gone; returns who must be told."""
        return self._borrowers.pop(owner, ())

    def forget(self, worker: Member) -> None:
        """A worker is dead."""
        for borrowers in self._borrowers.values():
            borrowers.discard(worker)

"""Replies that a client has received and cannot read yet, in order: the oldest lies in a segment that has not been sent
to the client so far."""

from collections.abc import Mapping, Sequence
from typing import Final

from shoal.shm.layout import OWNER_SHIFT, WORD, P, ref_owner
from shoal.shm.ring import Record
from shoal.shm.slab import SlabView

_BLOCK: Final = P.BLOCK
_PIECES: Final = P.PIECES


class AwaitedSegments:
    """The queue of unreadable replies of a port that asks the supervisor for segments as replies name them. `segments`
    maps owner ids to the segments that the client has; the port adds and removes them."""

    def __init__(self, segments: Mapping[int, SlabView]) -> None:
        self._segments = segments
        # Changed by readable, add and refuse: all fields below.
        #: The owner id of the missing segment that the oldest of `_unread` lies in; 0 = none is missing.
        self.wanted = 0
        self._unread: list[Record] = []  # a reply in a segment that is missing, and all records after it
        self._refused = set[int]()  # segments that do not exist, and are not asked for again

    def add(self, owner: int) -> None:
        """Make replies in this segment readable; the port has just added the segment to `segments`."""
        if owner == self.wanted:
            self.wanted = 0

    def refuse(self, owner: int) -> None:
        """Make replies in this segment readable as lost ones: the segment was removed, or does not exist any more."""
        if owner == self.wanted:
            self.wanted = 0
            self._refused.add(owner)

    def readable(self, records: Sequence[Record]) -> Sequence[Record]:
        """Queue new records and return, in order, all records up to the first reply whose segment is not known yet.
        Records are tuples of sixteen words, which share no memory with the ring."""
        if self._unread:
            records, self._unread = [*self._unread, *records], []
        if self.wanted:
            self._unread = list(records)
            return ()
        for position, record in enumerate(records):
            if record[_BLOCK] >> OWNER_SHIFT in self._segments and not record[_PIECES]:
                continue
            if unknown := self._owners(record) - self._segments.keys() - self._refused - {0}:
                self.wanted, self._unread = min(unknown), list(records[position:])
                return records[:position]
        self._refused.clear()
        return records

    def _owners(self, record: Record) -> set[int]:
        """Owner ids of the segments that a reply lies in. The segments of its pieces are known only once the block with
        their references can be read."""
        ref = record[_BLOCK]
        view = self._segments.get(ref_owner(ref)) if record[_PIECES] else None
        block = None if view is None else view.open(ref)
        pieces = [] if block is None else block[: record[_PIECES] * WORD].cast("Q").tolist()
        return {ref_owner(each) for each in (ref, *pieces)}

"""A ring of 128-byte records with one writer and one reader, each a type of its own.

The writer's segment holds the records and the tail; the reader's segment holds the head. A record is filled while it is
invisible and becomes visible with others by one aligned 8-byte store of the tail. That store goes through
`memoryview.cast("Q")`: `struct.pack_into` clears before it fills, and another process would read a value that was never
written. (Records are packed with `pack_into` none the less: they are not read before the tail has moved.)

A ring between a client and the batcher may begin small. Its writer widens it once, before a record finds no slot: that
record and all later ones lie in the full ring, and the reader goes there when it has read the small one to its end.
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from shoal.fault import IS_ARMED, reached
from shoal.shm.layout import (
    HEAD_WORD,
    RECORD,
    RECORD_BYTES,
    RING_OFFSET,
    TAIL_WORD,
    WIDENED_WORD,
    WORD,
    LayoutError,
    Record,
)
from shoal.shm.segment import Mapping, Segment

__all__ = ["Record", "RingFullError", "RingReader", "RingWriter"]

_NUM_WORDS = RECORD_BYTES // WORD
#: pack_into by the number of words given; the rest of the record's words are 0. None for a record without words.
_PACK_INTO = [
    Struct(f"{num}Q{RECORD_BYTES - num * WORD}x").pack_into for num in (_NUM_WORDS, *range(1, _NUM_WORDS + 1))
]


class RingFullError(Exception):
    """The ring has no free slot.

    Capacities exceed all records that must fit; a writer of more than that, such as CANCELs to a worker or releases by
    the thousand, catches this error and pushes the records later.
    """


class RingWriter:
    """The writer's end of a ring: `own` is its segment, with the records, `peer` the reader's. Pushed records are
    invisible until `publish`."""

    __slots__ = ("_capacity", "_limit", "_own", "_own_words", "_peer_words", "_position", "_records", "_since")

    def __init__(self, own: Segment, peer: Mapping) -> None:
        self._own = own
        self._own_words = own.words
        self._peer_words = peer.words
        # Changed by widen: the capacity and records of the ring in use, and the position of the full ring's first
        # record. Read back from memory, as is the position, so that a successor goes on where the writer was.
        widened, tail = own.words[WIDENED_WORD], own.words[TAIL_WORD]
        if widened > tail + 1:  # after records that a dead writer has not published: the full ring begins at the tail
            widened = own.words[WIDENED_WORD] = tail + 1
        self._since = max(0, widened - 1)
        self._capacity, self._records = _ring_in_use(own, is_small=not widened)
        # Changed by push.
        self._position = tail
        #: The position up to which slots are known to be free; read for each record, it would cost a tenth of a push.
        self._limit = self._position

    def push(self, record: Record) -> None:
        """Append a record of at most sixteen words. Trailing words that are left out are 0; writing one costs 0.1k
        instructions.

        Raises RingFullError, and changes nothing, if no slot is free.
        """
        position = self._position
        if position >= self._limit:
            self._limit = max(self._peer_words[HEAD_WORD], self._since) + self._capacity
            if position >= self._limit and not self.widen():
                raise RingFullError(f"all {self._capacity} records are unread")
        _PACK_INTO[len(record)](self._records, position % self._capacity * RECORD_BYTES, *record)
        self._position = position + 1

    @property
    def num_first(self) -> int:
        """The number of records that the ring has room for before it is widened."""
        return self._own.header.geometry.first_capacity

    @property
    def is_small(self) -> bool:
        """Whether the ring can be widened."""
        return self._capacity < self._own.header.ring_capacity

    def widen(self) -> bool:
        """Use the full ring for the next record and all after it. False, and no effect, if the full ring is in use
        already or there is no memory for it."""
        if not self.is_small or not self._own.make_ring_present():
            return False
        self._since = self._position
        self._capacity, self._records = _ring_in_use(self._own, is_small=False)
        self._limit = self._position + self._capacity
        self._own_words[WIDENED_WORD] = self._position + 1  # publishes: nothing; the tail is stored after it
        return True

    @property
    def num_free(self) -> int:
        """Number of records that can be pushed now, without the ring being widened."""
        return self._capacity - (self._position - max(self._peer_words[HEAD_WORD], self._since))

    @property
    def num_unread(self) -> int:
        """Number of records that were pushed and not read yet."""
        return self._position - self._peer_words[HEAD_WORD]

    @property
    def position(self) -> int:
        """Number of records that were pushed since the ring began."""
        return self._position

    def is_unread(self, position: int) -> bool:
        """Whether any record up to this position is unread."""
        return self._peer_words[HEAD_WORD] < position

    def publish(self) -> bool:
        """Make pushed records visible. True if there were any: then the reader's bell must be rung."""
        if self._own_words[TAIL_WORD] == self._position:
            return False
        self._own_words[TAIL_WORD] = self._position  # publishes: every record below
        if IS_ARMED:
            reached("published")
        return True

    def history(self) -> Iterator[tuple[int, Record]]:
        """Published records and their positions, newest first, as far back as the ring's slots go; for a successor of
        this process. Not for a ring that was widened."""
        tail = self._own_words[TAIL_WORD]
        for position in range(tail - 1, max(0, self._position - self._capacity) - 1, -1):
            yield position, RECORD.unpack_from(self._records, position % self._capacity * RECORD_BYTES)

    def mark(self, position: int, word: int, value: int) -> None:
        """Change a word of a record that its reader has read; no effect if a later record has taken the slot. Not for a
        ring that was widened."""
        if position >= self._position - self._capacity:
            offset = RING_OFFSET + position % self._capacity * RECORD_BYTES
            self._own_words[offset // WORD + word] = value  # publishes: nothing; a successor of this process reads it


class RingReader:
    """The reader's end of a ring: `peer` is the writer's segment, with the records, `own` the reader's."""

    __slots__ = ("_capacity", "_is_small", "_own_words", "_peer", "_peer_words", "_position", "_records")

    def __init__(self, own: Segment, peer: Mapping) -> None:
        self._own_words = own.words
        self._peer = peer
        self._peer_words = peer.words
        # Changed when the reader has come to the full ring.
        self._capacity, self._records = _ring_in_use(peer, is_small=True)
        self._is_small = self._capacity < peer.header.ring_capacity
        # Changed by read.
        self._position = own.words[HEAD_WORD]

    @property
    def counts(self) -> tuple[int, int]:
        """(slots that the writer has filled so far, slots given back to it)."""
        return self._peer_words[TAIL_WORD], self._own_words[HEAD_WORD]

    def has_unread(self) -> bool:
        """Whether any visible record is unread."""
        return self._peer_words[TAIL_WORD] != self._position

    def drain(self) -> Sequence[Record]:
        """All visible records not read yet, copied out as in `read`, their slots freed at once. Raises LayoutError as
        `read` does."""
        records = self.read()
        if records:
            self.acknowledge()
        return records

    def read(self) -> Sequence[Record]:
        """All visible records not read yet, copied out as tuples of sixteen words, oldest first.

        Their slots stay taken until `acknowledge`: a dead reader's successor reads them again. Raises LayoutError if
        the writer claims more records than the ring holds: the peer is broken or hostile.
        """
        position = self._position
        tail = self._peer_words[TAIL_WORD]
        if tail == position:
            return ()
        if self._is_small and (widened := self._peer_words[WIDENED_WORD]):
            return self._read_widened(position, widened - 1, tail)
        capacity = self._capacity
        if not 0 < tail - position <= capacity:
            raise LayoutError(f"a ring of {capacity} records claims {tail - position} unread ones")
        self._position = tail
        records = self._between(position, tail)
        if IS_ARMED:
            reached("read")
        return records

    def _read_widened(self, position: int, first: int, tail: int) -> list[Record]:
        """All visible records where the one at `first`, and all after it, lie in the full ring."""
        middle = min(max(first, position), tail)
        records = self._checked(position, middle)
        if first <= tail:
            self._is_small = False
            self._capacity, self._records = _ring_in_use(self._peer, is_small=False)
            records += self._checked(middle, tail)
        self._position = tail
        if IS_ARMED:
            reached("read")
        return records

    def _checked(self, start: int, end: int) -> list[Record]:
        if not 0 <= end - start <= self._capacity:
            raise LayoutError(f"a ring of {self._capacity} records claims {end - start} unread ones")
        return self._between(start, end) if start < end else []

    def acknowledge(self) -> None:
        """Free the slots of all records read so far, once their effect is complete."""
        self._own_words[HEAD_WORD] = self._position  # publishes: the slots are copied out and may be filled again
        if IS_ARMED:
            reached("acknowledged")

    def skip(self) -> None:
        """Count all visible records as read without reading them: their writer will push them again."""
        self._position = self._peer_words[TAIL_WORD]
        self.acknowledge()

    def _between(self, start: int, end: int) -> list[Record]:
        if end - start == 1:  # one record, as on an idle server: half the instructions
            return [RECORD.unpack_from(self._records, start % self._capacity * RECORD_BYTES)]
        first, last = start % self._capacity, end % self._capacity
        if first < last:
            return list(RECORD.iter_unpack(self._records[first * RECORD_BYTES : last * RECORD_BYTES]))
        records = list(RECORD.iter_unpack(self._records[first * RECORD_BYTES :]))
        records += RECORD.iter_unpack(self._records[: last * RECORD_BYTES])
        return records


def _ring_in_use(segment: Mapping, *, is_small: bool) -> tuple[int, memoryview]:
    """Capacity and records of a segment's ring: of the small one where there is one, or of the full one."""
    geometry = segment.header.geometry
    capacity = geometry.first_capacity if is_small else geometry.ring_capacity
    start = RING_OFFSET if is_small or not geometry.small_capacity else geometry.slab_end
    return capacity, segment.bytes[start : start + capacity * RECORD_BYTES]

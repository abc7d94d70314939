"""A ring of 128-byte records with one writer and one reader, each a type of its own.

The writer's segment holds the records and the tail; the reader's segment holds the head. Records are filled while they
are invisible; one aligned 8-byte store of the tail makes all of them visible. That store goes through
`memoryview.cast("Q")`: `struct.pack_into` clears the bytes before it fills them, so that another process could read a
tail that was never meant. (Records are packed with `pack_into` nevertheless, since they are not read before the tail
has moved.)

A ring between a client and the batcher may begin small. Its writer widens the ring once, when a record finds no slot or
before: the next record and all after it lie in the full ring, and the reader goes there when it has read all records of
the small ring.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

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

_NUM_WORDS: Final = RECORD_BYTES // WORD
#: The functions that pack n words, by n; a record's other words become 0. The one for n = 0 packs all words: no record
#: is without words.
_PACK_INTO: Final = [
    Struct(f"{num}Q{RECORD_BYTES - num * WORD}x").pack_into for num in (_NUM_WORDS, *range(1, _NUM_WORDS + 1))
]


class RingFullError(Exception):
    """The ring has no free slot.

    The capacity exceeds the number of records that must fit. A writer of records beyond those, such as CANCELs to a
    worker or RELEASEs by the thousand, catches this error and pushes the records later.
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
        # record. They and the position are read back from memory, so that a successor of the writer goes on where the
        # writer was.
        widened, tail = own.words[WIDENED_WORD], own.words[TAIL_WORD]
        # A dead writer has widened the ring behind records that it did not publish: the full ring begins at the tail.
        if widened > tail + 1:
            widened = own.words[WIDENED_WORD] = tail + 1
        self._since = max(0, widened - 1)
        self._capacity, self._records = _ring_in_use(own, is_small=not widened)
        # Changed by push: the fields below.
        self._position = tail
        #: The position up to which slots are known to be free: to read the head for each record would cost a tenth of a
        #: push.
        self._limit = self._position

    def push(self, record: Record) -> None:
        """Append a record of at most sixteen words. Trailing words that are left out are 0; each word that is given
        costs 0.1k instructions.

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
    def num_slots(self) -> int:
        """Number of records that the ring in use holds."""
        return self._capacity

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
        this process. In place of the oldest, there may be records that the dead process did not publish."""
        tail = self._own_words[TAIL_WORD]
        first = max(self._since, self._position - self._capacity)
        for position in range(tail - 1, first - 1, -1):
            yield position, RECORD.unpack_from(self._records, position % self._capacity * RECORD_BYTES)
        if first == self._since > 0:  # the records before these are in the small ring
            capacity, records = _ring_in_use(self._own, is_small=True)
            for position in range(min(tail, first) - 1, max(0, first - capacity) - 1, -1):
                yield position, RECORD.unpack_from(records, position % capacity * RECORD_BYTES)

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
        # Changed when the reader has come to the full ring: the capacity and records of the ring in use.
        self._capacity, self._records = _ring_in_use(peer, is_small=True)
        self._is_small = self._capacity < peer.header.ring_capacity
        # Changed by read and skip: the number of records that were read.
        self._position = own.words[HEAD_WORD]

    @property
    def counts(self) -> tuple[int, int]:
        """(slots that the writer has filled so far, slots that the reader has given back)."""
        return self._peer_words[TAIL_WORD], self._own_words[HEAD_WORD]

    def has_unread(self) -> bool:
        """Whether any visible record is unread."""
        return self._peer_words[TAIL_WORD] != self._position

    def drain(self) -> Sequence[Record]:
        """Like `read`, but the records' slots are freed at once."""
        records = self.read()
        if records:
            self.acknowledge()
        return records

    def read(self) -> Sequence[Record]:
        """All visible records not read yet, as tuples of sixteen words, oldest first; they share no memory with the
        ring.

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
        """All visible records, of which those from position `first` on lie in the full ring."""
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
        """Count all visible records as read without reading them, because their writer will push them again."""
        self._position = self._peer_words[TAIL_WORD]
        self.acknowledge()

    def _between(self, start: int, end: int) -> list[Record]:
        if end - start == 1:  # a single record, as on an idle server, costs half the instructions this way
            return [RECORD.unpack_from(self._records, start % self._capacity * RECORD_BYTES)]
        first, last = start % self._capacity, end % self._capacity
        if first < last:
            return list(RECORD.iter_unpack(self._records[first * RECORD_BYTES : last * RECORD_BYTES]))
        records = list(RECORD.iter_unpack(self._records[first * RECORD_BYTES :]))
        records += RECORD.iter_unpack(self._records[: last * RECORD_BYTES])
        return records


def _ring_in_use(segment: Mapping, *, is_small: bool) -> tuple[int, memoryview]:
    """Capacity and records of a segment's ring: with `is_small`, of the ring with which it begins; otherwise of the
    full ring."""
    geometry = segment.header.geometry
    capacity = geometry.first_capacity if is_small else geometry.ring_capacity
    start = RING_OFFSET if is_small or not geometry.small_capacity else geometry.slab_end
    return capacity, segment.bytes[start : start + capacity * RECORD_BYTES]

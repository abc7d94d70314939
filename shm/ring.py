"""A ring of 128-byte records with one writer and one reader, each a type of its own.

The writer's segment holds the records and the tail; the reader's segment holds the head. A record is filled while it is
invisible and becomes visible with others by one aligned 8-byte store of the tail. That store goes through
`memoryview.cast("Q")`: `struct.pack_into` clears before it fills, and another process reads what nobody wrote. (Records
are packed with it none the less: nobody looks at them before the tail has moved.)
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from shoal.shm.layout import HEAD_WORD, RECORD, RECORD_BYTES, RING_OFFSET, TAIL_WORD, WORD, LayoutError, Record
from shoal.shm.segment import Mapping, Segment

__all__ = ["Record", "RingFullError", "RingReader", "RingWriter"]

_NUM_WORDS = RECORD_BYTES // WORD
#: By the number of words that are given, how a record is packed: the others are 0. One without any is none.
_PACK_INTO = [
    Struct(f"{num}Q{RECORD_BYTES - num * WORD}x").pack_into for num in (_NUM_WORDS, *range(1, _NUM_WORDS + 1))
]


class RingFullError(Exception):
    """The ring has no free slot.

    Capacities exceed all that must be outstanding; whoever pushes what may be more than that, as CANCELs to a worker or
    releases by the thousand, expects this and says it later.
    """


class RingWriter:
    """The end that pushes. Records pushed are invisible until `publish`."""

    __slots__ = ("_capacity", "_limit", "_own_words", "_peer_words", "_position", "_records")

    def __init__(self, own: Segment, peer: Mapping) -> None:
        self._capacity = own.header.ring_capacity
        self._records = own.bytes[RING_OFFSET : RING_OFFSET + self._capacity * RECORD_BYTES]
        self._own_words = own.words
        self._peer_words = peer.words
        # Changed by push; read back from memory so that a ring can be picked up where it stands.
        self._position = own.words[TAIL_WORD]
        #: The position that is known to be free up to; looking it up for each record would cost a tenth of a push.
        self._limit = self._position

    def push(self, record: Record) -> None:
        """Add a record. Its last words may be left out: they are 0, and writing that costs 0.1k instructions each.

        Raises RingFullError and changes nothing where there is no slot.
        """
        position = self._position
        if position >= self._limit:
            self._limit = self._peer_words[HEAD_WORD] + self._capacity
            if position >= self._limit:
                raise RingFullError(f"all {self._capacity} records are unread")
        _PACK_INTO[len(record)](self._records, position % self._capacity * RECORD_BYTES, *record)
        self._position = position + 1

    @property
    def num_free(self) -> int:
        """Records that can be pushed now."""
        return self._capacity - self.num_unread

    @property
    def num_unread(self) -> int:
        """Records that were pushed and not read yet."""
        return self._position - self._peer_words[HEAD_WORD]

    @property
    def position(self) -> int:
        """Records that were pushed, since the ring began."""
        return self._position

    def is_unread(self, position: int) -> bool:
        """Whether not all records up to this position were read."""
        return self._peer_words[HEAD_WORD] < position

    def publish(self) -> bool:
        """Make what was pushed visible. True if there was anything: then the reader's bell must be rung."""
        if self._own_words[TAIL_WORD] == self._position:
            return False
        self._own_words[TAIL_WORD] = self._position  # publishes: every record below
        return True

    def history(self) -> Iterator[tuple[int, Record]]:
        """The records that were published, with their positions, newest first, as far back as the ring goes: for the
        process that takes a dead writer's place."""
        tail = self._own_words[TAIL_WORD]
        for position in range(tail - 1, max(0, self._position - self._capacity) - 1, -1):
            yield position, RECORD.unpack_from(self._records, position % self._capacity * RECORD_BYTES)

    def mark(self, position: int, word: int, value: int) -> None:
        """Change a word of a record that its reader has read; of no effect where another record has its slot."""
        if position >= self._position - self._capacity:
            offset = RING_OFFSET + position % self._capacity * RECORD_BYTES
            self._own_words[offset // WORD + word] = value  # publishes: nothing; a successor of this process reads it


class RingReader:
    """The end that drains."""

    __slots__ = ("_capacity", "_own_words", "_peer_words", "_position", "_records")

    def __init__(self, own: Segment, peer: Mapping) -> None:
        self._capacity = peer.header.ring_capacity
        self._records = peer.bytes[RING_OFFSET : RING_OFFSET + self._capacity * RECORD_BYTES]
        self._own_words = own.words
        self._peer_words = peer.words
        # Changed by read.
        self._position = own.words[HEAD_WORD]

    @property
    def counts(self) -> tuple[int, int]:
        """(slots that the writer has filled so far, slots given back to it)."""
        return self._peer_words[TAIL_WORD], self._own_words[HEAD_WORD]

    def has_unread(self) -> bool:
        """Whether there is anything that was not read yet."""
        return self._peer_words[TAIL_WORD] != self._position

    def drain(self) -> Sequence[Record]:
        """What `read` returns; the slots are free again at once."""
        records = self.read()
        if records:
            self.acknowledge()
        return records

    def read(self) -> Sequence[Record]:
        """All visible records not read yet, as tuples of sixteen words, oldest first.

        Their slots stay taken until `acknowledge`: whoever takes the reader's place after its death reads them again.
        Raises LayoutError where the writer claims more records than the ring holds: the peer is not to be believed.
        """
        position = self._position
        tail = self._peer_words[TAIL_WORD]
        if tail == position:
            return ()
        capacity = self._capacity
        if not 0 < tail - position <= capacity:
            raise LayoutError(f"a ring of {capacity} records claims {tail - position} unread ones")
        self._position = tail
        return self._between(position, tail)

    def acknowledge(self) -> None:
        """What was read has had its effect: its slots may be filled again."""
        self._own_words[HEAD_WORD] = self._position  # publishes: the slots are copied out and may be filled again

    def skip(self) -> None:
        """Whatever is there counts as read: its writer will say it again."""
        self._position = self._peer_words[TAIL_WORD]
        self.acknowledge()

    def _between(self, start: int, end: int) -> list[Record]:
        if end - start == 1:  # where little is going on; half the instructions
            return [RECORD.unpack_from(self._records, start % self._capacity * RECORD_BYTES)]
        first, last = start % self._capacity, end % self._capacity
        if first < last:
            return list(RECORD.iter_unpack(self._records[first * RECORD_BYTES : last * RECORD_BYTES]))
        records = list(RECORD.iter_unpack(self._records[first * RECORD_BYTES :]))
        records += RECORD.iter_unpack(self._records[: last * RECORD_BYTES])
        return records

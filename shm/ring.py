"""A ring of 128-byte records with one writer and one reader, each a type of its own.

The writer's segment holds the records and the tail; the reader's segment holds the head. A record is filled while it is
invisible and becomes visible with others by one aligned 8-byte store of the tail. That store goes through
`memoryview.cast("Q")`: `struct.pack_into` clears before it fills, and another process reads what nobody wrote.
"""

from collections.abc import Iterable

from shoal.shm.layout import HEAD_WORD, RECORD, RECORD_BYTES, RING_OFFSET, TAIL_WORD, LayoutError
from shoal.shm.segment import Mapping, Segment


class RingFullError(Exception):
    """The ring has no free slot. Capacities exceed all that can be outstanding, so this is a bug or a hostile peer."""


class RingWriter:
    """The end that pushes. Records pushed are invisible until `publish`."""

    def __init__(self, own: Segment, peer: Mapping) -> None:
        # Changed by push and publish; read back from memory so that a ring can be picked up where it stands.
        self._position = own.words[TAIL_WORD]
        self._capacity = own.header.ring_capacity
        self._records = own.bytes[RING_OFFSET : RING_OFFSET + self._capacity * RECORD_BYTES]
        self._own_words = own.words
        self._peer_words = peer.words

    def push(self, record: tuple[int, ...]) -> None:
        """Add a record of sixteen words. Raises RingFullError and changes nothing where there is no slot."""
        position = self._position
        if position - self._peer_words[HEAD_WORD] >= self._capacity:
            raise RingFullError(f"all {self._capacity} records are unread")
        start = position % self._capacity * RECORD_BYTES
        self._records[start : start + RECORD_BYTES] = RECORD.pack(*record)
        self._position = position + 1

    def publish(self) -> bool:
        """Make what was pushed visible. True if there was anything: then the reader's bell must be rung."""
        if self._own_words[TAIL_WORD] == self._position:
            return False
        self._own_words[TAIL_WORD] = self._position  # publishes: every record below
        return True


class RingReader:
    """The end that drains."""

    def __init__(self, own: Segment, peer: Mapping) -> None:
        # Changed by drain.
        self._position = own.words[HEAD_WORD]
        self._capacity = peer.header.ring_capacity
        self._records = peer.bytes[RING_OFFSET : RING_OFFSET + self._capacity * RECORD_BYTES]
        self._own_words = own.words
        self._peer_words = peer.words

    def drain(self) -> Iterable[tuple[int, ...]]:
        """All visible records, as tuples of sixteen words, oldest first; their slots are free again afterwards.

        Raises LayoutError where the writer claims more records than the ring holds: the peer is not to be believed.
        """
        position = self._position
        tail = self._peer_words[TAIL_WORD]
        if tail == position:
            return ()
        capacity = self._capacity
        if not 0 < tail - position <= capacity:
            raise LayoutError(f"a ring of {capacity} records claims {tail - position} unread ones")
        first, last = position % capacity, tail % capacity
        if first < last:
            records = list(RECORD.iter_unpack(self._records[first * RECORD_BYTES : last * RECORD_BYTES]))
        else:
            records = list(RECORD.iter_unpack(self._records[first * RECORD_BYTES :]))
            records += RECORD.iter_unpack(self._records[: last * RECORD_BYTES])
        self._position = tail
        self._own_words[HEAD_WORD] = tail  # publishes: the slots are copied out and may be filled again
        return records

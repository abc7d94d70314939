"""A ring of entries of any size, with one writer and one reader, each a type of its own.

The writer's segment holds the entries in its slab, and the tail; the reader's segment holds the head and, in the word
of the tail, the end of the entry that the reader has begun last. All three are counts of bytes that never wrap. No
entry is split: an entry that has no room at the slab's end begins at the slab's start.

    0        8        size of the entry's contents in bytes; SKIP: the next entry is at the start of the slab
    8        n        contents, padded to a multiple of 8

The writer never waits: an entry without room is refused. Entries that the reader has not acknowledged are not
overwritten, so a reader's successor finds all of them.
"""

from collections.abc import Iterator, Sequence

from shoal.shm.layout import HEAD_WORD, TAIL_WORD, WORD, LayoutError
from shoal.shm.segment import Mapping, Segment

SKIP = (1 << 64) - 1
#: An entry takes at most one MAX_PARTS-th of the ring (ours), which leaves room for entries that come while it is read.
MAX_PARTS = 4


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 8: the bytes that contents take in the ring."""
    return (nbytes + WORD - 1) // WORD * WORD


class ByteRingWriter:
    """The writer's end: `own` is the writer's segment, with the entries, `peer` the reader's."""

    __slots__ = ("_memory", "_nbytes", "_own_words", "_peer_words", "_position", "_words")

    def __init__(self, own: Segment, peer: Mapping) -> None:
        header = own.header
        self._memory = own.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes]
        self._words = self._memory.cast("Q")
        self._nbytes = header.slab_nbytes
        self._own_words = own.words
        self._peer_words = peer.words
        self._position = own.words[TAIL_WORD]

    @property
    def max_nbytes(self) -> int:
        """Size of the largest entry's contents in bytes."""
        return self._nbytes // MAX_PARTS - WORD

    def push(self, parts: Sequence[bytes | memoryview], nbytes: int) -> bool:
        """Append an entry, visible at once. `parts` are copied; together they have `nbytes` bytes, a multiple of 8.
        False, and no effect, if the ring has no room, or `nbytes` exceeds `max_nbytes`."""
        if nbytes > self.max_nbytes:
            return False
        position, size = self._position, self._nbytes
        start, need = position % size, WORD + nbytes
        skipped = size - start if start + need > size else 0
        if position + skipped + need - self._peer_words[HEAD_WORD] > size:
            return False
        if skipped:
            self._words[start // WORD] = SKIP
            start = 0
        self._words[start // WORD] = nbytes
        at, memory = start + WORD, self._memory
        for part in parts:
            end = at + len(part)
            memory[at:end] = part
            at = end
        self._position = position = position + skipped + need
        self._own_words[TAIL_WORD] = position  # publishes: the entry
        return True


class ByteRingReader:
    """The reader's end: `own` is the reader's segment, with the head, `peer` the writer's."""

    __slots__ = ("_begun", "_memory", "_nbytes", "_own_words", "_peer_words", "_position", "_words")

    def __init__(self, own: Segment, peer: Mapping) -> None:
        header = peer.header
        self._memory = peer.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes].toreadonly()
        self._words = self._memory.cast("Q")
        self._nbytes = header.slab_nbytes
        self._own_words = own.words
        self._peer_words = peer.words
        self._position = own.words[HEAD_WORD]
        self._begun = own.words[TAIL_WORD]  # the end of the entry that a dead reader of this ring had begun last

    def has_unread(self) -> bool:
        return self._position != self._peer_words[TAIL_WORD]

    def read(self) -> Iterator[memoryview]:
        """The contents of all unread entries; each is valid until `acknowledge`. Raises LayoutError for an entry that
        reaches beyond the slab or the tail."""
        tail = self._peer_words[TAIL_WORD]
        while self._position != tail:
            start = self._position % self._nbytes
            nbytes = self._words[start // WORD]
            if nbytes == SKIP:
                self._position += self._nbytes - start
                continue
            end = start + WORD + nbytes
            if nbytes % WORD or end > self._nbytes or self._position + WORD + nbytes > tail:
                raise LayoutError(f"an entry of {nbytes} bytes at {start} of a ring of {self._nbytes}")
            self._position += WORD + nbytes
            yield self._memory[start + WORD : end]

    def skip(self) -> None:
        """Discard all entries that are unread."""
        self._position = self._peer_words[TAIL_WORD]
        self.acknowledge()

    @property
    def was_begun_last(self) -> bool:
        """Whether a dead reader of this ring had begun, and not acknowledged, the entry that was read last."""
        return self._position == self._begun

    def begin(self) -> None:
        """Note, for a successor, that the reader begins to work on the entry that was read last."""
        self._own_words[TAIL_WORD] = self._position

    def acknowledge(self) -> None:
        """Free the room of all entries that were read."""
        self._own_words[HEAD_WORD] = self._position  # publishes: the room

"""A slab: a segment's memory handed out in blocks of 2^n × 4096 bytes. The segment's owner allocates and frees; other
processes read.

The owner keeps its books in private memory, so its death leaves nothing to repair. In shared memory there is one word
per 4096-byte unit: the generation and order of the block that starts there. The word changes when a block is allocated
and when it is freed, so a stale reference opens as None.
"""

from typing import Final

from shoal.shm import layout
from shoal.shm.layout import GENERATION_BITS, GENERATION_MASK, MAX_UNITS, UNIT, UNIT_BITS, WORD
from shoal.shm.segment import Mapping, Segment

#: The bits of a block's order in a generation word, and the increment that makes the next generation.
_ORDER_MASK: Final = 0xFF
_NEXT_GENERATION: Final = 1 << 8
_UNIT_MASK: Final = MAX_UNITS - 1
#: Bytes of a block by order: a look-up takes a tenth of the instructions of a shift. Has an entry for every order that
#: a generation word, which another process writes, could claim.
_NBYTES: Final = tuple([UNIT << order for order in range(_ORDER_MASK + 1)])


class Block:  # made for each request: not a dataclass, whose construction is not compiled
    """A block, for the process that owns it: the reference that names the block, and its memory (bytes), writable until
    the block is freed."""

    __slots__ = ("memory", "ref")

    def __init__(self, ref: int, memory: memoryview) -> None:
        self.ref = ref
        self.memory = memory


def _generations(mapping: Mapping) -> memoryview:
    header = mapping.header
    start = header.geometry.generations_offset // WORD
    return mapping.words[start : start + header.slab_nbytes // UNIT]


class Slab:
    """The owner's side of a slab: a buddy allocator that joins neighbours only when it must.

    Freed blocks keep their size and are handed out again, last freed first, while their cache lines are warm. When no
    free block is large enough, memory that was not used before is added; when there is none left, free neighbours are
    joined. So in the steady state, a block costs one pop and one append.
    """

    def __init__(self, segment: Segment, parts: int = 1) -> None:
        """Take over the slab of the process's own segment. The largest block is the largest possible one divided by
        `parts` (a power of two), so that a small block does not use up the only place for a large one."""
        header = segment.header
        self.owner = header.owner
        self._first = header.owner << UNIT_BITS  # the reference to unit 0, without its generation
        self._memory = segment.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes]
        self._generations = _generations(segment)
        num_units = header.slab_nbytes // UNIT
        max_order = max(0, num_units.bit_length() - parts.bit_length())
        #: The largest block this slab can ever hand out, in bytes.
        self.largest_nbytes = UNIT << max_order if num_units else 0
        # Changed by allocate and free: per order, first units of free blocks; reference → order of allocated blocks.
        self._segment = segment
        #: Units that can be added: all but an odd last unit, which is there from the beginning (workers use it as a
        #: spare).
        self._num_units = num_units - num_units % 2
        #: Units from the first that have been added: a power of two, or all.
        self._num_added = min(self._num_units, (segment.present_nbytes - header.slab_offset) // UNIT)
        self._free: list[list[int]] = [[] for _ in range(max_order + 1)]
        add_blocks(self._free, 0, self._num_added)
        add_blocks(self._free, self._num_units, num_units)
        self._taken: dict[int, int] = {}
        #: Free bytes, in blocks of any size.
        self.free_nbytes = self.nbytes = num_units * UNIT
        self._grown_since_join = False
        #: Whether less than half of the added memory was free when a larger block was last split; then `prepare` adds
        #: more.
        self.is_scarce = False
        #: Number of times that free blocks were joined: an `allocate` that finds no block joins them if a block was
        #: freed or memory was added since the last time.
        self.num_joins = 0

    @property
    def counts(self) -> tuple[int, int]:
        """(blocks allocated so far, blocks freed so far), from the generations: `allocate` and `free` each add one to a
        block's generation, so an allocated block's generation is odd.

        The whole table is walked: 2 ms for 64 MiB.
        """
        generations = [word >> 8 for word in self._generations]
        released = sum([generation >> 1 for generation in generations])
        return sum(generations) - released, released

    @property
    def taken_refs(self) -> list[int]:
        return list(self._taken)

    @property
    def num_taken(self) -> int:
        return len(self._taken)

    @property
    def is_roomy(self) -> bool:
        """Whether a block of about a quarter of the slab is free, or three quarters of the slab are free in blocks of
        any size: after a peak, free blocks stay small until a large one is allocated."""
        return 4 * self.free_nbytes >= 3 * self.nbytes or any(self._free[-3:])

    def allocate(self, nbytes: int) -> Block | None:
        """A block of at least `nbytes` bytes, 4096-byte aligned, with undefined contents, in use until `free`; None if
        none is free."""
        order = ((nbytes - 1) // UNIT).bit_length() if nbytes > UNIT else 0
        try:
            unit = self._free[order].pop()
        except IndexError:  # no block of that size is free, or the slab has no blocks of that size
            split = self._split(order)
            if split is None:
                return None
            unit = split
        word = (self._generations[unit] | _ORDER_MASK) + 1 + order  # the next generation
        self._generations[unit] = word  # publishes: references of this generation are good
        ref = (self._first + unit << GENERATION_BITS) + (word >> 8 & GENERATION_MASK)
        self._taken[ref] = order
        size = _NBYTES[order]
        self.free_nbytes -= size
        start = unit * UNIT
        return Block(ref, self._memory[start : start + size])

    def nbytes_of(self, ref: int) -> int:
        """The size in bytes of an allocated block; 0 if the reference is not one."""
        order = self._taken.get(ref)
        return 0 if order is None else _NBYTES[order]

    def is_taken(self, ref: int) -> bool:
        """Whether the reference names an allocated block of this slab."""
        return ref in self._taken

    def open(self, ref: int) -> memoryview:
        """The memory of an allocated block, writable. The reference must be valid."""
        order = self._taken[ref]
        start = (ref >> GENERATION_BITS & _UNIT_MASK) * UNIT
        return self._memory[start : start + _NBYTES[order]]

    def free(self, ref: int) -> bool:
        """Free a block. False, and no effect, if the reference is stale or of another slab."""
        order = self._taken.pop(ref, None)
        if order is None:
            return False
        unit = ref >> GENERATION_BITS & _UNIT_MASK
        self._generations[unit] += _NEXT_GENERATION  # publishes: every reference to the block is stale
        self._free[order].append(unit)
        self.free_nbytes += _NBYTES[order]
        self._grown_since_join = True
        return True

    def prepare(self) -> None:
        """Add memory before it is needed, if less than half of the added memory is free. To be called by an idle
        process, and when requests or answers have just been sent."""
        self.is_scarce = False
        if self._is_half_taken(0):
            self._add(0)

    def _is_half_taken(self, nbytes: int) -> bool:
        """Whether less than half of the added memory is free when a block of `nbytes` is taken."""
        free_nbytes = self.free_nbytes - nbytes - (self._num_units - self._num_added) * UNIT
        return 2 * free_nbytes < self._num_added * UNIT

    def _add(self, order: int) -> bool:
        """Double the added memory, or add more for a block of that order. False if there is no memory."""
        start, end = self._num_added, min(self._num_units, max(2 * self._num_added, 2 << order))
        if start == end or not self._segment.make_present(self._segment.header.slab_offset + end * UNIT):
            return False
        add_blocks(self._free, start, end)
        self._num_added = end
        self._grown_since_join = True
        return True

    def _split(self, order: int) -> int | None:
        """First unit of a block of that order, split off the smallest free block that is large enough; None if there is
        none, even after adding memory or joining neighbours."""
        free = self._free
        larger = next((o for o in range(order, len(free)) if free[o]), None)
        if larger is None:
            possible = order < len(free) and (self._add(order) or self._join())
            return self._split(order) if possible else None
        unit = free[larger].pop()
        while larger > order:
            larger -= 1
            free[larger].append(unit + (1 << larger))
        self.is_scarce = self._num_added < self._num_units and self._is_half_taken(_NBYTES[order])
        return unit

    def _join(self) -> bool:
        """Merge free neighbours of equal size, smallest first. False if nothing was freed or added since the last
        call."""
        if not self._grown_since_join:
            return False
        self._grown_since_join = False
        self.num_joins += 1
        free = self._free
        for order in range(len(free) - 1):
            units = set(free[order])
            pairs = [unit for unit in units if not unit >> order & 1 and unit + (1 << order) in units]
            free[order + 1].extend(pairs)
            for unit in pairs:
                units -= {unit, unit + (1 << order)}
            free[order] = list(units)
        return True


def block_nbytes(nbytes: int) -> int:
    """Bytes of the block that `Slab.allocate` returns for `nbytes`."""
    return UNIT << ((nbytes - 1) // UNIT).bit_length() if nbytes > UNIT else UNIT


class WholeSlab:
    """The owner's side of an oversize segment: a single block of any size, which is the whole slab."""

    def __init__(self, segment: Segment) -> None:
        header = segment.header
        self.owner = header.owner
        self.nbytes = header.slab_nbytes
        self._memory = segment.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes]
        # Changed by allocate and free: the generation of the block, in the segment's table.
        self._generations = _generations(segment)
        self._order = max(0, header.slab_nbytes // UNIT - 1).bit_length()

    def allocate(self) -> Block:
        """The segment's block, which must be free. Its contents are undefined, and it is in use until `free`."""
        word = (self._generations[0] | _ORDER_MASK) + 1 + self._order  # the next generation
        self._generations[0] = word  # publishes: references of this generation are good
        return Block(layout.pack_ref(self.owner, 0, word >> 8), self._memory)

    def free(self) -> None:
        """Free the segment's block: every reference to it becomes stale."""
        self._generations[0] += _NEXT_GENERATION  # publishes: every reference to the block is stale


def add_blocks(free: list[list[int]], start: int, end: int) -> None:
    """Add to `free`, which has first units by order, the largest aligned blocks that tile the units from `start` to
    `end`; these blocks are handed out after all that are free already, in the order of their units."""
    while start < end:
        order = min(len(free), (end - start).bit_length(), (start & -start or end).bit_length()) - 1
        free[order].insert(0, start)
        start += 1 << order


def taken_nbytes(mapping: Mapping) -> int:
    """Bytes of a slab's allocated blocks, found by their odd generations. Walks the whole table."""
    return sum([UNIT << (word & _ORDER_MASK) for word in _generations(mapping).tolist() if word >> 8 & 1])


class SlabView:
    """A slab, for the peers of its owner, which read it."""

    def __init__(self, mapping: Mapping) -> None:
        header = mapping.header
        self._first = header.owner << UNIT_BITS  # the reference to unit 0, without its generation
        self._memory = mapping.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes].toreadonly()
        self._generations = _generations(mapping)
        self._num_units = len(self._generations)

    @property
    def nbytes(self) -> int:
        return self._num_units * UNIT

    def open(self, ref: int) -> memoryview | None:
        """The memory (bytes) of the block that `ref` names, read-only, cut off at the slab's end; None if the reference
        is stale or names another slab. The block stays its owner's."""
        unit = (ref >> GENERATION_BITS) - self._first
        if not 0 <= unit < self._num_units:
            return None
        word = self._generations[unit]
        if (word >> 8 ^ ref) & GENERATION_MASK:
            return None
        start = unit * UNIT
        return self._memory[start : start + _NBYTES[word & _ORDER_MASK]]  # a slice ends where the slab does

"""A slab: a segment's memory handed out in blocks of 2^n × 4096 bytes. Its owner allocates and frees; others only look.

Bookkeeping lives in the owner's private memory, so a death leaves nothing to repair. In shared memory there is one word
per 4096-byte unit: the generation and order of the block that starts there. It changes when a block is allocated and
when it is freed, so a reference outlives its block as nothing worse than None.
"""

from typing import NamedTuple

from shoal.shm import layout
from shoal.shm.layout import GENERATION_MASK, UNIT, WORD
from shoal.shm.segment import Mapping, Segment


class Block(NamedTuple):
    """A block as its owner sees it: the word that names it, and its memory, writable until it is freed."""

    ref: int
    memory: memoryview


def _generations(mapping: Mapping) -> memoryview:
    header = mapping.header
    start = layout.Geometry(header.ring_capacity, header.slab_nbytes).generations_offset // WORD
    return mapping.words[start : start + header.slab_nbytes // UNIT]


class Slab:
    """The owner's side: a buddy allocator that joins neighbours only when it must.

    Freed blocks keep their size and are handed out again, last freed first, while their lines are warm; only when
    nothing fits are free neighbours joined. So the steady state costs one pop and one append.
    """

    def __init__(self, segment: Segment) -> None:
        header = segment.header
        self._owner = header.owner
        self._memory = segment.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes]
        self._generations = _generations(segment)
        self._num_units = header.slab_nbytes // UNIT
        # Changed by allocate and free: per order the first units of free blocks; unit → order of those handed out.
        self._free: list[list[int]] = whole_blocks(self._num_units)
        self._taken: dict[int, int] = {}
        self._freed_since_join = False

    @property
    def largest_nbytes(self) -> int:
        """The largest block this slab can ever hand out, in bytes."""
        return UNIT << max(0, self._num_units.bit_length() - 1) if self._num_units else 0

    @property
    def num_taken(self) -> int:
        """Blocks handed out and not freed."""
        return len(self._taken)

    def allocate(self, nbytes: int) -> Block | None:
        """A block of at least `nbytes`, 4096-byte aligned, contents undefined; None where there is none now."""
        order = max(0, (nbytes - 1) // UNIT).bit_length()
        unit = self._take(order)
        if unit is None:
            return None
        self._taken[unit] = order
        generation = (self._generations[unit] >> 8) + 1
        self._generations[unit] = generation << 8 | order  # publishes: references of this generation are good
        start = unit * UNIT
        return Block(layout.pack_ref(self._owner, unit, generation), self._memory[start : start + (UNIT << order)])

    def free(self, ref: int) -> bool:
        """Take a block back. False, and nothing happens, where the reference is stale or not this slab's."""
        owner, unit, generation = layout.unpack_ref(ref)
        order = self._taken.get(unit)
        if owner != self._owner or order is None:
            return False
        current = self._generations[unit] >> 8
        if current & GENERATION_MASK != generation:
            return False
        del self._taken[unit]
        self._generations[unit] = current + 1 << 8 | order  # publishes: every reference to the block is stale
        self._free[order].append(unit)
        self._freed_since_join = True
        return True

    def _take(self, order: int) -> int | None:
        free = self._free
        if order >= len(free):
            return None
        if free[order]:
            return free[order].pop()
        larger = next((o for o in range(order + 1, len(free)) if free[o]), None)
        if larger is None:
            return self._take(order) if self._join() else None
        unit = free[larger].pop()
        while larger > order:
            larger -= 1
            free[larger].append(unit + (1 << larger))
        return unit

    def _join(self) -> bool:
        """Merge free neighbours of equal size, smallest first. False if nothing was freed since the last time."""
        if not self._freed_since_join:
            return False
        self._freed_since_join = False
        free = self._free
        for order in range(len(free) - 1):
            units = set(free[order])
            pairs = [unit for unit in units if not unit >> order & 1 and unit + (1 << order) in units]
            free[order + 1].extend(pairs)
            for unit in pairs:
                units -= {unit, unit + (1 << order)}
            free[order] = list(units)
        return True


def whole_slab(segment: Segment) -> Block:
    """The one block of a segment for a single payload: all of its slab, whatever its size. Called once per segment."""
    header = segment.header
    order = max(0, header.slab_nbytes // UNIT - 1).bit_length()
    _generations(segment)[0] = 1 << 8 | order  # publishes: the reference is good for as long as the segment is known
    memory = segment.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes]
    return Block(layout.pack_ref(header.owner, 0, 1), memory)


def whole_blocks(num_units: int) -> list[list[int]]:
    """Per order, the first units of the largest aligned blocks that tile `num_units`."""
    free: list[list[int]] = [[] for _ in range(num_units.bit_length())]
    unit = 0
    for order in reversed(range(len(free))):
        while num_units - unit >= 1 << order:
            free[order].append(unit)
            unit += 1 << order
    return free


class SlabView:
    """A peer's side: opens references, read-only."""

    def __init__(self, mapping: Mapping) -> None:
        header = mapping.header
        self._owner = header.owner
        self._memory = mapping.bytes[header.slab_offset : header.slab_offset + header.slab_nbytes].toreadonly()
        self._generations = _generations(mapping)

    def open(self, ref: int) -> memoryview | None:
        """The block's memory, read-only, never beyond the slab's end; None where the reference is stale or foreign."""
        owner, unit, generation = layout.unpack_ref(ref)
        if owner != self._owner or unit >= len(self._generations):
            return None
        word = self._generations[unit]
        order = word & 0xFF
        if word >> 8 & GENERATION_MASK != generation:
            return None
        start = unit * UNIT
        return self._memory[start : start + (UNIT << order)]  # a slice ends where the slab does

"""The holders of each block of a worker's slab. Pure; lives in the batcher.

One block holds the outputs of a whole executed batch, so it has as many holders as there are replies not yet released.
A holder is the key of such a reply's request. Sending a reply adds a holder; a RELEASE or the client's death removes
the holder; when the last holder is removed, the block's owner is sent FREE. If a request gets several replies, all but
the last are parts, which are held and released one by one. The block of a request's inputs is not listed: its REPLY
frees it.
"""

from collections.abc import Container

from shoal.shm.layout import NUMBER_BITS, ref_owner


class Holders:
    """The holders of each block. Methods that remove a holder return the blocks that are left without one."""

    __slots__ = ("_counts", "_held", "_parts")

    def __init__(self) -> None:
        # Changed by every method: block reference → number of holders; holder → block of its final reply; (holder,
        # block) → number of parts in that block.
        self._counts: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._parts: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        """Number of held blocks."""
        return len(self._counts)

    @property
    def num_held(self) -> int:
        """Number of replies that have not been released."""
        return len(self._held) + sum(self._parts.values())

    def hold(self, ref: int, key: int) -> None:
        """Add a request as a holder of the block of its final reply."""
        self._held[key] = ref
        self._counts[ref] = self._counts.get(ref, 0) + 1

    def hold_part(self, ref: int, key: int) -> None:
        """Add a request as a holder of the block of a reply that is not final, or of a piece of a reply. Several
        parts may lie in one block."""
        self._parts[key, ref] = self._parts.get((key, ref), 0) + 1
        self._counts[ref] = self._counts.get(ref, 0) + 1

    def is_held(self, ref: int) -> bool:
        return ref in self._counts

    def release(self, key: int, part: int = 0) -> int:
        """Remove a request's hold on its final reply's block or, with `part`, one hold on that block. Returns the block
        if it has no holder any more, else 0."""
        if not part:
            ref = self._held.pop(key, 0)
        elif num_parts := self._parts.pop((key, part), 0):
            if num_parts > 1:
                self._parts[key, part] = num_parts - 1
            ref = part
        else:
            ref = 0
        if ref == 0:
            return 0
        count = self._counts[ref]
        if count > 1:
            self._counts[ref] = count - 1
            return 0
        del self._counts[ref]
        return ref

    def held_in(self, segments: Container[int]) -> dict[int, set[int]]:
        """Per client (owner id), the blocks of these segments in which the client holds replies."""
        held: dict[int, set[int]] = {}
        for key, ref in (*self._held.items(), *self._parts):
            if ref_owner(ref) in segments:
                held.setdefault(key >> NUMBER_BITS, set()).add(ref)
        return held

    def release_owner(self, owner: int, but: Container[int] = ()) -> list[int]:
        """Remove a dead client's requests as holders, except for the keys `but`. Returns the blocks that have no
        holder any more."""
        gone = [(key, 0) for key in self._held if key >> NUMBER_BITS == owner and key not in but]
        for part, num_parts in self._parts.items():
            if part[0] >> NUMBER_BITS == owner and part[0] not in but:
                gone += [part] * num_parts
        return [ref for key, part in gone if (ref := self.release(key, part))]

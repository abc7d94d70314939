"""Who still needs which block of a worker's slab: block → holders. Pure; lives in the batcher.

One block holds the outputs of a whole executed batch, so it has as many holders as there are replies not yet released.
A holder is the key of such a reply's request. Handing out a reference adds one; a RELEASE or the client's death takes
it away; when the last one goes, the block's owner is told to free it. Where a request gets several replies, all but the
last are parts, which are held and released one by one. The block of a request's inputs is not listed: its REPLY is what
gives it back.
"""

from shoal.shm.layout import NUMBER_BITS


class Holders:
    """The table. Every operation that removes a holder tells which blocks nobody holds any more."""

    __slots__ = ("_counts", "_held", "_parts")

    def __init__(self) -> None:
        # Changed by every method: block reference → number of holders; holder → its block; (holder, block) of parts.
        self._counts: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._parts: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        """Blocks that are held."""
        return len(self._counts)

    @property
    def num_held(self) -> int:
        """Replies that have not been released."""
        return len(self._held) + len(self._parts)

    def hold(self, ref: int, key: int) -> None:
        """The client of this request has been handed a reference to the block."""
        self._held[key] = ref
        self._counts[ref] = self._counts.get(ref, 0) + 1

    def hold_part(self, ref: int, key: int) -> None:
        """The same, of a reply that others follow. A block that the same request holds already is held once."""
        if (key, ref) not in self._parts:
            self._parts.add((key, ref))
            self._counts[ref] = self._counts.get(ref, 0) + 1

    def is_held(self, ref: int) -> bool:
        """Whether anybody holds the block."""
        return ref in self._counts

    def release(self, key: int, part: int = 0) -> int:
        """The holder is done: with `part`, one block of several, or else with its last. Returns the block that nobody
        holds any more, or 0."""
        if not part:
            ref = self._held.pop(key, 0)
        elif (key, part) in self._parts:
            self._parts.remove((key, part))
            ref = part
        else:
            ref = 0
        if ref == 0:
            return 0
        count = self._counts.pop(ref) - 1
        if count:
            self._counts[ref] = count
            return 0
        return ref

    def release_owner(self, owner: int) -> list[int]:
        """A client is gone with all it held. Returns the blocks nobody holds any more."""
        gone = [(key, 0) for key in self._held if key >> NUMBER_BITS == owner]
        gone += [(key, ref) for key, ref in self._parts if key >> NUMBER_BITS == owner]
        return [ref for key, part in gone if (ref := self.release(key, part))]

"""Who still needs which block of a worker's slab: block → holders. Pure; lives in the batcher.

One block holds the outputs of a whole executed batch, so it has as many holders as there are replies not yet released.
Handing out a reference adds a holder; a RELEASE or the holder's death takes it away; when the last one goes, the
block's owner is told to free it. The block of a request's inputs is not listed: its REPLY is what gives it back.
"""

#: A reply at a client that has not been released: the client's owner id and its number of the request. A plain tuple:
#: a named one costs ten times as much to make, twice per request.
Holder = tuple[int, int]


class Holders:
    """The table. Every operation that removes a holder tells which blocks nobody holds any more."""

    def __init__(self) -> None:
        # Changed by every method: block reference → its holders, and the other way round.
        self._holders: dict[int, set[Holder]] = {}
        self._held: dict[Holder, int] = {}

    def __len__(self) -> int:
        """Blocks that are held."""
        return len(self._holders)

    def hold(self, ref: int, holder: Holder) -> None:
        """`holder` has been handed a reference to the block."""
        holders = self._holders.get(ref)
        if holders is None:
            self._holders[ref] = {holder}
        else:
            holders.add(holder)
        self._held[holder] = ref

    def is_held(self, ref: int) -> bool:
        """Whether anybody holds the block."""
        return ref in self._holders

    def release(self, holder: Holder) -> int:
        """The holder is done. Returns the block nobody holds any more, or 0."""
        ref = self._held.pop(holder, 0)
        if ref == 0:
            return 0
        holders = self._holders[ref]
        holders.remove(holder)
        if holders:
            return 0
        del self._holders[ref]
        return ref

    def release_owner(self, owner: int) -> list[int]:
        """A client is gone with all it held. Returns the blocks nobody holds any more."""
        gone = [holder for holder in self._held if holder[0] == owner]
        return [ref for ref in map(self.release, gone) if ref]

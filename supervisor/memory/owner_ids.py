"""Owner ids: every reference to a block begins with one, the number of the segment in which the block lies."""

from collections.abc import Callable

from shoal.shm.layout import MIRROR_OWNER


class OwnerIds:
    """Hands out owner ids in turn. Each payload beyond a slab takes one, so the numbers start again from 1."""

    def __init__(self) -> None:
        self.next = 1

    def take(self, is_taken: Callable[[int], bool]) -> int:
        """An owner id that no segment has."""
        owner = self.next
        while is_taken(owner):
            owner = _after(owner)
        self.next = _after(owner)
        return owner


def _after(owner: int) -> int:
    return owner % (MIRROR_OWNER - 1) + 1  # no owner is 0, nor that of mirrored requests

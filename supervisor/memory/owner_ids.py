"""Owner ids: the number that a reference to a block begins with, and that says whose segment it lies in."""

from collections.abc import Callable

from shoal.shm.layout import OWNER_BITS


class OwnerIds:
    """One after the other. Each payload beyond a slab takes one, so they come round."""

    def __init__(self) -> None:
        self.next = 1

    def take(self, is_taken: Callable[[int], bool]) -> int:
        """One that no segment has."""
        owner = self.next
        while is_taken(owner):
            owner = _after(owner)
        self.next = _after(owner)
        return owner


def _after(owner: int) -> int:
    return owner % ((1 << OWNER_BITS) - 1) + 1  # no owner is 0

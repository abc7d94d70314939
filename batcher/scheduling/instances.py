"""The instances of one model: which exist, and which of them are idle, longest idle first.

Numbers only: what an instance is and what it runs is the batcher's business. Pure policy, runs in the batcher.
"""

from collections import deque


class Instances:
    """Taking and completing are O(1); only adding and removing an instance, which is rare, walks the idle ones."""

    __slots__ = ("_busy", "idle")

    def __init__(self) -> None:
        # Changed by every method here. An instance is in exactly one of the two.
        #: Truthy while some instance is idle.
        self.idle: deque[int] = deque()
        self._busy: set[int] = set()

    def __len__(self) -> int:
        return len(self.idle) + len(self._busy)

    def add(self, instance: int) -> None:
        """A new instance is idle; one that is known stays as it is."""
        if instance not in self._busy and instance not in self.idle:
            self.idle.append(instance)

    def remove(self, instance: int) -> None:
        """Forgets the instance, idle or busy; its completion will have no effect any more."""
        if instance in self._busy:
            self._busy.remove(instance)
        elif instance in self.idle:
            self.idle.remove(instance)

    def take(self) -> int:
        """The instance that has been idle longest, now busy; IndexError where none is idle."""
        instance = self.idle.popleft()
        self._busy.add(instance)
        return instance

    def complete(self, instance: int) -> None:
        """The instance is idle again. One that was removed meanwhile, or was idle anyway, changes nothing."""
        if instance in self._busy:
            self._busy.remove(instance)
            self.idle.append(instance)

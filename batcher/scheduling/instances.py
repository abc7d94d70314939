"""The instances of one model: which exist, which of them are idle, longest idle first, and how fast they are.

Numbers only: what an instance is and what it runs is the batcher's business. Pure policy, runs in the batcher.
"""

from collections import deque

#: An execution shorter than this costs less than waking the two processes that hand over the next one (measured: a
#: wake takes 5 to 30 us, and three are needed per execution).
FAST_NS = 250_000
#: Executions that a fast instance may have at once: one it runs and those that lie ready in its ring.
MAX_AHEAD = 8
_UNKNOWN = -1


class Instances:
    """Taking and completing are O(1); only adding and removing an instance, which is rare, walks the idle ones."""

    __slots__ = ("_busy", "_busy_since_ns", "_mean_ns", "idle")

    def __init__(self) -> None:
        # Changed by every method here. An instance is in exactly one of idle and busy.
        #: Truthy while some instance is idle.
        self.idle: deque[int] = deque()
        self._busy: dict[int, int] = {}  # instance → executions it was given and has not completed
        self._busy_since_ns: dict[int, int] = {}  # when the one it runs began, as far as is known here
        self._mean_ns = 2 * FAST_NS  # of an execution, over the last few; not fast until proven by six of them

    def __len__(self) -> int:
        return len(self.idle) + len(self._busy)

    def add(self, instance: int, num_running: int = 0) -> None:
        """A new instance is idle, unless it has executions already; one that is known stays as it is."""
        if instance in self._busy or instance in self.idle:
            return
        if num_running:
            self._busy[instance] = num_running
            self._busy_since_ns[instance] = _UNKNOWN
        else:
            self.idle.append(instance)

    def remove(self, instance: int) -> None:
        """Forgets the instance, idle or busy; its completions will have no effect any more."""
        if instance in self._busy:
            del self._busy[instance]
            del self._busy_since_ns[instance]
        elif instance in self.idle:
            self.idle.remove(instance)

    def take(self, now_ns: int) -> int:
        """The instance that has been idle longest, now busy; IndexError where none is idle."""
        instance = self.idle.popleft()
        self._busy[instance] = 1
        self._busy_since_ns[instance] = now_ns
        return instance

    def take_ahead(self) -> int | None:
        """A busy instance for one execution more, the one with the fewest; None where that would not pay.

        The execution cannot move to another instance that becomes idle first, so only fast models work ahead.
        """
        if self._mean_ns >= FAST_NS or not self._busy:
            return None
        instance = min(self._busy, key=self._busy.__getitem__)
        if self._busy[instance] >= MAX_AHEAD:
            return None
        self._busy[instance] += 1
        return instance

    def complete(self, instance: int, now_ns: int) -> None:
        """One execution less. For one that was removed meanwhile, or was idle anyway, nothing changes."""
        count = self._busy.get(instance)
        if count is None:
            return
        since_ns = self._busy_since_ns[instance]
        if since_ns != _UNKNOWN:
            self._mean_ns += (now_ns - since_ns - self._mean_ns) >> 3
        if count > 1:
            self._busy[instance] = count - 1
            self._busy_since_ns[instance] = now_ns
            return
        del self._busy[instance]
        del self._busy_since_ns[instance]
        self.idle.append(instance)

"""The instances of one model: which exist, which of them are idle, longest idle first, and how fast they are.

Numbers only: what an instance is and what it runs is the batcher's business. Pure policy, runs in the batcher.
"""

from collections import deque

#: An execution shorter than this costs less than waking the two processes that hand over the next one (measured: a
#: wake takes 5 to 30 us, and three are needed per execution).
FAST_NS = 250_000
#: One shorter than this costs less than waking even one process: it goes to an instance that is awake, though another
#: is idle (measured with eight instances on two cores: 0.2 wakes per request instead of 1.0, half the worker's CPU).
TINY_NS = 50_000
#: Executions that a fast instance may have at once: one it runs and those that lie ready in its ring.
MAX_AHEAD = 8


class Instances:
    """Taking and completing are O(1), or O(busy) where executions are short; adding and removing are rare."""

    __slots__ = ("_busy", "_mean_ns", "idle")

    def __init__(self) -> None:
        # Changed by every method here. An instance is in exactly one of idle and busy.
        #: Truthy while some instance is idle.
        self.idle: deque[int] = deque()
        self._busy: dict[int, int] = {}  # instance → executions it was given and has not completed
        self._mean_ns = 2 * FAST_NS  # of an execution, over the last few; not fast until proven by six of them

    def __len__(self) -> int:
        return len(self.idle) + len(self._busy)

    def add(self, instance: int, num_running: int = 0) -> None:
        """A new instance is idle, unless it has executions already; one that is known stays as it is."""
        if instance in self._busy or instance in self.idle:
            return
        if num_running:
            self._busy[instance] = num_running
        else:
            self.idle.append(instance)

    def remove(self, instance: int) -> None:
        """Forgets the instance, idle or busy; its completions will have no effect any more."""
        if instance in self._busy:
            del self._busy[instance]
        elif instance in self.idle:
            self.idle.remove(instance)

    def take(self) -> int:
        """The instance that has been idle longest, now busy; IndexError where none is idle."""
        instance = self.idle.popleft()
        self._busy[instance] = 1
        return instance

    def take_or_work_ahead(self) -> int | None:
        """An instance for one execution more, idle or, where executions are short, busy; None where that would not pay.

        An execution cannot move to another instance that becomes idle first, so only fast models work ahead: on the
        instance with the fewest where none is idle, and tiny ones on the fullest that may have more, so that the others
        can sleep.
        """
        busy = self._busy
        if busy and self._mean_ns < FAST_NS:
            instance = None
            if self._mean_ns < TINY_NS:
                fullest = 0
                for each, count in busy.items():  # max() would take 3k instructions more, of 105k a request
                    if fullest < count < MAX_AHEAD:
                        instance, fullest = each, count
            elif not self.idle:
                instance = min(busy, key=busy.__getitem__)
            if instance is not None and busy[instance] < MAX_AHEAD:
                busy[instance] += 1
                return instance
        return self.take() if self.idle else None

    def complete(self, instance: int, compute_ns: int) -> None:
        """One execution less, which took so long. For one that was removed, or was idle anyway, nothing changes."""
        count = self._busy.get(instance)
        if count is None:
            return
        self._mean_ns += (compute_ns - self._mean_ns) >> 3
        if count > 1:
            self._busy[instance] = count - 1
            return
        del self._busy[instance]
        self.idle.append(instance)

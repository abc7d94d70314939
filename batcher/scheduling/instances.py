"""The instances of one model: which of them are idle, longest idle first, and how fast they are.

Instances are numbers here; only the batcher knows workers and their batches. Pure policy, runs in the batcher.
"""

from collections import deque
from typing import Final

#: An execution shorter than this costs less than waking the two processes that hand over the next one (measured: a
#: wake takes 5 to 30 us, and three are needed per execution).
FAST_NS: Final = 250_000
#: An execution shorter than this costs less than waking even one process: it goes to an instance that is awake, though
#: another instance is idle (measured with eight instances on two cores: 0.2 wakes per request instead of 1, half of the
#: worker's CPU time).
TINY_NS: Final = 50_000
#: Executions that a fast instance may have at once: the running one and those that lie ready in its ring.
MAX_AHEAD: Final = 8
#: An execution that takes longer than this is slow: executions behind it in the ring would wait for longer than work
#: ahead saves them, and cannot move to another instance (ours).
SLOW_NS: Final = 1_000_000
#: After a slow execution, the instances of a model with several do not work ahead for this many times its duration.
#: With this value, work ahead is off for models whose slow executions take a tenth of the time, and still on if an
#: execution is interrupted now and then (measured: with 4 instances on 2 crowded cores, 3 executions a second took 1 to
#: 12 ms instead of 0.02; with a value of 100 a request cost the batcher 33 us instead of 21).
CALM_TIMES: Final = 10
#: The longest such pause of work ahead (ours).
MAX_CALM_NS: Final = 10_000_000_000


class Instances:
    """Idle and busy instances of a model. Taking and completing are O(1), or O(busy) for short executions; adding and
    removing are rare."""

    __slots__ = ("_begun_ns", "_busy", "_calm_until_ns", "_mean_ns", "idle")

    def __init__(self) -> None:
        # Changed by every method here. An instance is in exactly one of idle and busy.
        #: Idle instances, the longest idle first.
        self.idle: deque[int] = deque()
        self._busy: dict[int, int] = {}  # instance → number of executions it was given and has not completed
        #: Instance → when its running execution was given to it, or could begin; only if the instance may work ahead.
        self._begun_ns: dict[int, int] = {}
        self._mean_ns = 2 * FAST_NS  # mean of the last few executions; six short ones bring it below FAST_NS
        self._calm_until_ns = 0  # until then no instance works ahead, since an execution was slow

    def __len__(self) -> int:
        return len(self.idle) + len(self._busy)

    def add(self, instance: int, num_running: int = 0) -> None:
        """Add an instance, idle unless it has `num_running` executions already; no effect if it is known."""
        if instance in self._busy or instance in self.idle:
            return
        self._begun_ns[instance] = 0
        if num_running:
            self._busy[instance] = num_running
        else:
            self.idle.append(instance)

    def remove(self, instance: int) -> None:
        """Forget an instance, idle or busy; its completions have no effect any more."""
        self._begun_ns.pop(instance, None)
        if instance in self._busy:
            del self._busy[instance]
        elif instance in self.idle:
            self.idle.remove(instance)

    def take(self) -> int:
        """The instance that has been idle longest, busy from now on. Raises IndexError if none is idle."""
        instance = self.idle.popleft()
        self._busy[instance] = 1
        return instance

    def take_or_work_ahead(self, now_ns: int) -> int | None:
        """An instance for one execution more: idle or, if executions are short, busy; None if no instance may take it
        now.

        An execution cannot move to another instance that becomes idle first, so only fast models work ahead. If no
        instance is idle, the execution goes to the instance with the fewest executions. If the model's executions are
        tiny, it goes to the instance with the most executions that may have one more, so that the other instances can
        sleep. Where a model has several instances, nothing is put behind an execution that is, or may turn out, slow.
        """
        busy, idle = self._busy, self.idle
        if busy and (mean_ns := self._mean_ns) < FAST_NS:
            instance, most = 0, 0
            if not idle and len(busy) == 1:  # there is no other instance to which an execution could go
                ((instance, most),) = busy.items()
            elif now_ns >= self._calm_until_ns:
                begun_ns = self._begun_ns
                if mean_ns < TINY_NS:
                    for each, count in busy.items():  # max() would take 3k instructions more, of 105k a request
                        if most < count < MAX_AHEAD and now_ns - begun_ns[each] <= SLOW_NS:
                            instance, most = each, count
                elif not idle:
                    most = MAX_AHEAD
                    for each, count in busy.items():
                        if count < most and now_ns - begun_ns[each] <= SLOW_NS:
                            instance, most = each, count
            if 0 < most < MAX_AHEAD:
                busy[instance] = most + 1
                return instance
        if not idle:
            return None
        instance = idle.popleft()  # copied from take: a call would double the time
        busy[instance] = 1
        self._begun_ns[instance] = now_ns
        return instance

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        """Note that an instance has completed an execution in `compute_ns`; no effect if it was removed or idle."""
        count = self._busy.get(instance)
        if count is None:
            return
        self._mean_ns += (compute_ns - self._mean_ns) >> 3
        if compute_ns > SLOW_NS:
            self._calm_until_ns = max(self._calm_until_ns, now_ns + min(CALM_TIMES * compute_ns, MAX_CALM_NS))
        if count > 1:
            self._busy[instance] = count - 1
            self._begun_ns[instance] = now_ns
            return
        del self._busy[instance]
        self.idle.append(instance)

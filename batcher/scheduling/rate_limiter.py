"""The rate limiter: which of the instances with staged batches may execute their next one, if they share resources.

An instance with a batch is *staged* until it is *allocated* the resources that its execution needs, and *releases* them
when the execution has ended. Of the staged instances, the one with the lowest *scaled priority* comes first: the number
of its executions times its priority. The three words are Triton's. Loading and warming up count as executions, as in
Triton, so a new instance begins with two turns. The rules on top of Triton's, so that no instance waits for ever:

- While the instance that comes first has to wait, the resources that it needs are kept for it: the instances behind it
  may take only the rest.
- When an instance is served, each instance that waits for one of the same resources is moved up until it is no more
  than two of its own turns behind. So an instance that was idle, or was just loaded, is served at most two turns in
  advance.

Numbers only; pure policy, runs in the batcher.
"""

from collections.abc import Sequence
from operator import itemgetter

from shoal.model_config.rate_limiter import Demand, Limit, Resource, capacities

#: Executions that a new instance begins with: for its initialization and its warm-up (Triton's).
_AT_FIRST = 2
#: Most turns by which a waiting instance may be behind the one that is served (ours: the least with which Triton's own
#: test passes, in which the model that was served first has to let the other models catch up).
_MOST_BEHIND = 2


class _Instance:
    """An instance: its demand, its staged batches, and its executions."""

    __slots__ = ("demand", "is_allocated", "num_running", "num_staged", "scaled_priority")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.scaled_priority = _AT_FIRST * demand.priority
        self.num_staged = self.num_running = 0
        #: True between the allocation of resources and the start of the batch for which they were allocated.
        self.is_allocated = False


class RateLimiter:
    """The resources that all instances of all models share. `allocate` is O(number of waiting instances) for each
    allocated instance; staging, beginning and releasing are O(1)."""

    def __init__(self, limits: Sequence[Limit] = ()) -> None:
        self._limits = limits
        # Changed by every method. All instances, by number.
        self._instances: dict[int, _Instance] = {}
        #: Instances with a staged batch that execute no batch and have no resources allocated. Of two with equal scaled
        #: priorities, the one that was added here first comes first.
        self._waiting: dict[int, _Instance] = {}
        #: Free units of each resource; negative if a death has removed more than was free.
        self._free: dict[Resource, int] = {}

    def add(self, instance: int, demand: Demand) -> None:
        """Add an instance, before it is staged or held for the first time."""
        self._instances[instance] = _Instance(demand)
        self._count()

    def remove(self, instance: int) -> None:
        """Remove a dead instance; its resources are free."""
        if self._instances.pop(instance, None) is not None:
            self._waiting.pop(instance, None)
            self._count()

    def _count(self) -> None:
        self._free = capacities([each.demand for each in self._instances.values()], self._limits)
        for each in self._instances.values():
            if each.num_running or each.is_allocated:
                self._use(each)

    def _use(self, known: _Instance, times: int = 1) -> None:
        """Take the resources that an instance's execution needs; with -1, give them back."""
        for name, count in known.demand.resources:
            self._free[name] -= times * count

    def is_limited(self, instance: int) -> bool:
        """Whether the instance needs any shared resource; otherwise it is never staged."""
        known = self._instances.get(instance)
        return known is not None and bool(known.demand.resources)

    def stage(self, instance: int) -> None:
        """Note one more batch that the instance is to execute, after its batches that are staged already."""
        known = self._instances[instance]
        known.num_staged += 1
        if not (known.num_running or known.is_allocated):
            self._waiting.setdefault(instance, known)

    def unstage(self, instance: int) -> None:
        """Note that a staged batch, which has not begun, was dropped."""
        known = self._instances.get(instance)
        if known is None:
            return
        known.num_staged -= 1
        if known.num_staged:
            return
        self._waiting.pop(instance, None)
        if known.is_allocated:
            known.is_allocated = False
            self._use(known, -1)

    def hold(self, instance: int, num_running: int) -> None:
        """Note that the instance executes `num_running` batches already, for which no resources were allocated here."""
        if num_running and self.is_limited(instance):
            known = self._instances[instance]
            known.num_running = num_running
            self._use(known)

    def allocate(self) -> list[int]:
        """Allocate resources to the instances that may execute their next batch. Returns these instances, in the order
        of allocation."""
        allocated: list[int] = []
        while self._waiting and (instance := self._next()) is not None:
            known = self._waiting.pop(instance)
            self._use(known)
            known.is_allocated = True
            self._keep_near(known)
            known.scaled_priority += known.demand.priority
            allocated.append(instance)
        return allocated

    def begin(self, instance: int) -> bool:
        """Begin the instance's next batch if its resources have been allocated. False if they have not."""
        known = self._instances.get(instance)
        if known is None or not known.is_allocated:
            return False
        known.is_allocated = False
        known.num_staged -= 1
        known.num_running = 1
        return True

    def release(self, instance: int) -> None:
        """Free the resources of an execution that has ended."""
        known = self._instances.get(instance)
        if known is None or not known.num_running:
            return
        known.num_running -= 1
        if not known.num_running:
            self._use(known, -1)
            if known.num_staged:
                self._waiting[instance] = known

    def _next(self) -> int | None:
        """The first instance for which there are enough free resources, beside the resources that are kept for the
        instances in front of it; None if there is no such instance."""
        waiting = [(each.scaled_priority, key, each.demand.resources) for key, each in self._waiting.items()]
        waiting.sort(key=itemgetter(0))
        kept: dict[Resource, int] = {}
        for _, instance, needs in waiting:
            if all(self._free[name] - kept.get(name, 0) >= count for name, count in needs):
                return instance
            for name, count in needs:
                kept[name] = kept.get(name, 0) + count
        return None

    def _keep_near(self, served: _Instance) -> None:
        """Move up instances that wait for a resource of the served instance, until they are close behind it."""
        names = [name for name, _ in served.demand.resources]
        for each in self._waiting.values():
            most = served.scaled_priority + _MOST_BEHIND * each.demand.priority
            if each.scaled_priority > most and any(name in names for name, _ in each.demand.resources):
                each.scaled_priority = most

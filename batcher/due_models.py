"""When the scheduler of each model must run again though no record has come. Pure; lives in the batcher.

The earliest is at hand however many models wait for a time, as sequences that are idle do. Setting is O(log n).
"""

from heapq import heapify, heappop, heappush

#: Times that have been replaced, beyond as many as hold, before they are thrown out (ours).
_MAX_STALE = 64


class DueModels:
    """The models that have a time, by id."""

    __slots__ = ("_heap", "due_ns")

    def __init__(self) -> None:
        # Changed by every method.
        #: For others to look whether there is any; a `__bool__` would take 0.3k instructions each time.
        self.due_ns: dict[int, int] = {}
        #: (when, model), those that have been replaced, too, until they come to its top.
        self._heap: list[tuple[int, int]] = []

    def set(self, model_id: int, due_ns: int) -> None:
        """Look at the model then, and not at the time that was set before."""
        if self.due_ns.get(model_id) == due_ns:
            return
        self.due_ns[model_id] = due_ns
        heap = self._heap
        heappush(heap, (due_ns, model_id))
        if len(heap) > 2 * len(self.due_ns) + _MAX_STALE:
            heap[:] = [(each_ns, each) for each, each_ns in self.due_ns.items()]
            heapify(heap)

    def forget(self, model_id: int) -> None:
        """Nothing is due of the model."""
        self.due_ns.pop(model_id, None)

    def next_ns(self) -> int | None:
        """The earliest time."""
        heap, due_ns = self._heap, self.due_ns
        while heap and due_ns.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now_ns: int) -> list[int]:
        """The models whose time has come; from now on they have none."""
        taken = []
        while (next_ns := self.next_ns()) is not None and next_ns <= now_ns:
            _, model_id = heappop(self._heap)
            del self.due_ns[model_id]
            taken.append(model_id)
        return taken

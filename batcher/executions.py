"""The ends of executions, as workers report them: by a batch's last answer, by READY before that, or by RESCHEDULE.

An execution that has ended is counted, and leaves its instance free. Lives in the batcher.
"""

from shoal.batcher import statistics
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import RunningBatch, ScheduledModel, WorkerPeer
from shoal.shm.layout import D
from shoal.shm.ring import Record


class Executions:
    """The executions under way in all workers; their state is in `WorkerPeer.missing`."""

    def __init__(self, requests: OpenRequests, awake: dict[int, ScheduledModel], wall: statistics.WallClock) -> None:
        """`awake` gets each model whose instance is free again."""
        self._requests = requests
        self._awake = awake
        self._wall = wall

    def ready(self, worker: WorkerPeer, record: Record, now_ns: int) -> None:
        """Handle a READY: the instance is free again, though responses of its batch are missing."""
        running = next((each for each in reversed(worker.missing.values()) if each.number == record[D.BATCH]), None)
        if running is None or running.is_executed:
            return
        sequences = worker.model.sequences
        if sequences is not None and sequences.waits_for_answers:
            return
        worker.note_overlap()
        running.is_executed = True
        start, input_end, output_start, end = record[D.COMPUTE_START_NS : D.COMPUTE_END_NS + 1]
        self._end(worker, running, statistics.compute_times(start, input_end, output_start, end, now_ns), now_ns)

    def reschedule(self, worker: WorkerPeer, record: Record, now_ns: int) -> None:
        """Handle a RESCHEDULE: the request leaves the worker unanswered, and is queued again."""
        key = record[D.KEY]
        running = worker.missing.get(key)
        # A dead batcher may have read this record before, and may have given the request to the worker a second time.
        if running is None or running.number != record[D.BATCH]:
            return
        del worker.missing[key]
        worker.note_returned(running, key)
        self._requests.reschedule(key, now_ns)
        self._awake[worker.model.id] = worker.model
        running.num_missing -= 1
        if not running.num_missing:
            self.finish(worker, running, (now_ns, 0, 0, 0), now_ns)

    def finish(self, worker: WorkerPeer, running: RunningBatch, compute: statistics.Compute, now_ns: int) -> None:
        """End a batch whose last request has been answered; `compute` has the times of its execution."""
        worker.num_finished = running.number
        running.ahead = None
        if not running.is_executed:
            self._end(worker, running, compute, now_ns)

    def _end(self, worker: WorkerPeer, running: RunningBatch, compute: statistics.Compute, now_ns: int) -> None:
        model = worker.model
        worker.free_ns = now_ns
        statistics.count_execution(model.row, running.rows, compute, now_ns + self._wall.offset_ns)
        model.scheduler.complete(worker.owner, now_ns, compute[1] + compute[2] + compute[3])
        self._awake[model.id] = model

"""What workers say of the batches they have been given: answers, whole or in parts, and when an instance is free again.

User code may have written these records; the exchange has looked whether the blocks that they name are the worker's.
Lives in the batcher; how a request ends is the business of `open_requests`.
"""

from shoal.batcher import statistics
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import Model, Running, Worker
from shoal.shm.layout import D
from shoal.shm.ring import Record


class Executions:
    """Models that may have a batch to form join `awake`."""

    def __init__(
        self,
        requests: OpenRequests,
        awake: dict[int, Model],
        wall_offset_ns: int,
    ) -> None:
        self._requests = requests
        self._awake = awake
        self._wall_offset_ns = wall_offset_ns

    def finish(self, worker: Worker, record: Record, now_ns: int) -> None:
        """One DONE: the request's only answer, or its last."""
        _, key, _, status, ref, header, start, input_end, output_start, end, _, _, _, _, _, _ = record
        running = worker.missing.pop(key, None)
        if running is None:
            return
        if end != running.end_ns:  # once for all requests of a batch that were executed as one
            running.end_ns = end
            running.compute = statistics.compute_times(start, input_end, output_start, end, now_ns)
        compute = running.compute
        self._requests.answer(key, status, ref, header, compute, now_ns)
        running.num_missing = num_missing = running.num_missing - 1
        if num_missing:
            worker.partly_answered = running
        else:
            if worker.is_hungry:
                worker.end_shortage(ref)
            self._finish_batch(worker, running, compute, now_ns)

    def respond(self, worker: Worker, record: Record, now_ns: int) -> Model | None:
        """One RESPONSE: the request stays with its worker.

        Returns its model where it has failed none the less: the worker is at work for nobody.
        """
        _, key, _, status, ref, header, *_ = record
        if key not in worker.missing:
            return None
        worker.note_overlap()
        if worker.is_hungry:
            worker.end_shortage(ref)
        return self._requests.respond(key, status, ref, header, now_ns)

    def ready(self, worker: Worker, record: Record, now_ns: int) -> None:
        """One READY: the instance is free again, though answers of the batch are missing."""
        running = next((each for each in reversed(worker.missing.values()) if each.number == record[D.BATCH]), None)
        if running is None or running.is_executed:
            return
        sequences = worker.model.sequences
        if sequences is not None and sequences.waits_for_answers:
            return
        worker.note_overlap()
        running.is_executed = True
        start, input_end, output_start, end = record[D.COMPUTE_START_NS : D.COMPUTE_END_NS + 1]
        compute = statistics.compute_times(start, input_end, output_start, end, now_ns)
        self._end_execution(worker, running, compute, now_ns)

    def reschedule(self, worker: Worker, record: Record, now_ns: int) -> None:
        """One RESCHEDULE: the request is not this worker's any more, and is not answered either."""
        key = record[D.KEY]
        running = worker.missing.get(key)
        # A dead batcher may have read this, too, and have given the request to the worker a second time.
        if running is None or running.number != record[D.BATCH]:
            return
        del worker.missing[key]
        worker.note_returned(running, key)
        self._requests.reschedule(key, now_ns)
        self._awake[worker.model.id] = worker.model
        running.num_missing -= 1
        if not running.num_missing:
            self._finish_batch(worker, running, (now_ns, 0, 0, 0), now_ns)

    def _finish_batch(self, worker: Worker, running: Running, compute: statistics.Compute, now_ns: int) -> None:
        worker.num_finished = running.number
        if not running.is_executed:
            self._end_execution(worker, running, compute, now_ns)

    def _end_execution(self, worker: Worker, running: Running, compute: statistics.Compute, now_ns: int) -> None:
        model = worker.model
        statistics.count_execution(model.row, running.rows, compute, now_ns + self._wall_offset_ns)
        model.scheduler.complete(worker.owner, now_ns, compute[1] + compute[2] + compute[3])
        self._awake[model.id] = model

"""The table of open requests, with requests to split models: the stable version executes what a canary fails.

A request goes from the canary to the stable version inside the table, and leaves the table once, like any other. Lives
in the batcher.
"""

from shoal.batcher import statistics
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import OpenRequest, RunningBatch, ScheduledModel
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import SequenceError
from shoal.batcher.splits import RoutedRequest
from shoal.errors import InternalError, UnavailableError
from shoal.reasons import Reason
from shoal.shm import records
from shoal.shm.layout import REPLY, Record


class SplitRequests(OpenRequests):
    """Open requests by key, with the ends of requests to a split's versions."""

    __slots__ = ()

    def _answer_in_split(
        self, key: int, request: OpenRequest, status: int, ref: int, header: int, compute: statistics.Compute,
        now_ns: int, running: RunningBatch | None,
    ) -> bool:  # fmt: skip
        """End a request that a canary has answered, or have the stable version execute the request. False if `answer`
        is to send the reply, because the split has not sent the request to the canary: the reply is the stable
        version's, or the request named its version. That reply is counted in the split's figures."""
        client, model, number, _, _, start_ns, queue_ns, queued = request
        routed = self.splits.routed.pop(key, None)
        if routed is None:
            self.splits.count(model, key, now_ns - queue_ns, has_failed=status != 0)
            return False
        has_failed = status != 0 or routed.has_failed
        stable = self._may_fall_back(key, request, routed, 0) if has_failed else None
        if has_failed:
            statistics.count_failure(model.row, statistics.reason_of_status(status, model.FAILURE), start_ns, now_ns)
        else:
            statistics.count_success(model.row, queued.rows, compute, start_ns, queue_ns, now_ns)
        if key not in self._responded:
            statistics.count_first_response(model.row, start_ns, now_ns)
        if stable is not None:
            self._fall_back(key, request, routed, stable, now_ns)
            return True
        if has_failed and not routed.is_cancelled:
            routed.split.canary.failed()
        elif not has_failed:
            routed.split.canary.answered(now_ns - queue_ns)
        reply: Record = (REPLY, number, status, ref, header)
        if client.traced:
            times = client.times(number, model, queue_ns, compute)
            reply = records.traced_reply_record(number, status, ref, header, times, 0)
            self._end_trace(client, number, model, start_ns, times, now_ns, running)
        if ref:
            self._holders.hold(ref, key)
            reply = records.of_version(reply, model.version)
        elif routed.has_failed:  # the canary's error was not sent to the client
            reply = records.refusal_record(number, InternalError.wire, Reason.NOT_READY)
        self._send(model, key, client, reply)
        self._forget(key, model, now_ns)
        self.splits.settle(model.id)
        return True

    def _may_fall_back(
        self, key: int, request: OpenRequest, routed: RoutedRequest, reason: int
    ) -> ScheduledModel | None:
        """The version that executes a request which a canary fails; None if the client gets the canary's error."""
        return None if key in self._responded else self.splits.fallback(routed, reason, request[-1].correlation)

    def _fall_back(
        self, key: int, request: OpenRequest, routed: RoutedRequest, stable: ScheduledModel, now_ns: int
    ) -> None:
        """Put a request that a canary has failed into the stable version's queue, as if the request had just
        arrived."""
        client, model, number, block, header, start_ns, _, was = request
        self._forget(key, model)
        if model.order is not None:
            self._send_all(model.order.forget(lambda each: each == key))
        model.row.add(statistics.FALLEN_BACK, 1)
        self._counted.add(model)
        self.splits.note_fallen_back(key, routed.split, stable)
        self.splits.settle(model.id)
        if was.deadline_ns:
            stable.heed_deadlines()
        queued = QueuedRequest(
            key, was.rows, was.shape_key, now_ns, was.priority, was.timeout_us, was.deadline_ns, was.correlation,
            was.flags,
        )  # fmt: skip
        self.by_key[key] = (client, stable, number, block, header, start_ns, now_ns, queued)
        try:
            stable.scheduler.add(queued, now_ns)
        except (UnavailableError, SequenceError) as error:
            self.refuse(key, error, now_ns)
            return
        self._counted.add(stable)
        self.splits.wake_later(stable.id, now_ns)

    def fall_back_queued(self, canary: ScheduledModel, now_ns: int) -> None:
        """Move a canary's queued requests to the stable version: the canary gets no more requests, or has no instance.
        Requests of sequences stay in the canary's queue."""
        if canary.sequences is not None:
            return
        for key in self.splits.waiting(canary):
            request, routed = self.by_key.get(key), self.splits.routed[key]
            if request is None:
                self.splits.forget(key)
                continue
            stable = self._may_fall_back(key, request, routed, 0)
            if stable is not None and canary.scheduler.cancel(key):
                del self.splits.routed[key]
                self._fall_back(key, request, routed, stable, now_ns)

    def _fail_in_split(self, key: int, request: OpenRequest, reason: Reason, now_ns: int, cell: int) -> bool:
        """Have the stable version execute a request that its canary will not answer. False if `fail` is to refuse the
        request, whose failure the split's figures count here."""
        model, routed = request[1], self.splits.routed.pop(key, None)
        if routed is None:
            if reason is not Reason.CANCELLED:
                self.splits.count(model, key, 0, has_failed=True)
            self.splits.forget(key)
            self.splits.settle(model.id)
            return False
        stable = self._may_fall_back(key, request, routed, reason)
        if stable is None:
            self.splits.settle(model.id)
            if reason is not Reason.CANCELLED and not routed.is_cancelled:
                routed.split.canary.failed()
            return False
        statistics.count_failure(model.row, cell, request[5], now_ns)
        if key not in self._responded:
            statistics.count_first_response(model.row, request[5], now_ns)
        self._fall_back(key, request, routed, stable, now_ns)
        return True

    def _is_held_back(self, key: int, request: OpenRequest, status: int) -> bool:
        routed = self.splits.routed[key]
        if status and self._may_fall_back(key, request, routed, 0) is not None:
            routed.has_failed = True  # the stable version executes the request once the canary has ended it
        return routed.has_failed

    def _is_expendable(self, key: int, reason: Reason) -> bool:
        routed, request = self.splits.routed.get(key), self.by_key.get(key)
        if routed is None or request is None:
            return False
        return self._may_fall_back(key, request, routed, reason) is not None

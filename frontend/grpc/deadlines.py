"""The deadlines of a lane's calls, the earliest first. One thread, the lane's."""

import heapq
from typing import NamedTuple

from shoal.frontend.grpc.call import OpenCall
from shoal.frontend.grpc.connection import GrpcConnection


class Deadline(NamedTuple):
    """A call's deadline (monotonic seconds). The call may have ended long before."""

    at_s: float
    number: int  # unique, so that the heap never has to compare connections
    connection: GrpcConnection
    stream_id: int
    call: OpenCall

    @property
    def is_awaited(self) -> bool:
        """Whether the call is open, and has not been handed to the road, which has its own clock."""
        return self.connection.calls.get(self.stream_id) is self.call


class Deadlines:
    """The deadlines of a lane's calls whose clients gave one."""

    def __init__(self) -> None:
        # Changed by every method: a heap.
        self._deadlines: list[Deadline] = []
        self._num_deadlines = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, at_s: float, connection: GrpcConnection, stream_id: int, call: OpenCall) -> None:
        self._num_deadlines += 1
        heapq.heappush(self._deadlines, Deadline(at_s, self._num_deadlines, connection, stream_id, call))

    def expire(self, now_s: float, patience_s: float) -> float:
        """Expire the calls whose deadline has passed. Returns the seconds until the next deadline, at most
        `patience_s`."""
        deadlines = self._deadlines
        while deadlines and deadlines[0].at_s <= now_s:
            deadline = heapq.heappop(deadlines)
            if deadline.is_awaited:
                deadline.call.expire(now_s)
        return min(patience_s, max(0.0, deadlines[0].at_s - now_s)) if deadlines else patience_s

    def forget_ended(self) -> None:
        """Remove the deadlines of ended calls: if deadlines are an hour ahead, all calls of the last hour would
        otherwise be kept."""
        self._deadlines = [each for each in self._deadlines if each.is_awaited]
        heapq.heapify(self._deadlines)

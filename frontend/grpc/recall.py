"""What gRPC's clients hold of a worker's results, where the worker lacks memory: copied, or given up (slow_readers.py).

One thread, the lane's.
"""

from collections.abc import Callable, Container, Iterable
from math import inf
from operator import itemgetter

from shoal.frontend.grpc.connection import GrpcConnection, Token
from shoal.frontend.slow_readers import HOLD_S, SlowReaderLog
from shoal.shm.port import Port


class Recall:
    """Recalls of blocks for all connections of a lane; `cut` ends a call, given its stream, with RESOURCE_EXHAUSTED."""

    def __init__(self, port: Port, cut: Callable[[GrpcConnection, int], None]) -> None:
        self._port = port
        self._cut = cut
        self.given_up = SlowReaderLog("calls")

    def recall(
        self, connections: Iterable[GrpcConnection], segments: Container[int], now_s: float, *, is_urgent: bool
    ) -> None:
        """Copy what is unsent of results in these segments, and give them back.

        Where there is no room for a copy, and it is urgent, the calls that have waited for longest are cut, but none
        before its time.
        """

        def is_wanted(token: Token) -> bool:
            return self._port.lies_in(*token, segments)

        left = [(*each, connection) for connection in connections for each in connection.recall(is_wanted)]
        for since_s, stream, connection in sorted(left, key=itemgetter(0)) if is_urgent else ():
            if now_s - since_s < HOLD_S:
                break
            if stream.queue is not None and connection.keep(stream, stream.queue, is_wanted) < inf:  # still no room
                self._cut(connection, stream.number)
                self.given_up.add(now_s)

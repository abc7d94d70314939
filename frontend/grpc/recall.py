"""Recalls of blocks on a gRPC lane: results of a worker that lacks memory are copied, or dropped if clients read too
slowly (slow_readers.py).

One thread, the lane's.
"""

from collections.abc import Callable, Container, Iterable
from math import inf
from operator import itemgetter

from shoal.frontend.grpc.connection import GrpcConnection, Token
from shoal.frontend.slow_readers import HOLD_S, slow_reader_log
from shoal.shm.port import Port


class Recall:
    """Recalls of blocks for all connections of a lane; `cut` ends a call, given its stream, with RESOURCE_EXHAUSTED."""

    def __init__(self, port: Port, cut: Callable[[GrpcConnection, int], None]) -> None:
        self._port = port
        self._cut = cut
        self.given_up = slow_reader_log("calls")

    def recall(
        self, connections: Iterable[GrpcConnection], segments: Container[int], now_s: float, *, is_urgent: bool
    ) -> None:
        """Copy unsent results that lie in these segments, and release them.

        If there is no room for a copy, and `is_urgent`, the calls that have waited longest are cut, but none before
        HOLD_S.
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

"""The choice of connections that make room for others: idle ones, the longest idle first. Pure.

A channel of gRPC stays connected between calls, for hours. So when a process has all the connections that it may have,
it closes those without an open call that have been silent for longest. Their clients get GOAWAY, upon which a client of
gRPC connects again for its next call, and no call fails.
"""

from collections.abc import Iterable
from heapq import nsmallest

from shoal.frontend.grpc.connection import GrpcConnection

#: Seconds without a byte after which a connection without calls may be closed for others (ours: a client that has just
#: connected is about to call).
LEAST_IDLE_S = 1.0
#: Each time, one in PART connections makes room (ours: several clients wait, if one does).
PART = 64


def longest_idle(connections: Iterable[GrpcConnection], most: int, now_s: float) -> list[GrpcConnection]:
    """The connections to end, where `most` are open, the most that there may be; empty if there is room, or if enough
    of them are ending already. `now_s` is in monotonic seconds."""
    everything = list(connections)
    num_missing = len(everything) - most + max(1, most // PART) - sum([each.is_ending for each in everything])
    if len(everything) < most or num_missing <= 0:
        return []
    idle = [each for each in everything if not (each.calls or each.is_ending) and now_s - each.begun_s >= LEAST_IDLE_S]
    return nsmallest(num_missing, idle, key=lambda each: each.begun_s)

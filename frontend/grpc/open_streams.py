"""How much one connection of gRPC may have open, and which idle connections make room for new ones, so that all
connections of a lane together stay within bounds. Pure.

A stream takes one or two kilobytes before a byte of its message has come, and its headers take as much again; a client
may leave the stream open for as long as a call may take. A connection may open what the server has announced to it
(http2/limits.py) as long as all connections leave enough of the lane's streams and header lists free. When less is
free, it may open an eighth of what is free (the rule of frontend/kept_memory.py), but at least its equal part of all
streams and lists. If all connections together exceed the lane's bounds all the same, those with more than their equal
part lose calls that wait for their clients. The lane checks this every TICK_S.
"""

from collections.abc import Iterable
from heapq import nsmallest
from typing import NamedTuple

from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.http2.limits import Limits

#: The most open streams of all connections of a lane (ours: 56 connections can each have the 1024 that one connection
#: may have).
MAX_STREAMS = 64 * 1024
#: The most bytes of the header lists of these streams, and of the lists kept to recognise header blocks again (ours: 56
#: connections can each have the bytes that one connection may have).
MAX_HEADER_BYTES = 64 << 20
#: One connection may open one in so many of the free streams, with one in so many of the free bytes of header lists.
_PART = 8
TOO_MANY_OPEN = "as many calls of gRPC are open in this front end as may be, and more than its part on this connection"


class Bounds(NamedTuple):
    """Bounds of one connection."""

    max_streams: int
    max_header_bytes: int
    kept_streams: int  # the equal part of the streams (below: of header bytes) if all have too many
    kept_header_bytes: int

    @property
    def is_over(self) -> bool:
        """Whether all connections together exceed the lane's bounds."""
        return self.kept_streams < MAX_STREAMS or self.kept_header_bytes < MAX_HEADER_BYTES

    def kept(self, num_streams: int, header_nbytes: int) -> int:
        """How many of a connection's `num_streams` streams, with `header_nbytes` bytes of header lists, the connection
        keeps."""
        if header_nbytes > self.kept_header_bytes:
            num_streams = num_streams * self.kept_header_bytes // header_nbytes
        return min(num_streams, self.kept_streams)


def bounds(limits: Limits, num_connections: int, num_streams: int, header_nbytes: int) -> Bounds:
    """The bounds of each connection, while `num_connections` together have `num_streams` open streams with
    `header_nbytes` bytes of header lists; never less than one stream, with one header list."""
    part = max(1, MAX_STREAMS // max(1, num_connections))
    header_part = max(limits.max_header_bytes, MAX_HEADER_BYTES // max(1, num_connections))
    return Bounds(
        min(limits.max_streams, max(part, (MAX_STREAMS - num_streams) // _PART)),
        min(limits.max_open_header_bytes, max(header_part, (MAX_HEADER_BYTES - header_nbytes) // _PART)),
        part if num_streams > MAX_STREAMS else MAX_STREAMS,
        header_part if header_nbytes > MAX_HEADER_BYTES else MAX_HEADER_BYTES,
    )


#: Seconds without a byte after which a connection without calls may be closed to make room for others (ours: a client
#: that has just connected is about to call).
LEAST_IDLE_S = 1.0
#: When there is no room, one in so many connections is ended at once (ours: where one client waits for room, others are
#: likely to wait, too).
PART = 64


def longest_idle(connections: Iterable[GrpcConnection], most: int, now_s: float) -> list[GrpcConnection]:
    """The idle connections to end, so that new ones find room, if `most` connections, the most that there may be, are
    open; empty if there is room, or if enough connections are ending already. `now_s` is in monotonic seconds.

    A channel of gRPC stays connected between calls, for hours: those without an open call that have been silent for
    longest get GOAWAY, upon which a client of gRPC connects again for its next call, and no call fails.
    """
    everything = list(connections)
    num_missing = len(everything) - most + max(1, most // PART) - sum([each.is_ending for each in everything])
    if len(everything) < most or num_missing <= 0:
        return []
    idle = [each for each in everything if not (each.calls or each.is_ending) and now_s - each.begun_s >= LEAST_IDLE_S]
    return nsmallest(num_missing, idle, key=lambda each: each.begun_s)

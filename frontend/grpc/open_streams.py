"""How much one connection of gRPC may have open, so that all connections of a lane together stay within bounds. Pure.

A stream takes one or two kilobytes before a byte of its message has come, and its headers as much again; a client
leaves it open for as long as a call may take. A connection may have what HTTP/2 has announced (http2/limits.py), as
long as all of them leave enough free; else an eighth of what is free, as of kept memory (frontend/kept_memory.py), or
its equal part of all streams, which no other connection can take from it: where that makes too many, connections with
more than that part lose calls that wait for their clients. The lane looks at each tick.
"""

from typing import NamedTuple

from shoal.frontend.grpc.http2.limits import Limits

#: Open streams of all connections of a lane (ours: 56 connections may have as many as one may have).
MAX_STREAMS = 64 * 1024
TOO_MANY_OPEN = (
    f"{MAX_STREAMS} calls of gRPC are open in this front end, and more than its part of them on this connection"
)
#: Bytes of the header lists of these streams, and of those that are known (ours: 56 connections as above).
MAX_HEADER_BYTES = 64 << 20
#: One connection's part of what is free.
_PART = 8


class Bounds(NamedTuple):
    """Bounds of one connection."""

    part: int  # of all streams, which each connection may have
    is_over: bool  # there are more streams than all may have
    max_streams: int
    max_header_bytes: int


def bounds(limits: Limits, num_connections: int, num_streams: int, header_nbytes: int) -> Bounds:
    """The bounds of each of so many connections while all of them have so many streams, and bytes of header lists;
    never less than one stream, with one header list."""
    part = max(1, MAX_STREAMS // max(1, num_connections))
    return Bounds(
        part,
        num_streams > MAX_STREAMS,
        min(limits.max_streams, max(part, (MAX_STREAMS - num_streams) // _PART)),
        min(limits.max_open_header_bytes, max(limits.max_header_bytes, (MAX_HEADER_BYTES - header_nbytes) // _PART)),
    )

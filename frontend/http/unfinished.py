"""The beginnings of requests that a lane keeps in private memory: how many bytes together, and for how long. Pure.

A body that does not come within BODY_S, and any request for whose bytes there is no room here, takes the road: there
all that arrive share the memory of --max-upload-mib, and have the deadline of --upload-timeout-secs. So the lane's own
memory is bounded however many clients send a byte a second. One thread, the lane's.
"""

from shoal.frontend.http.connection import HttpConnection

#: Seconds that a small body may take on the lane, from the request's first byte on (ours: an honest client's comes
#: with its head, or within a round trip of it).
BODY_S = 2.0
#: Bytes that the beginnings of all requests may take in a lane (ours: 280 of the largest, 48 KiB and a head).
MAX_UNFINISHED_BYTES = 16 << 20


class UnfinishedRequests:
    """The beginnings of requests on all connections of a lane."""

    def __init__(self, most_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._most_bytes = most_bytes
        #: Bytes that are counted. Changed by every method.
        self.nbytes = 0

    def keep(self, connection: HttpConnection, data: bytes, patience_s: float) -> bool:
        """Keep the beginning of a request until more of it comes, for at most `patience_s` from its first byte on:
        further bytes give it no more time. False, and no effect, if there is no room."""
        if self.nbytes + len(data) > self._most_bytes:
            return False
        connection.buffer = data
        connection.num_counted = len(data)
        self.nbytes += len(data)
        connection.deadline_s = min(connection.deadline_s, connection.begun_s + patience_s)
        return True

    def release(self, connection: HttpConnection) -> None:
        """Count a connection's bytes no longer: more have come, or the connection leaves the lane."""
        self.nbytes -= connection.num_counted
        connection.num_counted = 0

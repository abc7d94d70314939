"""Limits for clients that read responses slowly, and a front end's memory for copies of unsent responses: bounded for
all connections together, and shared among them.

A response is sent straight from the worker's block. If the client has not read the response after HOLD_S, or has not
read it whole when the worker lacks memory, the unread rest is copied, so that the worker has its memory back. Where
there is no room for the copy, the block stays in use until the worker can get memory nowhere else: then the slowest
clients' connections are closed. But a client that never reads must not fill the front end's memory instead, nor take
what other slow clients need. So a connection with many calls may keep an eighth of what is free at the moment: of 64
MiB, a single connection may keep 7.1 MiB, each of eight connections 4 MiB, each of a hundred 0.6 MiB. Every connection
finds some memory free (network switches share a buffer among their ports in this way, by "dynamic thresholds"). A
connection of HTTP/1 has one response at a time, which is kept if it fits into the free memory. Used by a lane's
only thread, or by the road's threads under their port's lock.
"""

from shoal.frontend.counted_warning import CountedWarning

#: The most bytes kept for all connections of a front-end process together (ours: as many as the process's slab for
#: requests has by default, or ten results of 6 MB).
MAX_KEPT_BYTES = 64 * 1024 * 1024
#: A connection may keep 1/_PART of the free bytes (ours: the 7.1 MiB of a single connection are 30,000 streamed
#: words, or a large image).
_PART = 8
#: A stream for whose copies there is no room may hold workers' blocks as long as its client reads PACE_BYTES in each
#: PACE_S (ours: that is 8 Mbit/s, which networks have; and a client that stops reading holds its model up for about
#: four seconds at most).
PACE_BYTES, PACE_S = 2 << 20, 2.0
#: Seconds that a client may hold a worker's block before the unread rest is copied or, if the worker lacks memory and
#: there is no room for the copy, the connection ends; and seconds that it may read nothing at all before its connection
#: ends (ours).
HOLD_S, SEND_S = 1.0, 30.0


class KeptMemory:
    """Counts the bytes that are kept: a connection that keeps a response adds the response's size here, and subtracts
    it later."""

    __slots__ = ("most_bytes", "nbytes")

    def __init__(self, most_bytes: int = MAX_KEPT_BYTES) -> None:
        self.most_bytes = most_bytes
        #: Bytes kept for all connections together. Changed by the connections.
        self.nbytes = 0

    @property
    def share_bytes(self) -> int:
        """The most bytes that a connection may keep at this moment, counting those that it keeps already."""
        return (self.most_bytes - self.nbytes) // _PART

    def has_room(self, kept_bytes: int, nbytes: int) -> bool:
        """Whether a connection that keeps `kept_bytes` may keep `nbytes` more."""
        return kept_bytes + nbytes <= (self.most_bytes - self.nbytes) // _PART

    def fits(self, nbytes: int) -> bool:
        """Whether `nbytes` more may be kept by all connections together."""
        return self.nbytes + nbytes <= self.most_bytes


class ReadRate:
    """Measures how fast a stream's client reads, from the first call of `is_slow` on."""

    __slots__ = ("_least_bytes", "_num_sent", "_period_s", "_since_s")

    def __init__(self, least_bytes: int = PACE_BYTES, period_s: float = PACE_S) -> None:
        self._least_bytes = least_bytes
        self._period_s = period_s
        # The fields below are changed by `is_slow`.
        self._since_s, self._num_sent = -1.0, 0

    def is_slow(self, now_s: float, num_sent: int) -> bool:
        """True at the end of a period in which fewer than `least_bytes` were sent, otherwise False; `num_sent`: the
        stream's bytes so far."""
        if self._since_s >= 0 and now_s < self._since_s + self._period_s:
            return False
        is_slow = self._since_s >= 0 and num_sent - self._num_sent < self._least_bytes
        self._since_s, self._num_sent = now_s, num_sent
        return is_slow


def slow_reader_log(what: str) -> CountedWarning:
    """The warning about clients that read too slowly, whose responses, calls or connections a front end has ended."""
    return CountedWarning(
        f"a model lacks memory for its results: ended %d {what} of clients that read too slowly, longest first "
        "(they held results in shared memory; --shm-worker-slab-mib, --shm-oversize-mib)"
    )

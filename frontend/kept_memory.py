"""A front end's memory for copies of unsent responses: bounded for all connections together, and shared among them.

Such a copy lets a worker have its memory back early. But a client that never reads must not fill the front end's memory
instead, nor take what other slow clients need. So a connection with many calls may keep an eighth of what is free at
the moment: alone 7.1 MiB of 64, one of eight 4 MiB, one of a hundred 0.6 MiB. Every connection finds some free
(switches share a buffer among their ports in this way, by "dynamic thresholds"). A connection of HTTP/1 has one
response at a time, which is kept where it fits into what is free. Only a lane's one thread uses this, or the road's
threads under the lock of their port.
"""

#: The bound for all connections of a front-end process together: as much as its slab for requests has by default, or
#: ten results of 6 MB (ours).
MAX_KEPT_BYTES = 64 * 1024 * 1024
#: A connection's part of the free memory (ours: 7.1 MiB for a single one are 30,000 streamed words, or a large image).
_PART = 8
#: A response for which there is no room is waited for as long as so much of its stream is sent in so long (ours: 8
#: Mbit/s, which networks have; and a client that stops reading holds its model up for three seconds at most).
PACE_BYTES, PACE_S = 2 << 20, 2.0


class KeptMemory:
    """Counts the bytes that are kept: a connection that keeps a response adds its size here, and subtracts it later."""

    __slots__ = ("most_bytes", "nbytes")

    def __init__(self, most_bytes: int = MAX_KEPT_BYTES) -> None:
        self.most_bytes = most_bytes
        #: Bytes kept for all connections together, which change the number.
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
    """Whether the client of a stream reads fast enough, measured from the first call on."""

    __slots__ = ("_least_bytes", "_num_sent", "_period_s", "_since_s")

    def __init__(self, least_bytes: int = PACE_BYTES, period_s: float = PACE_S) -> None:
        self._least_bytes = least_bytes
        self._period_s = period_s
        # Changed by `is_slow`.
        self._since_s, self._num_sent = -1.0, 0

    def is_slow(self, now_s: float, num_sent: int) -> bool:
        """Whether the client has read less than the minimum in the last period; `num_sent` bytes of the stream have
        been sent to it by now."""
        if self._since_s >= 0 and now_s < self._since_s + self._period_s:
            return False
        is_slow = self._since_s >= 0 and num_sent - self._num_sent < self._least_bytes
        self._since_s, self._num_sent = now_s, num_sent
        return is_slow

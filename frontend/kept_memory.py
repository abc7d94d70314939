"""What a front end keeps in memory of its own for clients that have not read it: a bound for all, and a share for each.

The memory of workers is given back early so; but a client that never reads must not fill the front end's in its place,
nor take what other slow clients need. So a connection with many calls may keep an eighth of what is free then: alone
7.1 MiB of 64, one of eight 4 MiB, one of a hundred 0.6 MiB. Each finds something left (the rule of switches with a
shared buffer, "dynamic thresholds"). A connection of HTTP/1 has one answer at a time, which is kept where it fits into
what is free. A lane's one thread has it, or the road's threads under the lock of their port.
"""

#: For all connections of a front-end process together: as much as its slab for requests has by default, or ten results
#: of 6 MB (ours).
MAX_KEPT_BYTES = 64 * 1024 * 1024
#: A connection's part of what is free (ours: 7.1 MiB for a single one are 30,000 streamed words, or a large image).
_PART = 8
#: A response for which there is no room is waited for as long as so much of its stream is sent in so long (ours: 8
#: Mbit/s, which networks have; and a client that stops reading holds its model up for three seconds at most).
PACE_BYTES, PACE_S = 2 << 20, 2.0


class KeptMemory:
    """How much is kept: a connection that keeps an answer adds its bytes here."""

    __slots__ = ("most_bytes", "nbytes")

    def __init__(self, most_bytes: int = MAX_KEPT_BYTES) -> None:
        self.most_bytes = most_bytes
        #: Of all connections, which change it.
        self.nbytes = 0

    @property
    def share_bytes(self) -> int:
        """What a connection may keep, with what it keeps already."""
        return (self.most_bytes - self.nbytes) // _PART

    def has_room(self, kept_bytes: int, nbytes: int) -> bool:
        """Whether a connection that keeps so many bytes may keep `nbytes` more."""
        return kept_bytes + nbytes <= (self.most_bytes - self.nbytes) // _PART

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes more may be kept of all connections."""
        return self.nbytes + nbytes <= self.most_bytes


class Pace:
    """How fast a stream is read, from the first look at it on."""

    __slots__ = ("_least_bytes", "_num_sent", "_period_s", "_since_s")

    def __init__(self, least_bytes: int = PACE_BYTES, period_s: float = PACE_S) -> None:
        self._least_bytes = least_bytes
        self._period_s = period_s
        # Changed by `is_slow`.
        self._since_s = self._num_sent = -1.0

    def is_slow(self, now_s: float, num_sent: int) -> bool:
        """Whether less than the least was sent in a period; so many bytes have been sent of the stream by now."""
        if self._since_s >= 0 and now_s < self._since_s + self._period_s:
            return False
        is_slow = self._since_s >= 0 and num_sent - self._num_sent < self._least_bytes
        self._since_s, self._num_sent = now_s, num_sent
        return is_slow

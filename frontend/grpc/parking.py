"""Calls that came while there was no room for their requests: they wait for replies, in their order.

HTTP/1.1 has one request per connection, and sockets that nobody reads; a client of gRPC may have a thousand calls on
each. Only what they take of the lane's memory is bounded: beyond that they are refused. One thread, the lane's.
"""

from collections import deque
from typing import Protocol

from shoal.frontend.grpc.inbox import Received
from shoal.shm.port import Port

#: Messages of all calls that wait together (ours: ten thousand of a few kilobytes).
MAX_PARKED_BYTES = 64 << 20


class Parked(Protocol):
    """Whoever waits."""

    def resume(self) -> bool:
        """There is room, for all that is known. False where it does not suffice: it waits on."""
        ...


class Parking:
    """All of a lane."""

    def __init__(self, port: Port) -> None:
        self._port = port
        # Changed by every method: who waits, and how many bytes it keeps.
        self._waiting: deque[tuple[Parked, int]] = deque()
        self._nbytes = 0

    @property
    def is_occupied(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def must_wait(self, nbytes: int) -> bool:
        """Whether a message of so many bytes has to wait: there is no room, or others were there before.

        False, too, where even waiting takes too much: whoever asks then is refused.
        """
        return (bool(self._waiting) or self._port.is_full) and self._nbytes + nbytes <= MAX_PARKED_BYTES

    def may_wait(self, message: Received) -> bool:
        """Whether a message for which there was no room may wait; one that had a block has lost it."""
        return message.block is None and self._nbytes + len(message.data) <= MAX_PARKED_BYTES

    def park(self, call: Parked, nbytes: int) -> None:
        """Have it wait."""
        self._waiting.append((call, nbytes))
        self._nbytes += nbytes

    def resume(self) -> None:
        """Replies have come: let go on who may."""
        waiting = self._waiting
        while waiting and not self._port.is_full:
            call, nbytes = waiting[0]
            if not call.resume():
                return
            waiting.popleft()
            self._nbytes -= nbytes

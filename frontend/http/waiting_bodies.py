"""Large bodies for which a lane has no room now: they wait in their sockets, unread, while room keeps coming.

Unfinished bodies may take half of a lane's slab, which is two of 10 MB. On the road a body always finds room, but there
it passes through private memory and gets a segment that the supervisor makes for it. So it waits first, and takes the
road where nothing moves. Where one has waited in vain, others take the road at once, until one finds room again. Pure:
the time comes in as an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.frontend.http.connection import HttpConnection
from shoal.frontend.http.http_head import Head

#: Seconds that a body waits while no other finds room, and in all (ours: stalled clients and models that hold all room
#: delay one further body by the first).
PATIENCE_S, LONGEST_S = 0.1, 1.0
#: Most bodies that wait (ours). The kernel keeps what their clients have sent, a few MB of each.
MAX_WAITING = 64


@dataclass(frozen=True, slots=True)
class WaitingBody:
    """A body that waits. `data` are the bytes of the request that have been read, its head before all."""

    connection: HttpConnection
    head: Head
    data: bytes
    begun_at: int  # where in `data` the body begins
    since_s: float


class WaitingBodies:
    """The bodies of one lane that wait, in the order in which they came."""

    def __init__(self, begin: Callable[[WaitingBody], bool]) -> None:
        """`begin` begins to receive a body. Returns False, and changes nothing, where there is no room for it."""
        self._begin = begin
        # Changed by begin, add, forget and look.
        self._bodies: dict[HttpConnection, WaitingBody] = {}
        self._moved_s = 0.0  # when one that waited found room last
        self._is_vain = False  # whether one has waited in vain since any found room

    def __len__(self) -> int:
        return len(self._bodies)

    def begin(self, body: WaitingBody) -> bool:
        """Begin to receive a body that has just come. False, and no effect, where others wait or there is no room."""
        if self._bodies or not self._begin(body):
            return False
        self._is_vain = False
        return True

    def add(self, body: WaitingBody) -> bool:
        """Let a body wait. False, and no effect, where too many do, or one has just waited in vain."""
        if self._is_vain or len(self._bodies) >= MAX_WAITING:
            return False
        self._bodies[body.connection] = body
        return True

    def forget(self, connection: HttpConnection) -> None:
        self._bodies.pop(connection, None)

    def look(self, now_s: float) -> tuple[list[WaitingBody], list[WaitingBody]]:
        """The bodies that have found room now, and those that wait no longer."""
        begun = [body for body in list(self._bodies.values()) if self._begin(body)]
        if begun:
            self._moved_s, self._is_vain = now_s, False
        for body in begun:
            del self._bodies[body.connection]
        given_up = [body for body in self._bodies.values() if self._is_over(body, now_s)]
        for body in given_up:
            del self._bodies[body.connection]
        self._is_vain = self._is_vain or bool(given_up)
        return begun, given_up

    def _is_over(self, body: WaitingBody, now_s: float) -> bool:
        return now_s - max(body.since_s, self._moved_s) >= PATIENCE_S or now_s - body.since_s >= LONGEST_S

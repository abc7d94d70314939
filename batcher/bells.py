"""The bells that peers ring: one for each peer, so that the batcher reads the rings of those alone that have rung.

Bells wait in the batcher's epoll, by edges: none need be cleared, but those of guests. Lives in the batcher.
"""

import select

from shoal.shm.doorbell import Doorbell, GuestBell

_EDGES = select.EPOLLIN | select.EPOLLET


class Bells:
    """The bells of all peers, and which of them have rung."""

    __slots__ = ("_by_owner", "_poller", "guests", "owners")

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        # Changed by add and remove.
        self._by_owner: dict[int, Doorbell | GuestBell] = {}
        #: By the bell's descriptor: the peer that rings it, and of guests the bell, which is to be cleared.
        self.owners: dict[int, int] = {}
        self.guests: dict[int, GuestBell] = {}

    def add(self, owner: int, bell: Doorbell | GuestBell) -> None:
        """Wait for a peer's bell. Edges: of a guest that hung up there is nothing to be cleared."""
        self._by_owner[owner] = bell
        self.owners[bell.fd] = owner
        if isinstance(bell, GuestBell):
            self.guests[bell.fd] = bell
        self._poller.register(bell.fd, _EDGES)

    def remove(self, owner: int) -> None:
        """A peer is gone: its bell is closed. One that was never added stays so."""
        bell = self._by_owner.pop(owner, None)
        if bell is not None:
            del self.owners[bell.fd]
            self.guests.pop(bell.fd, None)
            self._poller.unregister(bell.fd)  # closing would not: others have it open
            bell.close()

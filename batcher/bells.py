"""The bells that peers ring: one per peer, so that the batcher reads only the rings of peers that have rung.

The batcher's epoll reports bells edge-triggered, so that eventfds need not be cleared. Guests' bells, which are
sockets, must be. Lives in the batcher.
"""

import select

from shoal.shm.doorbell import Doorbell, GuestBell

_EDGES = select.EPOLLIN | select.EPOLLET


class Bells:
    """The bells of all peers, and which of them have rung."""

    __slots__ = ("_by_owner", "_poller", "guests", "owners")

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        # Changed by add and remove: the bells by the owner id of the peer that rings them.
        self._by_owner: dict[int, Doorbell | GuestBell] = {}
        #: Descriptor of a bell → owner id of the peer that rings it; and guests' bells, which must be cleared.
        self.owners: dict[int, int] = {}
        self.guests: dict[int, GuestBell] = {}

    def add(self, owner: int, bell: Doorbell | GuestBell) -> None:
        """Wait for a peer's bell, which this object owns and closes. The wait is edge-triggered, since a guest's bell
        whose other end is closed stays readable for ever."""
        self._by_owner[owner] = bell
        self.owners[bell.fd] = owner
        if isinstance(bell, GuestBell):
            self.guests[bell.fd] = bell
        self._poller.register(bell.fd, _EDGES)

    def remove(self, owner: int) -> None:
        """Close a dead peer's bell, if it was added."""
        bell = self._by_owner.pop(owner, None)
        if bell is not None:
            del self.owners[bell.fd]
            self.guests.pop(bell.fd, None)
            self._poller.unregister(bell.fd)  # close() would not unregister it: other processes have the open file, too
            bell.close()

"""Clients that a dead batcher has left and that have not said again what is open: nothing waits for them.

Such a client may be in users' code that holds its interpreter for minutes. Its successor serves everybody else
meanwhile, and keeps for it

- its ring, unread: what stands there is void until it has said again what is open, and is said again then;
- what workers have answered to its requests, and the blocks that lie in;
- every block that it may hold. Those are blocks that the dead one may have passed on; what workers have answered since,
  no late client can have seen.

Changed by the exchange; lives in the batcher.
"""

from collections.abc import Callable, Sequence

from shoal.batcher.holders import Holders
from shoal.batcher.peers import Client
from shoal.shm.layout import DONE, NUMBER_BITS, RESPONSE, D
from shoal.shm.ring import Record

_BLOCK = D.BLOCK
#: What an answer comes to, done when its client has said that it still waits for it: told the time.
Deliver = Callable[[int], object]


class LateClients:
    """Those clients, by owner id, and what is kept for them."""

    def __init__(self, holders: Holders) -> None:
        self.holders = holders
        # Changed by the methods below.
        self._clients: dict[int, Client] = {}
        #: By key: what to do, and the block it is about (0 = none).
        self._answers: dict[int, list[tuple[Deliver, int]]] = {}
        self._answered_since: set[int] = set()  # blocks
        self._withheld: set[int] = set()  # blocks that nobody holds, but perhaps a late client
        self._has_begun = False
        #: Blocks that guests say they hold, until the workers whose they are have named them.
        self._claimed: set[int] = set()
        #: Whether there are late clients, or such blocks; else there is nothing to do here.
        self.are_any = False

    @property
    def has_front_end(self) -> bool:
        """Whether any of them is a front end."""
        return any(client.is_front_end for client in self._clients.values())

    def add(self, client: Client) -> None:
        """A dead batcher's client."""
        self._clients[client.owner] = client
        self.are_any = True

    def begin(self) -> None:
        """All that workers had said to the dead one has been read: it may have passed that on, but nothing later."""
        self._has_begun = True

    def pop(self, owner: int) -> Client | None:
        """It has said again what is open, or is dead; then `settle`. None where it is not late."""
        return self._clients.pop(owner, None)

    def heard(self, records: Sequence[Record]) -> None:
        """A worker has said this, which is about to have its effect."""
        if self._claimed:
            self._claimed.difference_update([record[_BLOCK] for record in records])
            self._look()
        if self._has_begun and self._clients:
            self._answered_since.update([record[_BLOCK] for record in records if record[0] in (DONE, RESPONSE)])

    def _look(self) -> None:
        self.are_any = bool(self._clients or self._claimed)

    def keep(self, key: int, deliver: Deliver, ref: int = 0) -> None:
        """A request that is not open has been answered, with a block or without. Kept where its client is late."""
        if key >> NUMBER_BITS not in self._clients:
            return
        if ref:
            self.holders.hold_part(ref, -key)
        self._answers.setdefault(key, []).append((deliver, ref))

    def answered_of(self, owner: int) -> list[int]:
        """The keys of a client's requests that answers are kept for."""
        return [key for key in self._answers if key >> NUMBER_BITS == owner]

    def claim(self, ref: int) -> None:
        """A guest says that it holds a block: nobody else frees it until its worker has named it, if it has not yet."""
        if ref not in self._withheld and not self.holders.is_held(ref):
            self._claimed.add(ref)
            self.are_any = True

    def withholds(self, ref: int) -> bool:
        """Whether a block that nobody holds any more must not be freed yet; it is told of by `settle` later."""
        if ref in self._claimed:
            return True  # its worker, which may have taken it for something else by now, is yet to say that it has it
        if not self._clients:
            self._withheld.discard(ref)
            return False
        if ref in self._answered_since:
            self._answered_since.discard(ref)
            return False
        self._withheld.add(ref)
        return True

    def begin_again(self, owner: int) -> None:
        """A client says what it holds from the beginning: it had begun to when another batcher took the place."""
        self._withheld.update(self.holders.release_owner(owner))

    def settle(self, owner: int, now_ns: int) -> list[int]:
        """A client is late no more: what is kept for it is delivered, in order; what it does not wait for any more, or
        has seen, comes to nothing. Returns the blocks that nobody holds."""
        unheld = []
        for key in self.answered_of(owner):
            for deliver, ref in self._answers.pop(key):
                deliver(now_ns)
                if ref and self.holders.release(-key, ref):
                    unheld.append(ref)
        if not self._clients:
            unheld += [ref for ref in self._withheld if not self.holders.is_held(ref)]
            self._withheld.clear()
            self._answered_since.clear()
            self._look()
        return unheld

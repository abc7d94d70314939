"""Clients of a dead batcher that have not sent their open requests again to its successor: nothing waits for them.

Such a client may be in users' code that holds its interpreter for minutes. The successor serves all other clients
meanwhile, and

- leaves its ring unread: the records there are handled once the client has sent its open requests again;
- counts those of its requests as open that workers have, as the workers' rings describe them: an answer goes into the
  client's ring at once, so that it is not lost where this batcher dies, too. (One that `preserve_ordering` keeps back
  for another request is lost, as any client's is.) Their times in the statistics begin when the dead batcher accepted
  them; an answer that it had passed on without noting so is sent again, which the client drops, and counted again;
- frees no block that the client may hold. Those are blocks that the dead batcher may have passed on; what workers have
  answered since has its holders, as always.

Changed by the exchange; lives in the batcher.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from shoal.batcher.holders import Holders
from shoal.batcher.peers import Client
from shoal.shm.layout import DONE, NUMBER_BITS, RESPONSE, D
from shoal.shm.ring import Record

_BLOCK = D.BLOCK


class LateClients:
    """Those clients, by owner id, and what is known of them."""

    def __init__(self, holders: Holders) -> None:
        self.holders = holders
        # Changed by the methods below.
        self._clients: dict[int, Client] = {}
        #: By owner, the keys of requests that workers had from the dead batcher, answered since or not.
        self._in_hand: dict[int, set[int]] = {}
        self._answered_since: set[int] = set()  # blocks
        self._withheld: set[int] = set()  # blocks without a holder, unless a late client is one
        #: Blocks without a holder, unless the client whose ring is being read is one; None: no ring is being read.
        self._unheld: set[int] | None = None
        #: The requests of that client whose replies it holds, as its records say.
        self._said_held: set[int] = set()
        self._has_begun = False
        #: Blocks that guests hold, as they say, and that no worker has named yet.
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
        """All that workers wrote for the dead batcher has been read: it may have passed that on, but nothing later."""
        self._has_begun = True

    def client_of(self, key: int) -> Client | None:
        """The late client whose request this is; None where its client is not late."""
        return self._clients.get(key >> NUMBER_BITS)

    def has(self, key: int) -> bool:
        """Whether a request is a late client's."""
        return key >> NUMBER_BITS in self._clients

    def note_in_hand(self, key: int) -> None:
        """A worker has this request of a late client from the dead batcher."""
        self._in_hand.setdefault(key >> NUMBER_BITS, set()).add(key)

    def in_hand_of(self, owner: int) -> AbstractSet[int]:
        """The requests of a client that workers had when it was late; each is open, or has been answered."""
        return self._in_hand.get(owner, frozenset())

    def drop(self, key: int) -> None:
        """No worker has the request any more, and it was not answered."""
        self._in_hand.get(key >> NUMBER_BITS, set()).discard(key)

    def pop(self, owner: int) -> Client | None:
        """The client sends its open requests again, or is dead; then `settle`. None where it is not late."""
        return self._clients.pop(owner, None)

    def heard(self, records: Sequence[Record]) -> None:
        """Note records of a worker that are about to be handled."""
        if self._claimed:
            self._claimed.difference_update([record[_BLOCK] for record in records])
            self._look()
        if self._has_begun and self._clients:
            self._answered_since.update([record[_BLOCK] for record in records if record[0] in (DONE, RESPONSE)])

    def _look(self) -> None:
        self.are_any = bool(self._clients or self._claimed)

    def claim(self, ref: int) -> None:
        """A guest says that it holds a block: the block is not freed before its worker has named it."""
        if ref not in self._withheld and not self.holders.is_held(ref):
            self._claimed.add(ref)
            self.are_any = True

    def drop_claim(self, ref: int) -> bool:
        """A block has no holder any more: whether guests alone have named it. Then it must not be freed: the worker may
        be writing another result there. If it is the guest's reply after all, it is freed when the worker names it."""
        if ref not in self._claimed:
            return False
        self._claimed.remove(ref)
        self._look()
        return True

    def withholds(self, ref: int) -> bool:
        """Whether a block without a holder must not be freed yet; `settle` returns it later."""
        if self._unheld is not None:
            self._unheld.add(ref)
            return True  # the next record may say that the client holds it
        if not self._clients:
            self._withheld.discard(ref)
            return False
        if ref in self._answered_since:
            self._answered_since.discard(ref)
            return False
        self._withheld.add(ref)
        return True

    def begin_reading(self) -> None:
        """The ring of a client that was late is about to be read: no block is freed before `settle`."""
        self._unheld = set()

    def begin_again(self, owner: int) -> None:
        """A client lists what it holds from the beginning again: another batcher has taken the place meanwhile."""
        released = self.holders.release_owner(owner, self.in_hand_of(owner))
        (self._withheld if self._unheld is None else self._unheld).update(released)

    def is_counted(self, key: int) -> bool:
        """A client says that it holds a reply to this request: whether that is known already, since this batcher said
        the reply itself."""
        if key not in self.in_hand_of(key >> NUMBER_BITS):
            return False
        self._said_held.add(key)
        return True

    def says_held(self, key: int) -> bool:
        """Whether the client whose ring was read has said so."""
        return key in self._said_held

    def settle(self, owner: int) -> set[int]:
        """A client is late no more. Returns the blocks that no client holds."""
        self._in_hand.pop(owner, None)
        self._said_held.clear()
        unheld, self._unheld = self._unheld or set(), None
        if not self._clients:
            unheld |= self._withheld
            self._withheld.clear()
            self._answered_since.clear()
            self._look()
        return {ref for ref in unheld if not self.holders.is_held(ref)}

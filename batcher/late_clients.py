"""Clients of a dead batcher that have not yet sent their open requests to its successor, which does not wait for them.

Such a client may run a user's code that keeps the lock of its Python interpreter for minutes. The successor serves all
other clients meanwhile, and
- leaves the late client's ring unread: the records there are handled once the client has sent its open requests again;
- counts those of its requests as open that workers have, as the workers' rings describe the requests: an answer goes
  into the client's ring at once, so that the answer is not lost if this batcher dies, too. (An answer that
  `preserve_ordering` keeps back for another request is lost, as any client's is.) The requests' times in the statistics
  begin when the dead batcher accepted them. The dead batcher may have passed an answer on and not have noted that: then
  the answer is counted again and sent again, and the client drops the second one;
- frees no block that the client may hold. Those are blocks that the dead batcher may have passed on; the holders of a
  block in which a worker has answered since then are known.

Changed by the exchange; lives in the batcher.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from shoal.batcher.holders import Holders
from shoal.batcher.peers import ClientPeer
from shoal.shm.layout import DONE, NUMBER_BITS, REPLY, RESPONSE, D, P
from shoal.shm.ring import Record

_BLOCK = D.BLOCK


class LateClients:
    """The late clients, by owner id, with their known requests and blocks."""

    def __init__(self, holders: Holders) -> None:
        self.holders = holders
        # Changed by the methods below. Late clients by owner id.
        self._clients: dict[int, ClientPeer] = {}
        #: Owner id → keys of requests that workers had from the dead batcher, answered since or not.
        self._in_hand: dict[int, set[int]] = {}
        self._answered_since: set[int] = set()  # blocks in which workers have answered since `begin`
        self._withheld: set[int] = set()  # blocks without a known holder, which late clients may hold
        #: Blocks without a known holder, which the client whose ring is being read may hold; None: no ring is being
        #: read.
        self._unheld: set[int] | None = None
        #: Keys of the requests whose replies the client whose ring is being read holds, according to its records.
        self._listed_replies: set[int] = set()
        self._has_begun = False
        self._passed_on: dict[int, AbstractSet[int]] = {}  # owner id → `_sent_numbers`; empty after `begin`
        #: Keys of late clients' requests that the dead batcher may have refused, because their worker died.
        self._doubted: set[int] = set()
        #: Blocks that guests claim to hold, and that no worker has named yet.
        self._claimed: set[int] = set()
        #: Whether there are late clients or claimed blocks; otherwise no method need be called.
        self.are_any = False

    @property
    def has_front_end(self) -> bool:
        return any(client.is_front_end for client in self._clients.values())

    def add(self, client: ClientPeer) -> None:
        """Add a dead batcher's client as late."""
        self._clients[client.owner] = client
        self.are_any = True

    def begin(self) -> None:
        """Note that all records written for the dead batcher have been read: the dead batcher has passed on none of the
        answers that come from now on."""
        self._has_begun = True
        self._passed_on.clear()

    def client_of(self, key: int) -> ClientPeer | None:
        """The late client that a request belongs to; None if the request's client is not late."""
        return self._clients.get(key >> NUMBER_BITS)

    def has(self, key: int) -> bool:
        """Whether a request belongs to a late client."""
        return key >> NUMBER_BITS in self._clients

    def may_have_answer(self, key: int) -> bool:
        """Whether a late client may have had the answer to this request from the dead batcher. The client then has the
        request's block back, which may hold another request by now."""
        client = self._clients.get(key >> NUMBER_BITS)
        if client is None:
            return False
        return key in self._doubted or (not self._has_begun and key - client.first_key in self._passed_on_to(client))

    def _passed_on_to(self, client: ClientPeer) -> AbstractSet[int]:
        numbers = self._passed_on.get(client.owner)
        if numbers is None:
            numbers = self._passed_on[client.owner] = _sent_numbers(client)
        return numbers

    def doubt(self, keys: Iterable[int]) -> None:
        """Note that the dead batcher may have refused these requests of a worker whose death it was told of."""
        self._doubted.update(key for key in keys if self.has(key))

    def note_in_hand(self, key: int) -> None:
        """Note that a worker has this request of a late client, given by the dead batcher."""
        self._in_hand.setdefault(key >> NUMBER_BITS, set()).add(key)

    def in_hand_of(self, owner: int) -> AbstractSet[int]:
        """Keys of a client's requests that workers had when the client became late; each is open, or has been
        answered."""
        return self._in_hand.get(owner, frozenset())

    def drop(self, key: int) -> None:
        """Forget a request that no worker has any more, and that was not answered."""
        self._in_hand.get(key >> NUMBER_BITS, set()).discard(key)

    def pop(self, owner: int) -> ClientPeer | None:
        """Remove and return a client that has sent its open requests again, or is dead; None if it was not late.
        To be followed by `settle`."""
        return self._clients.pop(owner, None)

    def note_blocks(self, records: Sequence[Record]) -> None:
        """Note the blocks in a worker's records that are about to be handled."""
        if self._claimed:
            self._claimed.difference_update([record[_BLOCK] for record in records])
            self._update_are_any()
        if self._has_begun and self._clients:
            self._answered_since.update([record[_BLOCK] for record in records if record[0] in (DONE, RESPONSE)])

    def _update_are_any(self) -> None:
        self.are_any = bool(self._clients or self._claimed)

    def claim(self, ref: int) -> None:
        """Keep a block that a guest claims to hold from being freed until the block's worker has named the block."""
        if ref not in self._withheld and not self.holders.is_held(ref):
            self._claimed.add(ref)
            self.are_any = True

    def drop_claim(self, ref: int) -> bool:
        """Forget a guest's claim to a block without a holder. True if no worker has named the block since the claim:
        then it must not be freed, because the worker may be writing another result there. If the claim is true, the
        block is freed when the worker names it."""
        if ref not in self._claimed:
            return False
        self._claimed.remove(ref)
        self._update_are_any()
        return True

    def withholds(self, ref: int) -> bool:
        """Whether a block without a known holder must be kept, because a client that has not listed the replies that it
        holds may hold it. `settle` returns the kept blocks that nothing holds."""
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
        """Free no block until `settle`: the ring of a client that was late is about to be read."""
        self._unheld = set()

    def begin_again(self, owner: int) -> None:
        """Discard the held replies that a client has listed so far: the client lists them again, for a further
        successor."""
        released = self.holders.release_owner(owner, self.in_hand_of(owner))
        (self._withheld if self._unheld is None else self._unheld).update(released)

    def is_counted(self, key: int) -> bool:
        """Whether the reply that a HOLD names is counted as held already, because this batcher sent the reply."""
        if key not in self.in_hand_of(key >> NUMBER_BITS):
            return False
        self._listed_replies.add(key)
        return True

    def has_listed(self, key: int) -> bool:
        """Whether the client whose ring was read has listed a reply to this request as held."""
        return key in self._listed_replies

    def settle(self, owner: int) -> set[int]:
        """End a client's lateness. Returns the blocks that turn out to have no holder, to be freed."""
        self._in_hand.pop(owner, None)
        self._doubted = {key for key in self._doubted if self.has(key)}
        self._listed_replies.clear()
        unheld, self._unheld = self._unheld or set(), None
        if not self._clients:
            unheld |= self._withheld
            self._withheld.clear()
            self._answered_since.clear()
            self._update_are_any()
        return {ref for ref in unheld if not self.holders.is_held(ref)}


def _sent_numbers(client: ClientPeer) -> set[int]:
    """The numbers of the requests whose final replies a dead batcher has made visible to the client, as far back as
    half of the ring goes: its last step and more. The other half may hold replies that were never visible."""
    sent = islice(client.writer.history(), client.writer.num_slots // 2)
    return {record[P.NUMBER] for _, record in sent if record[0] == REPLY and not record[P.MORE]}

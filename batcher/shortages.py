"""Workers that lack memory for a result, and the clients that must release such a worker's results. Pure; lives in the
batcher.

A worker that has no room for a result, and says so by a record with ROOM, first gets back the blocks that front ends
hold for slow readers: the front ends copy the results, within their bounds, and release the blocks. Meanwhile the
worker requests an oversize segment. If the worker gets none, and says so by a record with ROOM_NOW, front ends
disconnect their slowest readers. Guests cannot be asked for blocks: if guests hold at least half of the bytes of the
worker's results that clients hold, the guest that holds most is ended.

The batcher's own memory has a header for each response of an ensemble that a client holds. If requests to ensembles
fail because this memory is used up, front ends are asked in the same way; if requests have failed for longer than
GUEST_HOLDS_NS (guests.py), and guests hold at least half of the blocks in use, the guest that holds most is ended.
"""

from collections.abc import Mapping
from itertools import islice

from shoal.batcher.blocks import Blocks
from shoal.batcher.guests import GUEST_HOLDS_NS, most_holding_guest, must_end_guest
from shoal.batcher.holders import Holders
from shoal.batcher.peers import ClientPeer, WorkerPeer
from shoal.shm.layout import MAX_RECALLED, ROOM, ROOM_NOW, ref_owner
from shoal.shm.records import recall_record

#: A shortage of the batcher's own memory is over once no request has failed for FORGOTTEN_NS; when it has lasted for
#: URGENT_NS, front ends disconnect slow readers, too (ours).
FORGOTTEN_NS, URGENT_NS = 10_000_000_000, 1_000_000_000


class Shortages:
    """Asks clients to release blocks. Front ends to which a RECALL was sent are added to `written`."""

    def __init__(
        self, clients: Mapping[int, ClientPeer], holders: Holders, blocks: Blocks, written: set[ClientPeer]
    ) -> None:
        self._clients = clients
        self._holders = holders
        self._blocks = blocks
        self._written = written
        # Changed by ask_back_own: since when requests to ensembles have failed, and when the last one did.
        self._own_since_ns = self._own_last_ns = -FORGOTTEN_NS - 1

    def ask_back_own(self, now_ns: int) -> int:
        """Send RECALL to the front ends that hold blocks of the batcher's own memory, which is used up. Returns the
        owner id of a guest that must be ended; 0 if none must."""
        own = self._blocks.own
        if own is None:
            return 0
        if now_ns - self._own_last_ns > FORGOTTEN_NS:
            self._own_since_ns = now_ns
        self._own_last_ns = now_ns
        lasts_ns, held = now_ns - self._own_since_ns, self._holders.held_in({own.owner})
        self._ask_all(held, is_urgent=lasts_ns >= URGENT_NS)
        if lasts_ns <= GUEST_HOLDS_NS:
            return 0
        self._own_since_ns = now_ns
        num_held = {owner: len(refs) for owner, refs in held.items()}
        return most_holding_guest(num_held, self._clients, half=own.num_taken / 2)

    def ask_back(self, worker: WorkerPeer, urgency: int, now_ns: int) -> int:
        """Send RECALL to the front ends that hold this worker's results. Returns the owner id of a guest that
        must be ended; 0 if none must."""
        worker.lacks_memory = True
        if urgency not in (ROOM, ROOM_NOW):
            return 0
        is_urgent = urgency == ROOM_NOW
        segments = {worker.owner}
        if is_urgent:
            segments.update(owner for owner, writer in self._blocks.results.items() if writer is worker)
        held = self._holders.held_in(segments)
        self._ask_all(held, is_urgent=is_urgent)
        if not must_end_guest(worker, now_ns, is_urgent=is_urgent):
            return 0
        nbytes = {owner: sum([self._blocks.nbytes(ref) for ref in refs]) for owner, refs in held.items()}
        return most_holding_guest(nbytes, self._clients, half=sum(nbytes.values()) / 2)

    def _ask_all(self, held: Mapping[int, set[int]], *, is_urgent: bool) -> None:
        """Send RECALL to the front ends among `held`: a client's owner id → the blocks that it holds. With `is_urgent`,
        front ends disconnect slow readers."""
        for owner, refs in held.items():
            client = self._clients.get(owner)
            if client is not None and client.is_front_end:
                self._ask(client, {ref_owner(ref) for ref in refs}, is_urgent=is_urgent)

    def _ask(self, client: ClientPeer, segments: set[int], *, is_urgent: bool) -> None:
        if client.has_unread_recall:
            return  # the client is stopped or busy: it gets another RECALL if the memory is still needed then
        rest = iter(segments)
        while owners := tuple(islice(rest, MAX_RECALLED)):
            client.recall(recall_record(owners, is_urgent=is_urgent))
        self._written.add(client)

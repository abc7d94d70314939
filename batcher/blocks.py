"""Whose a block of shared memory is: where it can be read, and who must be told that nobody holds it."""

from shoal.batcher.late_clients import LateClients
from shoal.batcher.peers import Client, Worker
from shoal.shm.layout import OWNER_SHIFT, LayoutError, ref_owner
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Slab, SlabView


class Blocks:
    """All segments with blocks in them: those of clients and workers, of single payloads, and the batcher's own.

    Whom something must be told joins `written`.
    """

    def __init__(
        self, clients: dict[int, Client], workers: dict[int, Worker], written: set[Worker], late: LateClients
    ) -> None:
        self._clients = clients
        self._workers = workers
        self._written = written
        #: Whose results lie in segments beside the workers' own. Changed by add_result and remove, and as workers die.
        self.results: dict[int, Worker] = {}
        # Changed by add_payload and remove: what of them ensembles may have to read, and who has asked for it.
        self._payloads: dict[int, SlabView] = {}
        self._askers: dict[int, int] = {}
        self._late = late
        #: The batcher's own memory, from the first ensemble on.
        self.own: Slab | None = None
        self._own_owner = 0

    def connect(self, segment: Segment) -> None:
        """Memory of the batcher's own, which everybody who reads it has mapped, or can ask for."""
        self.own, self._own_owner = Slab(segment), segment.header.owner

    def add_result(self, owner: int, worker_owner: int) -> None:
        """A result of that worker may lie in the segment `owner`, too."""
        worker = self._workers.get(worker_owner)
        if worker is not None:
            self.results[owner] = worker

    def add_payload(self, owner: int, asker: int, view: SegmentView) -> None:
        """A request or a result that fills a segment, which that client or worker has asked for."""
        self._payloads[owner] = SlabView(view)
        self._askers[owner] = asker

    def is_of(self, client: int, ref: int) -> bool:
        """Whether a block is a client's own, in its slab or in a segment that it has asked for."""
        owner = ref_owner(ref)
        return owner == client or self._askers.get(owner) == client

    def check_named(self, worker: Worker, ref: int, *, may_be_gone: bool) -> bool:
        """Whether a block that a worker's record names, and that is not in the worker's slab, is a result of its beside
        it. False where the block's segment is gone, and may be. Raises LayoutError for a block of any other process."""
        owner = ref >> OWNER_SHIFT
        if self.results.get(owner) is worker:
            return True
        if may_be_gone and not self._is_known(owner):
            return False
        raise LayoutError(f"worker {worker.owner} names the block {ref:#x}")

    def _is_known(self, owner: int) -> bool:
        known = owner in self._workers or owner in self._clients or owner in self.results or owner in self._payloads
        return known or owner == self._own_owner

    def remove(self, owner: int) -> None:
        """Nothing lies in that segment any more."""
        self.results.pop(owner, None)
        self._payloads.pop(owner, None)
        self._askers.pop(owner, None)

    def lose(self, worker: Worker) -> set[int]:
        """A worker is dead. Returns the segments that its results may lie in."""
        lost = {owner for owner, writer in self.results.items() if writer is worker}
        for owner in lost:
            del self.results[owner]
        return lost | {worker.owner}

    def open(self, ref: int) -> memoryview | None:
        """A block's memory, whosever it is; None where it is gone."""
        owner = ref >> OWNER_SHIFT
        peer = self._workers.get(owner) or self._clients.get(owner)
        slab = self._payloads.get(owner) if peer is None else peer.slab
        if slab is not None:
            return slab.open(ref)
        own = self.own
        return own.open(ref) if own is not None and own.is_taken(ref) else None

    def free(self, ref: int) -> None:
        """Nobody holds the block any more: its owner is told."""
        owner = ref >> OWNER_SHIFT
        worker = self._workers.get(owner) or self.results.get(owner)
        late = self._late
        if late.are_any and (late.drop_claim(ref) or (worker is not None and late.withholds(ref))):
            return
        if worker is not None:
            worker.freed.append(ref)
            self._written.add(worker)
            # A block of its slab can wait for the worker's next batch, unless it waits for memory itself.
            if worker.is_hungry or owner != worker.owner:
                worker.must_ring = True
        elif self.own is not None:
            self.own.free(ref)

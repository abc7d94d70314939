"""Blocks of shared memory by owner: where a block can be read, and which process is sent FREE once the block has no
holder."""

from collections.abc import Callable

from shoal.batcher.late_clients import LateClients
from shoal.batcher.peers import ClientPeer, WorkerPeer
from shoal.shm.layout import OWNER_SHIFT, UNIT, LayoutError, ref_owner
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Slab, SlabView


class Blocks:
    """All segments with blocks in them: those of clients and workers, oversize segments, and the batcher's own.

    Workers for which a FREE was pushed are added to `written`; `late` keeps blocks that clients of a dead batcher may
    still hold.
    """

    def __init__(
        self,
        clients: dict[int, ClientPeer],
        workers: dict[int, WorkerPeer],
        written: set[WorkerPeer],
        late: LateClients,
    ) -> None:
        self._clients = clients
        self._workers = workers
        self._written = written
        #: Oversize segment → the worker whose results may lie there. Changed by add_result, remove and lose.
        self.results: dict[int, WorkerPeer] = {}
        # Changed by add_payload and remove: mapped oversize segments that ensembles may have to read, and the owner id
        # of the process that asked for each.
        self._payloads: dict[int, SlabView] = {}
        self._askers: dict[int, int] = {}
        self._late = late
        #: The batcher's own memory; None before the server has an ensemble or a response cache.
        self.own: Slab | None = None
        self._own_owner = 0

    def connect(self, segment: Segment) -> None:
        """Take the batcher's own slab into use. All processes that read the slab have mapped it, or can ask for it."""
        self.own, self._own_owner = Slab(segment), segment.header.owner

    def add_result(self, owner: int, worker_owner: int) -> None:
        """Let results of the worker `worker_owner` lie in the oversize segment `owner`, too."""
        worker = self._workers.get(worker_owner)
        if worker is not None:
            self.results[owner] = worker

    def add_payload(self, owner: int, asker: int, view: SegmentView) -> None:
        """Read an oversize segment that was made for a request or a result of the client or worker `asker`."""
        self._payloads[owner] = SlabView(view)
        self._askers[owner] = asker

    def is_of(self, client: int, ref: int) -> bool:
        """Whether a block belongs to a client: in the client's slab or in an oversize segment that the client has
        asked for."""
        owner = ref_owner(ref)
        return owner == client or self._askers.get(owner) == client

    def check_named(self, worker: WorkerPeer, ref: int, *, may_be_gone: bool) -> bool:
        """Whether a block outside a worker's slab, named in a record of that worker, is one of the worker's results.

        False if the block's segment is gone, and `may_be_gone`. Raises LayoutError for a block of any other process.
        """
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
        """Forget an oversize segment that all processes have unmapped."""
        self.results.pop(owner, None)
        self._payloads.pop(owner, None)
        self._askers.pop(owner, None)

    def lose(self, worker: WorkerPeer) -> set[int]:
        """Forget a dead worker's oversize segments. Returns all segments that its results may lie in."""
        lost = {owner for owner, writer in self.results.items() if writer is worker}
        for owner in lost:
            del self.results[owner]
        return lost | {worker.owner}

    def open(self, ref: int) -> memoryview | None:
        """The memory (bytes) of any process's block, read-only unless the batcher's own; None if the block is gone."""
        owner = ref >> OWNER_SHIFT
        peer = self._workers.get(owner) or self._clients.get(owner)
        slab = self._payloads.get(owner) if peer is None else peer.slab
        if slab is not None:
            return slab.open(ref)
        own = self.own
        return own.open(ref) if own is not None and own.is_taken(ref) else None

    def open_of(self, client: ClientPeer, ref: int) -> memoryview | None:
        """Like `open`, for a block that an open request of this client names; the client may be late."""
        own = client.block(ref)
        return self.open(ref) if own is None else own

    def nbytes(self, ref: int) -> int:
        """The size of a block in bytes; the size of the smallest block if the block is gone."""
        memory = self.open(ref)
        return UNIT if memory is None else len(memory)

    def opener(self, client: ClientPeer, own: memoryview) -> Callable[[int], memoryview | None]:
        """A function that opens the blocks which the header of a client's request names; reference 0 is `own`, the
        block that the header lies in. The function returns None for a block that is gone, or that does not belong to
        the guest who named it."""

        def open_block(ref: int) -> memoryview | None:
            if not ref:
                return own
            return None if client.is_guest and not self.is_of(client.owner, ref) else self.open_of(client, ref)

        return open_block

    def free(self, ref: int) -> None:
        """Free a block without holders: its owner is sent FREE, or the batcher's own slab frees it."""
        owner = ref >> OWNER_SHIFT
        worker = self._workers.get(owner) or self.results.get(owner)
        late = self._late
        if late.are_any and (late.drop_claim(ref) or (worker is not None and late.withholds(ref))):
            return
        if worker is not None:
            worker.freed.append(ref)
            self._written.add(worker)
            # The FREE of a block of the worker's slab can wait for the worker's next batch, unless the worker lacks
            # memory.
            if worker.lacks_memory or owner != worker.owner:
                worker.must_ring = True
        elif self.own is not None:
            self.own.free(ref)

"""A worker's shared memory: its slab for results, its two rings with the batcher, the clients' blocks it may read.

Runs in a worker, in its only thread. Records come in whole batches; FREE records between them give blocks back.
"""

import logging
import select
import time
from collections import deque

from shoal.shm import layout
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import (
    BATCH_ITEM,
    BUSY_FOR_WORD,
    BUSY_SINCE_WORD,
    FREE,
    HAVE,
    PROGRESS_WORD,
    UNIT,
    WANT,
    B,
    LayoutError,
)
from shoal.shm.ring import RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab, SlabView
from shoal.workers.oversize import OversizeBlocks

_log = logging.getLogger(__name__)

Record = tuple[int, ...]

#: How long a finished batch may wait for clients to release earlier results (ours; then it fails with 503).
BLOCK_WAIT_S = 10.0


class Memory:
    """Take batches, open blocks, allocate, publish."""

    def __init__(
        self,
        segment: Segment,
        link: SegmentView,
        bell: Doorbell,
        batcher_bell: Doorbell,
        oversize: OversizeBlocks,
        block_wait_s: float = BLOCK_WAIT_S,
    ) -> None:
        self.slab = Slab(segment)
        self.bell = bell
        self.oversize = oversize
        self._words = segment.words
        self._reader = RingReader(segment, link)
        writer = RingWriter(segment, link)
        #: Add a record for the batcher; visible to it after `publish`.
        self.push = writer.push
        #: Show the batcher what was pushed; it looks when it is rung, or for another reason before that.
        self.publish = writer.publish
        #: Wake the batcher.
        self.ring = batcher_bell.ring
        self._block_wait_s = block_wait_s
        # Changed by the supervisor's announcements and by what the batcher sends.
        self._views: dict[int, SlabView] = {}
        self._batches: deque[list[Record]] = deque()
        self._incomplete: list[Record] = []
        # The odd unit of a slab is kept back, so that an error can be told when clients hold everything else; of an
        # even slab nothing is, because it would split the largest block.
        self._has_spare = segment.header.slab_nbytes // UNIT % 2 == 1
        self._spare = self.slab.allocate(UNIT) if self._has_spare else None

    def add_segment(self, owner: int, view: SegmentView) -> None:
        """Requests may lie in that segment from now on."""
        self._views[owner] = SlabView(view)

    def remove_segment(self, owner: int) -> None:
        """Its owner is gone; requests that lie there fail."""
        self._views.pop(owner, None)

    def open(self, ref: int) -> memoryview | None:
        """A block of another process, read-only; None where it is stale or nobody announced its owner."""
        view = self._views.get(layout.ref_owner(ref))
        return view.open(ref) if view is not None else None

    def take(self) -> list[Record] | None:
        """The next batch, complete and in order; None where there is none. Clear the bell before the first call."""
        if not self._batches:
            self._drain()
        return self._batches.popleft() if self._batches else None

    def begin(self, batch: int, now_ns: int) -> None:
        """Say that a batch is being executed: should this process die, its requests were what it died with."""
        self._words[PROGRESS_WORD] = batch
        self._words[BUSY_SINCE_WORD] = now_ns

    def end(self, now_ns: int) -> None:
        """The batch is answered."""
        words = self._words
        words[BUSY_FOR_WORD] += now_ns - words[BUSY_SINCE_WORD]
        words[BUSY_SINCE_WORD] = 0

    def wait_for_block(self, nbytes: int) -> Block | None:
        """A block of the own slab, which has none now: waits for one to be freed, then gives up with None."""
        deadline = time.monotonic() + self._block_wait_s
        poller = select.poll()
        poller.register(self.bell.fd, select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0:
            self.bell.clear()
            self._drain()
            block = self.slab.allocate(nbytes)
            if block is not None:
                return block
            # What clients release waits in their rings until somebody wants it. The supervisor's death ends this
            # process by signal.
            self.push(layout.record(WANT))
            self.publish()
            self.ring()
            poller.poll(left_s * 1000)
        return None

    def allocate_for_errors(self, nbytes: int) -> Block | None:
        """A block at once: an ordinary one, else the spare one, else None."""
        block = self.slab.allocate(nbytes)
        if block is None and nbytes <= UNIT:
            block, self._spare = self._spare, None
        return block

    def free(self, ref: int) -> None:
        """Take a block back, the slab's or one of its own segment."""
        if not self.slab.free(ref):
            self.oversize.free(ref)

    def _drain(self) -> None:
        for record in self._reader.drain():
            kind = record[0]
            if kind == BATCH_ITEM:
                self._incomplete.append(record)
                if len(self._incomplete) == record[B.COUNT]:
                    self._batches.append(self._incomplete)
                    self._incomplete = []
                if record[B.FREED]:
                    self._take_back(record[B.FREED])
            elif kind == FREE:
                self._take_back(record[B.BLOCK])
            else:
                raise LayoutError(f"the batcher sent a record of kind {kind}")

    def tell_blocks(self) -> None:
        """Tell a new batcher of every block that has not been freed; of those nobody needs it will say so."""
        try:
            for ref in (*self.slab.taken_refs, *self.oversize.refs):
                if self._spare is None or ref != self._spare.ref:
                    self.push(layout.record(HAVE, 0, 0, 0, ref))
        except RingFullError:
            # Told another batcher before, which died without looking: there it stands still.
            _log.info("a batcher hears of blocks what its predecessor was told")
        self.publish()
        self.ring()

    def count(self) -> dict[str, int]:
        """For the ledger, once all that nobody needs any more is taken back: blocks of the slab, without the spare one;
        segments for a single result; slots of the batcher's ring."""
        self._drain()
        blocks_acquired, blocks_released = self.slab.counts
        slots_acquired, slots_released = self._reader.counts
        num_spare = int(self._spare is not None)
        return {
            "blocks_acquired": blocks_acquired - num_spare,
            "blocks_released": blocks_released,
            "blocks_spare": num_spare,
            "oversize_held": len(self.oversize.refs),
            "slots_acquired": slots_acquired,
            "slots_released": slots_released,
        }

    def _take_back(self, ref: int) -> None:
        self.free(ref)
        if self._has_spare and self._spare is None:
            self._spare = self.slab.allocate(UNIT)

"""A worker's shared memory: its slab for results, its two rings with the batcher, the clients' blocks that it may read.

Runs in a worker. Records come in whole batches; FREE records between them free blocks. Only one thread uses a Memory
until `share` is called, so until then there is no locking.
"""

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeVar

from shoal.errors import InternalError, UnavailableError
from shoal.fault import IS_ARMED, reached
from shoal.shared_settings import SLAB_PARTS
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import (
    BATCH_ITEM,
    BUSY_FOR_WORD,
    BUSY_SINCE_WORD,
    CANCEL,
    FREE,
    MOVED_WORD,
    NEWS,
    PROGRESS_WORD,
    ROOM,
    ROOM_NOW,
    TAKEN_WORD,
    UNIT,
    B,
    D,
    LayoutError,
    Record,
)
from shoal.shm.records import have_record, want_record
from shoal.shm.ring import RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block, Slab
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.oversize import WorkerOversizeBlocks
from shoal.workers.segments import Segments

_log = logging.getLogger(__name__)

# As attributes of the class, each would take 0.2k instructions a request.
_COUNT: Final = B.COUNT
_FREED: Final = B.FREED

_Result = TypeVar("_Result")

#: How long a finished batch may wait for clients to release earlier results if there is no other memory for its own
#: results; then it fails with status 503 (ours).
BLOCK_WAIT_S = 10.0
#: How long a result waits for a block of the slab before an oversize segment is requested: about as long as it takes to
#: make such a segment (measured: 18 ms for 16 MiB), and several times as long as a front end takes to copy what slow
#: readers hold (2 ms for 6 MB).
SEGMENT_AFTER_S = 0.01
#: The first and the longest pause between the WANT records that are sent while memory is awaited: by a WANT the batcher
#: learns of releases for which clients have not rung it, and frees those blocks (ours).
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.05
#: Values of `Memory.use`: used by one thread; used by several; or left, which it is in a process that the model has
#: forked.
ALONE: Final = 0
SHARED: Final = 1
LEFT: Final = 2


class Memory:
    """The shared memory of one worker: takes batches, opens requests' blocks, allocates and frees its own, publishes
    records."""

    def __init__(
        self,
        segment: Segment,
        link: SegmentView,
        bell: Doorbell,
        batcher_bell: Doorbell,
        oversize: WorkerOversizeBlocks,
        block_wait_s: float = BLOCK_WAIT_S,
    ) -> None:
        #: The slab for results; a result larger than a quarter of the slab gets an oversize segment, as a large request
        #: does.
        self.slab = Slab(segment, SLAB_PARTS)
        self.bell = bell
        self.oversize = oversize
        self._loops_thread = threading.get_ident()  # the thread of the loop, which makes this object
        self.segments = Segments()
        #: Other processes' memory on GPUs; None until a request names such memory.
        self.cuda: CudaRegions | None = None
        #: Memory for outputs that stay on the instance's GPU; None unless `keep_on_gpu` is called.
        self.gpu_pool: GpuPool | None = None
        self._words = segment.words
        self._reader = RingReader(segment, link)
        self._writer = writer = RingWriter(segment, link)
        self._num_reserved = segment.header.ring_capacity // 2
        # Functions, most of which `share` and `leave` replace, so that they need no lock as long as one thread uses the
        # memory.
        #: Apply all records of the batcher. Raises LayoutError for an invalid one.
        self.drain: Callable[[], None] = self._apply_records
        #: Return a writable block of the slab, of at least the given number of bytes, without waiting; None if none is
        #: free.
        self.allocate: Callable[[int], Block | None] = self.slab.allocate
        #: Free a block of the slab or of an oversize segment.
        self.free: Callable[[int], None] = self._free
        #: Push a record to the batcher; visible to it after `publish`.
        self.push: Callable[[Record], None] = self._push_reached if IS_ARMED else writer.push
        #: Make pushed records visible to the batcher, which reads them when it is rung, or earlier if it is awake.
        self.publish: Callable[[], bool] = writer.publish
        #: Wake the batcher.
        self.ring = batcher_bell.ring
        #: How long (s) a result waits for clients to release blocks.
        self.block_wait_s = block_wait_s
        # Changed by find_block: the size in bytes of a block that was awaited in vain, and how often the slab had
        # joined free blocks at that time.
        self._awaited_in_vain = (0, -1)
        # Changed by records of the batcher: complete batches, the first records of an incomplete one, keys of cancelled
        # requests.
        self._batches: deque[list[Record]] = deque()
        self._incomplete: list[Record] = []
        self._cancelled: set[int] = set()
        # Changed by response senders: the key of each request that a sender answers → that sender's `end_if_over`; each
        # block of a sender's responses that is not freed yet → the sender's set of such blocks.
        self.open_requests: dict[int, Callable[[int, int], None]] = {}
        self.windows: dict[int, set[int]] = {}
        self.lock = threading.RLock()
        self.use = ALONE
        # Changed by several threads: blocks that records to the batcher have named and that have not been freed.
        self._reported: set[int] = set()
        # If a slab has an odd number of units, one is reserved, so that an error can be sent while clients hold all
        # other blocks. In a slab with an even number, a reserved unit would split the largest block.
        self._has_spare = segment.header.slab_nbytes // UNIT % 2 == 1
        self._spare = self.slab.allocate(UNIT) if self._has_spare else None

    def keep_on_gpu(self, pool: GpuPool) -> None:
        """Let outputs stay in this pool on the instance's GPU; a part of the pool is freed with the block that names
        it."""
        self.gpu_pool = pool
        pool.made = lambda: self.cuda_regions().add_own(pool.handle, pool.address, pool.nbytes)
        self.free = self._free_with_parts

    def cuda_regions(self) -> CudaRegions:
        """The object for other processes' memory on GPUs; the first call makes it."""
        if self.cuda is None:
            self.cuda = CudaRegions()
        return self.cuda

    def share(self) -> None:
        """Let several threads use this object from now on: each change is made under `lock`.

        This is not so from the start, because each use of the lock costs 2k instructions. Called by the loop's thread,
        or while that thread executes a batch and does not use the memory.
        """
        with self.lock:
            if self.use != ALONE:
                return
            self._reported.update((*self.slab.taken_refs, *self.oversize.refs))
            self.drain = self._drain_locked
            self.allocate = self._allocate_locked
            self.push = self._push_locked
            self.publish = self._publish_locked
            self.use = SHARED
            self.oversize.is_shared = True

    def leave(self) -> None:
        """Restrict this process, which the model has forked, to reading requests and results.

        The ends of the rings and the slab's free blocks are the worker's alone: methods that would change them raise
        InternalError. Here a request counts as cancelled if the worker knew that at the fork.
        """
        self.lock = threading.RLock()  # another thread of the worker may have held the lock at the fork
        self.use = LEFT
        self.drain = self.allocate = self.push = self.publish = _refuse
        self._batches.clear()  # so that `take` calls `drain`, which raises

    def prepare(self) -> None:
        """Add memory for results before it is needed, if little is free; called right after results were sent."""
        with self.lock:
            self.slab.prepare()

    def take(self) -> list[Record] | None:
        """The next batch, complete and in order; None if none has come."""
        batches = self._batches
        if not batches:
            self.drain()
            if not batches:
                return None
        batch = batches.popleft()
        if IS_ARMED:
            reached("taken")
        return batch

    def begin(self, batch: int, now_ns: int) -> None:
        """Publish that a batch is being executed: if this process dies, the batcher knows that it died while executing
        that batch's requests."""
        self._words[PROGRESS_WORD] = batch
        self._words[BUSY_SINCE_WORD] = now_ns
        if IS_ARMED:
            reached("begun")

    def begin_audit(self, now_ns: int) -> None:
        """Publish the start of an execution outside of any batch: the execution limit applies to it, too."""
        self._words[BUSY_SINCE_WORD] = now_ns

    def end(self, now_ns: int) -> None:
        """Publish that the batch's execution is over; its requests are answered, or response senders will answer
        them."""
        words = self._words
        words[BUSY_FOR_WORD] += now_ns - words[BUSY_SINCE_WORD]
        words[BUSY_SINCE_WORD] = 0
        if self._cancelled:
            with self.lock:
                waiting = {record[B.KEY] for batch in self._batches for record in batch}
                self._cancelled &= waiting.union(self.open_requests)
        if IS_ARMED:
            reached("ended")

    def moved(self, batch: int, now_ns: int) -> None:
        """Restart the execution limit's clock if this batch is being executed: a request of it has sent a response, or
        waits for a client.

        No effect while another batch is being executed, which may hang while threads answer requests of this batch.
        """
        if self.use == LEFT:
            _refuse()
        if batch == self._words[PROGRESS_WORD]:
            self._words[MOVED_WORD] = now_ns

    def is_executing(self, batch: int) -> bool:
        """Whether the instance is executing this batch, and can take no other."""
        return self._words[BUSY_SINCE_WORD] != 0 and self._words[PROGRESS_WORD] == batch

    @property
    def begun_ns(self) -> int:
        """When the batch that is being executed began, in monotonic ns; 0 between two batches."""
        return self._words[BUSY_SINCE_WORD]

    def is_cancelled(self, key: int) -> bool:
        """Whether an open request's client has stopped waiting, according to all records of the batcher so far. Any
        thread may call this.

        Several threads of a model may call this, so the first call during an execution calls `share`. A first call
        between two batches returns False and does not: the request has been answered, and the loop's thread may be
        using the memory.
        """
        if self.use == ALONE:
            if not self.begun_ns:
                return False
            self.share()
        with self.lock:
            if self.use != LEFT:
                self.drain()
            return key in self._cancelled

    def is_awaited(self) -> bool:
        """Whether the client of any request that response senders answer still waits."""
        with self.lock:
            return not self._cancelled.issuperset(self.open_requests)

    def find_block(self, nbytes: int) -> Block:
        """A writable block for a result of `nbytes` bytes for which `allocate` has found none, from the slab or else in
        an oversize segment. The block is the caller's until `free`.

        Clients that read slowly are first asked to release blocks. If no block is freed soon, the result gets an
        oversize segment; so do the results that follow, without waiting, until a block of the slab has been freed.
        Raises UnavailableError if there is no memory for too long, InvalidArgumentError if there is never enough.
        """
        oversize = self.oversize
        self.drain()  # blocks may have been freed while the batch was executed
        if (block := self.allocate(nbytes) or oversize.allocate_kept(nbytes)) is not None:
            return block
        fits = nbytes <= self.slab.largest_nbytes
        if fits and (block := self._wait_for_slab(nbytes)) is not None:
            return block
        try:
            return oversize.allocate(nbytes)
        except UnavailableError as error:
            refusal = error.with_traceback(None)  # the traceback would keep the requests' memory mapped
        try:
            if (block := self._wait_for_any(nbytes)) is None:
                raise refusal
        finally:
            del refusal  # the traceback refers to this frame: a cycle would keep the requests' memory mapped
        return block

    def _wait_for_slab(self, nbytes: int) -> Block | None:
        """A block of the slab that slow readers release soon; None if none is freed, or if an earlier wait was in vain
        and no block has been freed since then."""
        awaited_nbytes, num_joins = self._awaited_in_vain
        if nbytes >= awaited_nbytes and self.slab.num_joins == num_joins:
            self._try_send(want_record(ROOM))
            return None
        block = self.wait_for(lambda: self.allocate(nbytes), self._loops_batch, SEGMENT_AFTER_S, ROOM)
        if block is None:
            self._awaited_in_vain = nbytes, self.slab.num_joins
        return block

    def _wait_for_any(self, nbytes: int) -> Block | None:
        """A block of the slab or an oversize segment, for which the slowest readers may be disconnected; None if none
        is free in time, or if no block that may be freed is large enough."""
        oversize = self.oversize
        fits, num_held = nbytes <= self.slab.largest_nbytes, len(oversize.refs)

        def attempt() -> Block | None:
            nonlocal num_held
            block = self.allocate(nbytes) or oversize.allocate_kept(nbytes)
            if block is not None or len(oversize.refs) >= num_held:
                return block
            num_held = len(oversize.refs)  # a segment was freed; the supervisor may make another in its place
            with suppress(UnavailableError):
                return oversize.allocate(nbytes)
            return None

        return self.wait_for(attempt, self._loops_batch, urgency=ROOM_NOW) if fits or num_held else None

    @property
    def _loops_batch(self) -> int:
        """In the loop's thread, the number of the batch that is being executed; in a response sender's thread 0, since
        it may answer requests of any batch."""
        return self._words[PROGRESS_WORD] if threading.get_ident() == self._loops_thread else 0

    def wait_for(
        self, attempt: Callable[[], _Result | None], batch: int = 0, wait_s: float | None = None, urgency: int = NEWS
    ) -> _Result | None:
        """The first result of `attempt` that is not None; `attempt` is called again after each ring of the bell. None
        after `wait_s` seconds.

        The wait does not count towards the execution limit of `batch`.
        """
        now_s = want_s = time.monotonic()
        deadline_s = now_s + (self.block_wait_s if wait_s is None else wait_s)
        pause_s = _FIRST_PAUSE_S
        with select.epoll() as poller:
            # Edge-triggered: only the loop clears the bell, and each ring has to wake all threads that wait for it.
            poller.register(self.bell.fd, select.EPOLLIN | select.EPOLLET)
            while True:
                self.drain()
                result = attempt()
                now_s = time.monotonic()
                if batch:
                    self.moved(batch, int(now_s * 1e9))
                if result is not None or now_s >= deadline_s:
                    return result
                if now_s >= want_s:
                    # Clients' RELEASEs wait in their rings until the batcher reads them. If the supervisor dies, a
                    # signal ends this process, and so this wait.
                    self._try_send(want_record(urgency))
                    want_s, pause_s = now_s + pause_s, min(2 * pause_s, _LONGEST_PAUSE_S)
                poller.poll(min(want_s, deadline_s) - now_s)

    def send_record(self, record: Record) -> bool:
        """Publish a record to the batcher at once, from any thread but the loop's; half of the ring is reserved for the
        loop's records. May wait for room in the ring; returns False if there is none for too long."""
        return bool(self._try_send(record) or self.wait_for(lambda: self._try_send(record)))

    def _try_send(self, record: Record) -> bool | None:
        if self.use == LEFT:
            _refuse()
        with self.lock:
            if self._writer.num_free <= self._num_reserved:
                self.ring()
                return None
            self._push_locked(record)
            self._writer.publish()
        self.ring()
        return True

    def _push_reached(self, record: Record) -> None:
        """Push a record, in a process with fault points."""
        self._writer.push(record)
        reached("pushed")

    def _push_locked(self, record: Record) -> None:
        with self.lock:
            (self._push_reached if IS_ARMED else self._writer.push)(record)
            if len(record) > D.BLOCK:
                self._reported.add(record[D.BLOCK])

    def _publish_locked(self) -> bool:
        with self.lock:
            return self._writer.publish()

    def _allocate_locked(self, nbytes: int) -> Block | None:
        with self.lock:
            return self.slab.allocate(nbytes)

    def allocate_for_errors(self, nbytes: int) -> Block | None:
        """A block of at least `nbytes` bytes at once: an ordinary block, else the spare one, else None."""
        with self.lock:
            block = self.allocate(nbytes)
            if block is None and nbytes <= UNIT:
                block, self._spare = self._spare, None
            return block

    def _free(self, ref: int) -> None:
        if self.use != ALONE:
            self._free_locked(ref)
        elif not self.slab.free(ref):
            self.oversize.free(ref)

    def _free_with_parts(self, ref: int) -> None:
        self._free(ref)
        assert self.gpu_pool is not None, "set before this method is"
        self.gpu_pool.release(ref)

    def _free_locked(self, ref: int) -> None:
        if self.use == LEFT:
            _refuse()
        with self.lock:
            if not self.slab.free(ref):
                self.oversize.free(ref)
            self._reported.discard(ref)

    def _drain_locked(self) -> None:
        with self.lock:
            self._apply_records()

    def _apply_records(self) -> None:
        incomplete, num_taken = self._incomplete, 0
        for record in self._reader.drain():
            kind = record[0]
            if kind == BATCH_ITEM:
                incomplete.append(record)
                if len(incomplete) == record[_COUNT]:
                    num_taken += len(incomplete)
                    self._batches.append(incomplete)
                    self._incomplete = incomplete = []
                if record[_FREED]:
                    self.take_back(record[_FREED])
            elif kind == FREE:
                self.take_back(record[B.BLOCK])
            elif kind == CANCEL:
                self._cancelled.add(record[B.KEY])
            else:
                raise LayoutError(f"the batcher sent a record of kind {kind}")
        if num_taken:
            self._words[TAKEN_WORD] += num_taken

    def report_blocks(self) -> None:
        """Send a dead batcher's successor a HAVE record for every block that is not free; the successor frees blocks
        without holders.

        Blocks that another thread is still writing are left out: their responses will be the first to name them.
        """
        with self.lock:
            refs = {*self.slab.taken_refs, *self.oversize.refs}
            if self.use == SHARED:
                refs &= self._reported
            if self._spare is not None:
                refs.discard(self._spare.ref)
            try:
                for ref in refs:
                    self.push(have_record(ref))
            except RingFullError:
                # These records were sent to an earlier batcher, which died without reading them: they are still in the
                # ring.
                _log.info("a dead batcher has not read which blocks are taken; its successor reads the same records")
            self.publish()
        self.ring()

    def count(self) -> dict[str, int]:
        """The worker's figures for the ledger, after freed blocks were taken back: blocks of the slab, without the
        spare one, oversize segments, and records of the batcher's ring."""
        with self.lock:
            self.drain()
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

    def take_back(self, ref: int) -> None:
        """Free the block of a response that no process uses any more."""
        self.free(ref)
        if self.windows and (window := self.windows.pop(ref, None)) is not None:
            window.discard(ref)
        if self._has_spare and self._spare is None:
            self._spare = self.slab.allocate(UNIT)


def _refuse(*_args: Any) -> NoReturn:
    raise InternalError("a process that the model has forked cannot answer its requests: answer in the model's own")

"""Requests that need no execution of their own: an equal request has been answered, or is being executed.

An answer is copied once, into the batcher's own memory, and each hit is a reference to that copy, held as a worker's
block is. Requests that wait for an equal one get references to the block of its answer. Which answers are kept and
which requests wait is decided in `response_cache`. If answers are shared with other servers (`shared_answers`), the
answer to the first of equal requests is looked up in the shared store before the request is executed. Lives in the
batcher.
"""

from collections.abc import Callable

from shoal.batcher import statistics
from shoal.batcher.blocks import Blocks
from shoal.batcher.ensemble import Ensemble
from shoal.batcher.holders import Holders
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.passed_on import ResponseBlocks, read_pieces
from shoal.batcher.peers import ScheduledModel
from shoal.batcher.response_cache import CacheEntry, CoalescingKey, RequestIdentity, ResponseCache
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.shared_answers import DecodedValue, SharedAnswers
from shoal.errors import InternalError
from shoal.request import InferResponse, TensorRef, pack_response, unpack_response
from shoal.shm.counters import CacheFigures
from shoal.shm.layout import pack_span, unpack_span
from shoal.shm.slab import Block, Slab, block_nbytes
from shoal.star.outgoing import aligned

#: Larger answers are not kept: a copy would delay all other requests (measured: 16 MiB take 2 ms; ours).
MAX_ANSWER_BYTES = 16 << 20
#: The key under which the cache holds blocks; no request has the key 0.
_CACHE = 0


class CachedResponses:
    """The response cache of all models that enable it. The methods up to `drain` implement `CoalescingCache`."""

    def __init__(
        self,
        requests: OpenRequests,
        holders: Holders,
        blocks: Blocks,
        figures: CacheFigures,
        clock_ns: Callable[[], int],
        shared: SharedAnswers | None = None,
    ) -> None:
        """`clock_ns` times lookups for the statistics."""
        self._requests = requests
        self._holders = holders
        self._blocks = blocks
        self._figures = figures
        self._clock_ns = clock_ns
        self._shared = shared
        # The revision of each model version, changed by `name`; kept answers and waiting requests, changed by all
        # methods.
        self._revisions: dict[int, str] = {}
        self._cache = ResponseCache(figures["total_bytes"])

    def take(self, model: ScheduledModel, queued: QueuedRequest, digest: tuple[int, int]) -> bool:
        """Take an accepted request unless it must be queued: the request is answered at once, or waits for an equal
        one. False if the request must be queued. The digest (0, 0) means that none was computed."""
        if digest == (0, 0):
            return False
        began_ns = self._clock_ns()
        self._figures["num_lookups"] += 1
        identity = RequestIdentity(model.id, *digest)
        stored, must_execute = self._cache.find(identity), False
        if stored is not None:
            self._answer(queued.key, stored.ref, stored.header, [], began_ns)
        elif self._begin(CoalescingKey(identity, queued.priority, queued.timeout_us), queued):
            must_execute = self._shared is None or not self._shared.look_up(identity, queued, began_ns)
            self._figures["num_misses"] += must_execute
        self._figures["lookup_ns"] += self._clock_ns() - began_ns
        self._show()
        return not must_execute

    def settle(
        self, model: ScheduledModel, key: int, answer: tuple[int, int, int] | None, now_ns: int, *, is_executed: bool
    ) -> None:
        """Keep an ended request's only response (block, header, number of pieces) and answer waiting requests with it;
        without a response (None), have the next waiting request executed. Each execution counts as a miss, even one
        that fails (as in Triton), except an ensemble's; with `is_executed` False, the request ended without one."""
        ended = self._cache.end(key)
        if ended is None:
            return
        coalescing_key, waiting = ended
        if answer is None:
            if is_executed and not isinstance(model, Ensemble):
                statistics.count_cache_miss(model.row, 0)
            for each in waiting:  # the executed request's failure says nothing about the waiting ones
                if self._begin(coalescing_key, self._requests.by_key[each][-1]):
                    self._figures["num_misses"] += 1
                    self._execute(each, now_ns)
            return
        began_ns = self._clock_ns()
        ref, header, num_pieces = answer
        block = self._blocks.open(ref) if num_pieces else None
        pieces = [] if block is None else read_pieces(block, num_pieces)
        self._keep(coalescing_key.identity, ref, header, pieces)
        ended_ns = self._clock_ns()
        self._figures["insertion_ns"] += ended_ns - began_ns
        statistics.count_cache_miss(model.row, ended_ns - began_ns)
        for each in waiting:
            self._answer(each, ref, header, pieces, ended_ns)
        self._show()

    def cancel(self, key: int) -> bool:
        """Stop a request's wait for an equal one or for the shared store. False if the request did not wait."""
        return self._cache.cancel(key) or (self._shared is not None and self._shared.forget(key))

    def abandon(self, model: ScheduledModel, key: int) -> None:
        """Forget a request whose client is gone."""
        if not self._cache.cancel(key):
            if self._shared is not None:
                self._shared.forget(key)
            self.settle(model, key, None, self._clock_ns(), is_executed=False)

    def drain(self, model_id: int) -> list[int]:
        """Remove and return the keys of all requests that wait or are looked up for a version that is served no
        more."""
        looked_up = [] if self._shared is None else self._shared.drop(model_id)
        return [*self._cache.drain(model_id), *looked_up]

    # --- called by the exchange ---

    def name(self, model_id: int, revision: str, now_ns: int) -> None:
        """Begin to cache a version's answers. An ensemble's answers are discarded when a step's model has changed,
        and with it the ensemble's `revision`."""
        if self._shared is not None:
            self._shared.name(model_id, revision)
        if self._revisions.setdefault(model_id, revision) == revision:
            return
        self._revisions[model_id] = revision
        waiting = self.drain(model_id)
        self._drop(model_id)
        for key in waiting:
            self._execute(key, now_ns)

    def advance(self, now_ns: int) -> None:
        """Handle the shared store's replies to lookups: waiting requests are answered, or executed."""
        if self._shared is None or not (found := self._shared.step(now_ns)):
            return
        for key, look_up, answer in found:
            self._figures["lookup_ns"] += now_ns - look_up.began_ns
            stored = self._cache.find(look_up.identity) or (answer and self._keep_shared(look_up.identity, answer))
            if stored is None:
                _, model, *_ = self._requests.by_key[key]
                self._figures["num_misses"] += 1
                statistics.count_cache_lookup(model.row, now_ns - look_up.began_ns)
                self._execute(key, now_ns)
                continue
            ended = self._cache.end(key)
            self._answer(key, stored.ref, stored.header, [], look_up.began_ns)
            for each in () if ended is None else ended[1]:
                self._answer(each, stored.ref, stored.header, [], now_ns)
        self._show()

    @property
    def deadline_ns(self) -> int | None:
        """When `advance` must be called though no bell rings, in monotonic ns; 0: at once; None: never."""
        return None if self._shared is None else self._shared.deadline_ns

    @property
    def in_use(self) -> set[int]:
        """Ids of models with requests that are being looked up, neither queued nor running."""
        return set() if self._shared is None else self._shared.in_use

    def forget(self, model_id: int) -> None:
        """Forget a model version and free its answers."""
        self._revisions.pop(model_id, None)
        if self._shared is not None:
            self._shared.unname(model_id)
        self._drop(model_id)

    @property
    def num_kept(self) -> int:
        """Number of kept answers, each in a block of its own."""
        return len(self._cache)

    # --- answering, executing and keeping ---

    def _answer(self, key: int, ref: int, header: int, pieces: list[int], began_ns: int) -> None:
        for piece in pieces:
            self._holders.hold_part(piece, key)
        self._figures["num_hits"] += 1
        now_ns = self._clock_ns()
        self._requests.answer_again(key, ref, header, len(pieces), now_ns - began_ns, now_ns)

    def _execute(self, key: int, now_ns: int) -> None:
        """Queue a request that has waited for an equal one's answer."""
        _, model, *_, queued = self._requests.by_key[key]
        self._requests.enqueue(model, queued, now_ns)

    def _begin(self, coalescing_key: CoalescingKey, queued: QueuedRequest) -> bool:
        """Whether the request must be executed, because it cannot wait for an equal one."""
        return self._cache.begin(coalescing_key, queued.key, queued.deadline_ns)

    def _keep(self, identity: RequestIdentity, ref: int, header: int, pieces: list[int]) -> None:
        """Copy an answer into the cache if there is, or can be made, room for the copy."""
        if self._cache.has(identity):
            return
        block = self._blocks.open(ref)
        own = self._blocks.own
        if block is None or own is None:
            return
        offset, nbytes = unpack_span(header)
        try:
            lies = ResponseBlocks(pieces or [ref], self._blocks.open)
            outputs, parameters = unpack_response(block[offset : offset + nbytes], lies.nbytes)
        except InternalError:
            return  # malformed: the client reports that when it reads the answer
        place, refs = 0, []
        for name, datatype, shape, _, size in outputs:
            refs.append(TensorRef(name, datatype, shape, place, size))
            place += aligned(size)
        packed = pack_response(InferResponse(tuple(refs), parameters))
        kept = self._allocate(own, place + len(packed))
        if kept is None:
            return
        for target, source in zip(refs, outputs, strict=True):
            within, piece, _ = lies.find(source.offset)
            data = self._blocks.open(piece)
            assert data is not None, "it was there when it was measured"
            kept.memory[target.offset : target.offset + target.nbytes] = data[within : within + target.nbytes]
        kept.memory[place : place + len(packed)] = packed
        self._store(identity, kept, pack_span(place, len(packed)), place + len(packed))
        if self._shared is not None:
            self._shared.keep(identity, kept.memory[: place + len(packed)], place, self._clock_ns())

    def _keep_shared(self, identity: RequestIdentity, answer: DecodedValue) -> CacheEntry | None:
        """Copy an answer of another server into the cache; None if there is no room for the copy, and none can be
        made."""
        contents, header = answer
        own, nbytes = self._blocks.own, len(contents)
        kept = None if own is None else self._allocate(own, nbytes)
        if kept is None:
            return None
        kept.memory[:nbytes] = contents
        return self._store(identity, kept, pack_span(header, nbytes - header), nbytes)

    def _allocate(self, own: Slab, nbytes: int) -> Block | None:
        total = block_nbytes(nbytes)
        if total > min(MAX_ANSWER_BYTES, own.largest_nbytes) or not self._make_room(total):
            return None
        while (kept := own.allocate(nbytes)) is None:
            if not self._evict():
                return None
        return kept

    def _store(self, identity: RequestIdentity, kept: Block, header: int, nbytes: int) -> CacheEntry:
        self._holders.hold_part(kept.ref, _CACHE)
        stored = CacheEntry(kept.ref, header, block_nbytes(nbytes))
        self._cache.store(identity, stored)
        return stored

    def _drop(self, model_id: int) -> None:
        for ref in self._cache.drop(model_id):
            self._release(ref)
        self._show()

    def _make_room(self, nbytes: int) -> bool:
        own = self._blocks.own
        for ref in self._cache.evicted_refs:
            if own is None or not own.is_taken(ref):
                self._cache.freed(ref)
        if nbytes > self._figures["total_bytes"]:
            return False
        while not self._cache.fits(nbytes):
            if not self._evict():
                return False
        return True

    def _evict(self) -> bool:
        ref = self._cache.evict()
        if ref:
            self._figures["num_evictions"] += 1
            self._release(ref)
        return bool(ref)

    def _release(self, ref: int) -> None:
        if self._holders.release(_CACHE, ref):
            self._blocks.free(ref)
            self._cache.freed(ref)

    def _show(self) -> None:
        figures, cache = self._figures, self._cache
        figures["num_entries"], figures["used_bytes"] = len(cache), cache.nbytes
        figures.publish()

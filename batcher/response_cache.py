"""Kept answers, and requests that wait for the answer to an equal one: least recently used, bounded by bytes.

Of equal requests in progress one, the leader, is executed, and the others wait for its answer. A request of another
priority or timeout does not wait, nor one whose deadline is before the leader's, nor one with a deadline if the leader
has none: the leader may be queued for too long. An evicted answer's bytes count until its memory is free, since a
client may still read it. Pure: knows no clock, no record and no memory; an answer is the reference to its block and the
span of its header. Lives in the batcher.
"""

from collections import OrderedDict
from typing import NamedTuple


class RequestIdentity(NamedTuple):
    """The common identity of equal requests: the model version as it was loaded, and the digest that a front end
    made."""

    model_id: int
    digest_low: int
    digest_high: int


class CacheEntry(NamedTuple):
    """A kept answer: its block's reference, its header's span, and the bytes that the block takes."""

    ref: int
    header: int
    nbytes: int


class CoalescingKey(NamedTuple):
    """The common properties of requests that may wait for each other."""

    identity: RequestIdentity
    priority: int
    timeout_us: int


class _Coalesced(NamedTuple):
    """Coalesced requests: the leader, its deadline (0 = none), and the requests that wait for the leader, in order."""

    leader: int
    deadline_ns: int
    waiting: dict[int, None]


class ResponseCache:
    """Kept answers (`find`, `store`, `evict`), and requests in progress for whose answers equal requests wait (`begin`,
    `end`)."""

    __slots__ = ("_coalesced", "_evicted_nbytes", "_executed", "_max_nbytes", "_stored", "_waiting", "nbytes")

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        # Changed by store, evict, drop and freed: kept answers, oldest first; bytes of evicted blocks not yet free.
        self._stored: OrderedDict[RequestIdentity, CacheEntry] = OrderedDict()
        self._evicted_nbytes: dict[int, int] = {}
        #: Bytes of kept and evicted answers together.
        self.nbytes = 0
        # Changed by begin, end, cancel and drain: request → coalescing key, of executed requests (leaders or not) and
        # of waiting ones; coalescing key → coalesced requests.
        self._executed: dict[int, CoalescingKey] = {}
        self._waiting: dict[int, CoalescingKey] = {}
        self._coalesced: dict[CoalescingKey, _Coalesced] = {}

    def __len__(self) -> int:
        """Number of answers that can be found."""
        return len(self._stored)

    @property
    def evicted_refs(self) -> list[int]:
        """References to blocks of evicted answers, which are not free yet: clients may still read them."""
        return list(self._evicted_nbytes)

    # --- kept answers ---

    def find(self, identity: RequestIdentity) -> CacheEntry | None:
        """The answer to an equal request, which becomes the most recently used one; None if there is none."""
        stored = self._stored.get(identity)
        if stored is not None:
            self._stored.move_to_end(identity)
        return stored

    def has(self, identity: RequestIdentity) -> bool:
        """Whether there is an answer to an equal request."""
        return identity in self._stored

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for an answer of `nbytes` bytes."""
        return self.nbytes + nbytes <= self._max_nbytes

    def store(self, identity: RequestIdentity, stored: CacheEntry) -> None:
        """Keep an answer. There must be room for it, and no answer of this identity."""
        assert self.fits(stored.nbytes)
        assert identity not in self._stored
        self._stored[identity] = stored
        self.nbytes += stored.nbytes

    def evict(self) -> int:
        """Evict the least recently used answer. Returns its block, to be `freed` once it has no reader; 0 if there
        is no answer."""
        return self._evict(next(iter(self._stored))) if self._stored else 0

    def freed(self, ref: int) -> None:
        """Note that an evicted answer's block is free again."""
        self.nbytes -= self._evicted_nbytes.pop(ref)

    def drop(self, model_id: int) -> list[int]:
        """Evict all answers of a model version that is gone. Returns their blocks, as `evict` does."""
        return [self._evict(identity) for identity in list(self._stored) if identity.model_id == model_id]

    def _evict(self, identity: RequestIdentity) -> int:
        ref, _, nbytes = self._stored.pop(identity)
        self._evicted_nbytes[ref] = nbytes
        return ref

    # --- requests in progress ---

    def begin(self, coalescing_key: CoalescingKey, key: int, deadline_ns: int) -> bool:
        """Begin a request. True if it must be executed, as the leader or by itself; False if it waits for the leader
        from now on."""
        led = self._coalesced.get(coalescing_key)
        if led is None:
            self._executed[key], self._coalesced[coalescing_key] = coalescing_key, _Coalesced(key, deadline_ns, {})
            return True
        if deadline_ns and not 0 < led.deadline_ns <= deadline_ns:
            self._executed[key] = coalescing_key
            return True
        led.waiting[key] = None
        self._waiting[key] = coalescing_key
        return False

    def end(self, key: int) -> tuple[CoalescingKey, list[int]] | None:
        """End a request's execution. Returns its coalescing key and the requests that have waited for its answer, in
        order; None if the request has not begun here."""
        coalescing_key = self._executed.pop(key, None)
        return None if coalescing_key is None else (coalescing_key, self._disband(coalescing_key, key))

    def cancel(self, key: int) -> bool:
        """Stop a request's wait for its leader. False if the request did not wait."""
        coalescing_key = self._waiting.pop(key, None)
        if coalescing_key is None:
            return False
        del self._coalesced[coalescing_key].waiting[key]
        return True

    def drain(self, model_id: int) -> list[int]:
        """Forget all executed requests of a model version. Returns the requests that have waited for them."""
        executed = [key for key, shared in self._executed.items() if shared.identity.model_id == model_id]
        return [waiting for key in executed for waiting in self._disband(self._executed.pop(key), key)]

    def _disband(self, coalescing_key: CoalescingKey, leader: int) -> list[int]:
        """Remove and return the requests that wait for this leader; none if the request leads none."""
        led = self._coalesced.get(coalescing_key)
        if led is None or led.leader != leader:
            return []
        del self._coalesced[coalescing_key]
        waiting = list(led.waiting)
        for key in waiting:
            del self._waiting[key]
        return waiting

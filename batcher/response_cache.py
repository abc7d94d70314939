"""Which answers are kept, and who waits for one that is being made: least recently used, within a number of bytes.

Rules: of equal requests on their way one is executed, the leader, and the others wait for what becomes of it; but not
those of another priority or timeout, nor whose deadline is before the leader's, which may still be queued then. What is
evicted counts until its memory is free again, since a client may still read it. Pure: knows no clock, no record and no
memory; an answer is a word that names its block and another that says where its header is. Lives in the batcher.
"""

from collections import OrderedDict
from typing import NamedTuple


class Identity(NamedTuple):
    """What makes requests equal: the model version as it was loaded, and the digest that its front end made."""

    model_id: int
    digest_low: int
    digest_high: int


class Stored(NamedTuple):
    """An answer that is kept."""

    ref: int
    header: int
    nbytes: int


class Flight(NamedTuple):
    """What requests must have in common to wait for each other."""

    identity: Identity
    priority: int
    timeout_us: int


class _Led(NamedTuple):
    """A flight on its way: its leader's deadline (0 = none), and who waits for it, in their order."""

    deadline_ns: int
    waiting: dict[int, None]


class ResponseCache:
    """`begin` and `end` of what is executed; `find`, `store` and `evict` of what has been."""

    __slots__ = ("_flights", "_leaders", "_lingering", "_max_nbytes", "_stored", "_waiting", "nbytes")

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        # Changed by store, evict, drop and freed: the oldest first; by block, the bytes of those evicted and not free.
        self._stored: OrderedDict[Identity, Stored] = OrderedDict()
        self._lingering: dict[int, int] = {}
        #: Of both together.
        self.nbytes = 0
        # Changed by begin, end, cancel and drain: who leads what, who waits for what, and in which order.
        self._leaders: dict[int, Flight] = {}
        self._waiting: dict[int, Flight] = {}
        self._flights: dict[Flight, _Led] = {}

    def __len__(self) -> int:
        """Answers that can be found."""
        return len(self._stored)

    @property
    def lingering(self) -> list[int]:
        """Blocks that were evicted and are not free yet."""
        return list(self._lingering)

    # --- what has been answered ---

    def find(self, identity: Identity) -> Stored | None:
        """The answer to an equal request, the youngest from now on."""
        stored = self._stored.get(identity)
        if stored is not None:
            self._stored.move_to_end(identity)
        return stored

    def has(self, identity: Identity) -> bool:
        """Whether it would be found."""
        return identity in self._stored

    def fits(self, nbytes: int) -> bool:
        """Whether so much may be stored now."""
        return self.nbytes + nbytes <= self._max_nbytes

    def store(self, identity: Identity, stored: Stored) -> None:
        """Keep an answer that fits, to a request to which none is kept."""
        assert self.fits(stored.nbytes)
        assert identity not in self._stored
        self._stored[identity] = stored
        self.nbytes += stored.nbytes

    def evict(self) -> int:
        """Let go of the oldest answer. Returns its block, which is `freed` when nobody reads it; 0 where there is
        none."""
        return self._let_go(next(iter(self._stored))) if self._stored else 0

    def freed(self, ref: int) -> None:
        """The block of an answer that was let go of is free again."""
        self.nbytes -= self._lingering.pop(ref)

    def drop(self, model_id: int) -> list[int]:
        """A model version is gone, and its answers with it: their blocks, as of `evict`."""
        return [self._let_go(identity) for identity in list(self._stored) if identity.model_id == model_id]

    def _let_go(self, identity: Identity) -> int:
        ref, _, nbytes = self._stored.pop(identity)
        self._lingering[ref] = nbytes
        return ref

    # --- what is being answered ---

    def begin(self, flight: Flight, key: int, deadline_ns: int) -> bool:
        """Whether this request must be executed, as the leader or by itself; else it waits for the leader."""
        led = self._flights.get(flight)
        if led is None:
            self._leaders[key], self._flights[flight] = flight, _Led(deadline_ns, {})
            return True
        if deadline_ns and not 0 < led.deadline_ns <= deadline_ns:
            return True
        led.waiting[key] = None
        self._waiting[key] = flight
        return False

    def end(self, key: int) -> tuple[Flight, list[int]] | None:
        """A leader has ended; who has waited for it, in their order. None where it led nothing."""
        flight = self._leaders.pop(key, None)
        return None if flight is None else (flight, self._disband(flight))

    def cancel(self, key: int) -> bool:
        """Whether the request waited for another; it does no more."""
        flight = self._waiting.pop(key, None)
        if flight is None:
            return False
        del self._flights[flight].waiting[key]
        return True

    def drain(self, model_id: int) -> list[int]:
        """Nothing more is answered together, of a model version: all who have waited."""
        leaders = [key for key, flight in self._leaders.items() if flight.identity.model_id == model_id]
        return [waiting for key in leaders for waiting in self._disband(self._leaders.pop(key))]

    def _disband(self, flight: Flight) -> list[int]:
        waiting = list(self._flights.pop(flight).waiting)
        for key in waiting:
            del self._waiting[key]
        return waiting

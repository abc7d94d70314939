"""Schedules for the response cache, beside one that is slow and plain."""

from collections.abc import Iterable, Sequence

from shoal.batcher.response_cache import CacheEntry, CoalescingKey, RequestIdentity, ResponseCache
from tests.batcher.scheduling.many_seeds import Step, Steps, Told

MAX_NBYTES = 7
#: What can happen, each as often as it should come, with two numbers.
KINDS = (*["ask"] * 7, "succeed", "succeed", "fail", "cancel", "cancel", "cancel", "freed", "drop")
STEPS = Steps(KINDS, dict.fromkeys(KINDS, (range(12), range(12))))
_IDENTITIES = [RequestIdentity(number % 2, number, 0) for number in range(4)]
#: Of numbers, so that many are equal.
_IDENTITY_OF = (0, 0, 0, 1, 2, 3) * 2
_FLIGHTS = [[CoalescingKey(identity, priority, 0) for priority in range(2)] for identity in _IDENTITIES]


class Schedule:
    """One cache and its requests, checked after each step; `told` counts what has come to pass."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self._cache = ResponseCache(MAX_NBYTES)
        # The plain one: answers by age with their blocks and sizes; blocks that are still read; leaders and who waits;
        # who is executed beside a leader.
        self._kept: dict[RequestIdentity, tuple[int, int]] = {}
        self._read: dict[int, int] = {}
        self._nbytes = 0  # of both
        self._flights: dict[CoalescingKey, list[int]] = {}
        self._alone: dict[int, CoalescingKey] = {}
        self._deadlines: dict[int, int] = {}
        self._num_requests = self._num_blocks = 0
        self._ended: set[int] = set()

    def run(self, steps: Iterable[Step]) -> None:
        """All steps; then everything ends."""
        for kind, (one, other) in steps:
            getattr(self, kind)(one, other)
            self._check()
        while self._flights:
            self.fail(0, 0)
        while self._alone:
            self._overtake(0)
        assert len(self._ended) == self._num_requests, "each request ends, and ends once"

    def ask(self, number: int, wishes: int) -> None:
        """A request like some of the others."""
        identity = _IDENTITIES[_IDENTITY_OF[number]]
        found = self._cache.find(identity)
        self._num_requests = key = self._num_requests + 1
        expected = self._kept.pop(identity, None)
        if expected is not None:
            assert found is not None
            assert found.ref == expected[0]
            self._kept[identity] = expected
            self._end(key, "hit")
            return
        assert found is None
        self._deadlines[key] = (0, 0, 0, 10, 20, 30)[wishes % 6]
        self._begin(_FLIGHTS[_IDENTITY_OF[number]][wishes // 9], key)

    def _begin(self, flight: CoalescingKey, key: int) -> None:
        mine, led = self._deadlines[key], self._flights.get(flight)
        its = 0 if led is None else self._deadlines[led[0]]
        must_execute = self._cache.begin(flight, key, mine)
        if led is None:
            assert must_execute
            self._flights[flight] = [key]
            self.told["led"] += 1
        elif mine and (its == 0 or its > mine):  # it may be over before the leader leaves its queue
            assert must_execute
            self._alone[key] = flight
        else:
            assert not must_execute
            led.append(key)
            self.told["waited"] += 1

    def succeed(self, number: int, nbytes: int) -> None:
        """A leader is answered, and with it who has waited; the answer is kept, if there is or can be room."""
        flight, nbytes = self._pick(number), nbytes % 8
        if flight is None:
            return
        leader, *waiting = self._flights.pop(flight)
        assert self._cache.end(leader) == (flight, waiting)
        for key in (leader, *waiting):
            self._end(key, "answered")
        identity = flight.identity
        if self._cache.has(identity) or not nbytes:
            return
        while not self._cache.fits(nbytes):
            ref = self._cache.evict()
            if not ref:
                assert not self._kept
                return
            expected, size = self._kept.pop(next(iter(self._kept)))
            assert ref == expected, "the one that was used longest ago"
            self._read[ref] = size
            self.told["evicted"] += 1
            if ref % 3:  # of some a client still reads
                self._free(ref)
        self._num_blocks += 1
        self._cache.store(identity, CacheEntry(self._num_blocks, 0, nbytes))
        self._kept[identity] = self._num_blocks, nbytes
        self._nbytes += nbytes

    def fail(self, number: int, _: int) -> None:
        """A leader fails, and the next one leads."""
        flight = self._pick(number)
        if flight is None:
            return
        leader, *waiting = self._flights.pop(flight)
        assert self._cache.end(leader) == (flight, waiting)
        assert self._cache.end(leader) is None
        self._end(leader, "failed")
        for key in waiting:
            self._begin(flight, key)

    def _overtake(self, number: int) -> None:
        """A request that is executed beside a leader ends, before that leader or after it; nobody has waited for it."""
        if not self._alone:
            return
        key = list(self._alone)[number % len(self._alone)]
        assert self._cache.end(key) == (self._alone.pop(key), [])
        assert self._cache.end(key) is None
        self._end(key, "alone")

    def cancel(self, number: int, _: int) -> None:
        """A request is not wanted any more: only one that waits for another hears of it here."""
        key = self._num_requests - number // 4
        flight = next((flight for flight, keys in self._flights.items() if key in keys[1:]), None)
        assert self._cache.cancel(key) is (flight is not None)
        if flight is not None:
            self._flights[flight].remove(key)
            self._end(key, "cancelled")

    def freed(self, number: int, _: int) -> None:
        """A client has read what was evicted; and who is executed beside a leader, if anyone, is answered."""
        self._overtake(number)
        if self._read:
            self._free(list(self._read)[number % len(self._read)])

    def drop(self, number: int, _: int) -> None:
        """A model version is gone."""
        model_id = number % 2
        mine = [flight for flight in self._flights if flight.identity.model_id == model_id]
        waiting = [key for flight in mine for key in self._flights[flight][1:]]
        assert sorted(self._cache.drain(model_id)) == sorted(waiting)
        executed = [self._flights.pop(flight)[0] for flight in mine]
        executed += [key for key, flight in self._alone.items() if flight.identity.model_id == model_id]
        assert [self._cache.end(key) for key in executed] == [None] * len(executed)
        for key in (*executed, *waiting):
            self._alone.pop(key, None)
            self._end(key, "drained")
        gone = [identity for identity in self._kept if identity.model_id == model_id]
        assert sorted(self._cache.drop(model_id)) == sorted([self._kept[identity][0] for identity in gone])
        self._read.update([self._kept.pop(identity) for identity in gone])

    def _pick(self, number: int) -> CoalescingKey | None:
        return list(self._flights)[number % len(self._flights)] if self._flights else None

    def _free(self, ref: int) -> None:
        self._nbytes -= self._read.pop(ref)
        self._cache.freed(ref)

    def _end(self, key: int, how: str) -> None:
        assert 0 < key <= self._num_requests
        assert key not in self._ended
        self._ended.add(key)
        self.told[how] += 1

    def _check(self) -> None:
        cache = self._cache
        assert cache.nbytes == self._nbytes <= MAX_NBYTES
        assert len(cache) == len(self._kept)
        assert cache.evicted_refs == list(self._read)


def run_any(numbers: Sequence[int], told: Told) -> None:
    """The schedule that the numbers mean."""
    Schedule(told).run(STEPS.of(numbers))

"""The response cache's policy: least recently used, a number of bytes, one execution for equal requests."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.response_cache import CacheEntry, CoalescingKey, RequestIdentity, ResponseCache
from tests.batcher.cache_schedules import run_any
from tests.batcher.scheduling.many_seeds import FIRST, Told, numbers_of, run_seeds

#: Of the seeded schedules, as many as take a second; the module can be asked for more.
NUM_SEEDED = 4000


def test_seeded_schedules_keep_the_promises_and_everything_comes_to_pass() -> None:
    told = run_seeds(run_any, range(FIRST, FIRST + NUM_SEEDED))
    for what in ("hit", "led", "waited", "answered", "failed", "cancelled", "drained", "evicted", "alone"):
        assert told[what] > NUM_SEEDED // 20, what


@settings(max_examples=100, database=None)
@given(st.binary(min_size=2, max_size=62))
def test_any_schedule(some_bytes: bytes) -> None:
    run_any(numbers_of(some_bytes), Told())


def test_requests_of_another_urgency_do_not_wait() -> None:
    cache, identity = ResponseCache(10), RequestIdentity(1, 2, 3)
    assert cache.begin(CoalescingKey(identity, 1, 0), 1, 0)
    assert cache.begin(CoalescingKey(identity, 2, 0), 2, 500)
    assert cache.begin(CoalescingKey(identity, 1, 5), 3, 0)
    assert not cache.begin(CoalescingKey(identity, 2, 0), 4, 0)
    assert not cache.begin(CoalescingKey(identity, 2, 0), 5, 500)


def test_who_has_less_time_than_the_leader_does_not_wait_for_it() -> None:
    cache, flight = ResponseCache(10), CoalescingKey(RequestIdentity(1, 2, 3), 0, 0)
    assert cache.begin(flight, 1, 0)
    assert cache.begin(flight, 2, 500)
    assert not cache.begin(flight, 3, 0)
    assert cache.end(2) == (flight, []), "it leads nobody"
    assert cache.end(1) == (flight, [3])
    assert cache.end(2) is None


def test_what_is_still_read_counts() -> None:
    cache = ResponseCache(10)
    cache.store(RequestIdentity(1, 2, 3), CacheEntry(77, 5, 6))
    assert cache.evict() == 77
    assert (cache.fits(5), cache.evict()) == (False, 0)
    cache.freed(77)
    assert cache.fits(10)

"""Limits of API keys: generated arrivals against the rate's definition, and requests in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api_keys import ApiKey, KeyLimits
from shoal.frontend.access.key_limits import KeyLimitError, KeyUses

S = 1_000_000_000


def a_key(**limits: int) -> ApiKey:
    return ApiKey("shop", b"", ("infer",), ("*",), KeyLimits(**limits))


def admitted(key: ApiKey, times_ns: list[int]) -> list[int]:
    uses, found = KeyUses(), []
    for now_ns in times_ns:
        try:
            uses.begin(key, now_ns)
        except KeyLimitError:
            continue
        uses.end(key)
        found.append(now_ns)
    return found


@given(st.integers(1, 50), st.integers(1, 20), st.lists(st.integers(0, 2 * S), max_size=200))
def test_no_window_has_more_than_the_burst_and_the_rate_allow(rate: int, burst: int, gaps_ns: list[int]) -> None:
    now_ns, times_ns = 5, []
    for gap_ns in gaps_ns:
        now_ns += gap_ns // 20
        times_ns.append(now_ns)
    found = admitted(a_key(requests_per_second=rate, burst=burst), times_ns)
    for start in range(len(found)):
        for end in range(start, len(found)):
            assert end - start + 1 <= burst + (found[end] - found[start]) * rate / S + 1e-6


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 200))
def test_requests_at_the_rate_are_never_refused(rate: int, burst: int, count: int) -> None:
    times_ns = [7 + number * (S // rate + 1) for number in range(count)]
    assert admitted(a_key(requests_per_second=rate, burst=burst), times_ns) == times_ns


def test_a_refusal_says_when_to_come_again_and_that_is_so() -> None:
    key, uses = a_key(requests_per_second=1, burst=3), KeyUses()
    for _ in range(3):
        uses.begin(key, 100)
    with pytest.raises(KeyLimitError, match="may begin 1 requests in a second, 3 at once") as refused:
        uses.begin(key, 100)
    assert (refused.value.http_status, refused.value.grpc_status, refused.value.retry_after_s) == (429, 8, 1)
    uses.begin(key, 100 + refused.value.retry_after_s * S)
    assert (uses.uses["shop"].num_admitted, uses.uses["shop"].num_refused) == (4, 1)


def test_requests_in_flight_are_bounded_and_a_refused_one_is_not_in_flight() -> None:
    key, uses = a_key(max_in_flight=2), KeyUses()
    uses.begin(key, 1)
    uses.begin(key, 1)
    for _ in range(3):
        with pytest.raises(KeyLimitError, match="has 2 requests in flight"):
            uses.begin(key, 1)
    uses.end(key)
    uses.begin(key, 1)


def test_a_key_that_is_gone_is_forgotten_once_nothing_of_it_is_in_flight() -> None:
    key, uses = a_key(max_in_flight=2), KeyUses()
    uses.begin(key, 1)
    uses.forget(set())
    assert "shop" in uses.uses
    uses.end(key)
    uses.forget(set())
    assert not uses.uses

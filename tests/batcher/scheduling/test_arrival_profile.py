"""arrival_profile.py: what is learned of when requests come."""

import pytest

from shoal.batcher.scheduling.arrival_profile import ArrivalProfile, ArrivalRate

MS = 1_000_000


def bursts(num_bursts: int, rows: int) -> ArrivalProfile:
    """Every 100 ms something happens, and 1 ms later so many rows come."""
    profile = ArrivalProfile()
    for number in range(num_bursts):
        profile.begin(number * 100 * MS)
        profile.add(rows, number * 100 * MS + MS)
    return profile


def test_what_came_each_time_is_expected() -> None:
    profile = bursts(50, 9)
    profile.begin(5000 * MS)
    *_, (until_ns, rows, moments) = profile.expected(5000 * MS, 10 * MS)
    assert until_ns == 10 * MS
    assert rows == pytest.approx(9, rel=0.1)
    assert 0.5 * MS < moments / rows < 1.1 * MS


def test_what_has_not_come_in_time_is_expected_no_more() -> None:
    profile = bursts(50, 9)
    profile.begin(5000 * MS)
    *_, (_, rows, _) = profile.expected(5003 * MS, 10 * MS)
    assert rows == 0


def test_what_has_changed_is_soon_known() -> None:
    profile = bursts(200, 9)
    for number in range(200, 300):
        profile.begin(number * 100 * MS)
    *_, (_, rows, _) = profile.expected(300 * 100 * MS, 100 * MS)
    assert rows < 0.1


def test_of_what_never_happened_nothing_is_expected() -> None:
    assert all(rows == 0 for _, rows, _ in ArrivalProfile().expected(5, MS))


def test_numbers_stay_numbers() -> None:
    profile = bursts(20_000, 3)  # 1.0625 ** 20,000 is no float any more
    profile.begin(10**13)
    *_, (_, rows, _) = profile.expected(10**13, 10 * MS)
    assert rows == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("begin_s", [0, 100_000])
def test_the_rate_is_known_within_a_second_however_long_nothing_came(begin_s: int) -> None:
    rate = ArrivalRate()
    for number in range(1000):
        rate.add(1, begin_s * 1000 * MS + number * MS)
    assert rate.per_ns * MS == pytest.approx(1, rel=0.2)


def test_the_rate_follows_the_last_half_second() -> None:
    rate = ArrivalRate()
    for number in range(10_000):
        rate.add(2, number * MS)
    assert rate.per_ns * MS == pytest.approx(2, rel=0.05)
    for number in range(3_000):
        rate.add(1, 10_000 * MS + number * 10 * MS)
    assert rate.per_ns * MS == pytest.approx(0.1, rel=0.2)

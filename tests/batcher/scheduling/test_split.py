"""Which version a request goes to, and what is counted of it."""

from random import Random

import pytest

from shoal.batcher.scheduling.split import WHOLE, VersionFigures, is_chosen
from shoal.latency_buckets import bucket


@pytest.mark.parametrize("share", [1, 100, 1_000, 3_333, 5_000, 9_999])
def test_of_consecutive_requests_almost_exactly_the_share_is_chosen(share: int) -> None:
    first = 77 << 40 | 5
    for count in (1, 10, 100, 1_000, 20_000):
        chosen = sum(is_chosen(first + number, share) for number in range(count))
        assert abs(chosen - count * share / WHOLE) <= 3, count


@pytest.mark.parametrize("seed", range(5))
def test_a_share_that_grows_takes_no_sticky_key_back(seed: int) -> None:
    rng = Random(seed)
    for _ in range(2_000):
        key = rng.getrandbits(rng.choice((8, 32, 64)))
        chosen = [is_chosen(key, share) for share in (0, 1, 100, 1_000, 5_000, 9_999, WHOLE)]
        assert chosen == sorted(chosen)
        assert (chosen[0], chosen[-1]) == (False, True)


def test_sticky_keys_at_random_are_divided_by_the_share() -> None:
    rng = Random(1)
    chosen = sum(is_chosen(rng.getrandbits(32), 1_000) for _ in range(20_000))
    assert 1_800 < chosen < 2_200  # 2 000 ± 4.7 sigma


def test_figures_are_packed_with_their_latencies() -> None:
    figures = VersionFigures()
    figures.answered(1_000)
    figures.answered(1_001)
    figures.answered(5_000_000)
    figures.failed()
    assert figures.packed() == [4, 1, bucket(1_000), 2, bucket(5_000_000), 1]

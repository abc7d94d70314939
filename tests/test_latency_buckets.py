"""Latencies by bucket."""

from random import Random

from shoal.latency_buckets import bucket, bucket_ns


def test_a_bucket_is_3_percent_wide_and_holds_its_latencies() -> None:
    rng = Random(2)
    for latency_ns in [
        64,
        65,
        1_000,
        10**9,
        1 << 62,
        *[rng.getrandbits(rng.randint(7, 50)) + 64 for _ in range(2_000)],
    ]:
        least_ns, next_ns = bucket_ns(bucket(latency_ns)), bucket_ns(bucket(latency_ns) + 1)
        assert least_ns <= latency_ns < next_ns
        assert next_ns - least_ns <= least_ns / 32
    assert bucket(0) == bucket(1) == bucket(64)

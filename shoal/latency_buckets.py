"""Latencies by bucket: 32 buckets per power of two, so that the bounds of one are 3 % apart (ours). Pure."""

from typing import Final

_BUCKET_BITS: Final = 5
_LEAST_BITS: Final = _BUCKET_BITS + 1
_MASK: Final = (1 << _BUCKET_BITS) - 1


def bucket(latency_ns: int) -> int:
    """The number of the bucket that a latency is counted in; latencies below 64 ns are all in the first one."""
    latency_ns = max(latency_ns, 1 << _LEAST_BITS)
    shift = latency_ns.bit_length() - _LEAST_BITS
    return shift << _BUCKET_BITS | latency_ns >> shift & _MASK


def bucket_ns(number: int) -> int:
    """The least latency that is counted in a bucket, in ns."""
    return (1 << _BUCKET_BITS | number & _MASK) << (number >> _BUCKET_BITS)

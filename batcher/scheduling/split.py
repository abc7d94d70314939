"""The split of a model's requests that name no version: a share of them goes to the canary version, the rest to the
stable one. Pure policy, runs in the batcher.

Requests with an equal sticky key go to one version for as long as the share does not change, and a growing share keeps
the keys that it has: a key that goes to the canary at 1 % goes there at 10 %, too.
"""

from collections import Counter
from typing import Final

from shoal.latency_buckets import bucket

#: The whole, in the unit of shares: hundredths of a percent.
WHOLE: Final = 10_000
#: 2^64 divided by the golden ratio.
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MAX_UINT64: Final = (1 << 64) - 1


def spread(number: int) -> int:
    """Hash a number to 64 bits. The hashes of consecutive numbers are spread evenly: of any few of them, almost exactly
    the fraction p lies below p * 2^64 (Knuth, The Art of Computer Programming, 6.4)."""
    return number * _GOLDEN & _MAX_UINT64


def is_chosen(sticky: int, share: int) -> bool:
    """Whether requests with this sticky key of 64 bits go to the canary; `share` is in hundredths of a percent."""
    return spread(sticky) * WHOLE >> 64 < share


class VersionFigures:
    """The figures of one version of a split since the present step of the rollout began."""

    __slots__ = ("latencies", "num_errors", "num_requests")

    def __init__(self) -> None:
        # Changed by `answered` and `failed`.
        self.num_requests = 0  # ended requests
        #: Requests that the version failed; for a canary whose failed requests the stable version executes, only those
        #: that the stable version then answered.
        self.num_errors = 0
        #: Answered requests by the bucket of the time from their acceptance to the answer.
        self.latencies = Counter[int]()

    def answered(self, latency_ns: int) -> None:
        """Count a request that the version answered, `latency_ns` after its acceptance."""
        self.num_requests += 1
        self.latencies[bucket(latency_ns)] += 1

    def failed(self) -> None:
        """Count a request that the version failed."""
        self.num_requests += 1
        self.num_errors += 1

    def packed(self) -> list[int]:
        """The figures for a message: requests, errors, then bucket and count of each latency."""
        flat = [self.num_requests, self.num_errors]
        for number, count in sorted(self.latencies.items()):
            flat += (number, count)
        return flat

"""A window of a measurement: the latencies and errors of the requests that ended in it. Pure."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Window:
    """The requests that ended within a time; filled by the load while it runs."""

    duration_ns: int = 0
    latencies_ns: "array[int]" = field(default_factory=lambda: array("Q"))  # of requests that succeeded
    errors: Counter[str] = field(default_factory=Counter)  # an error's sentence → how many requests got it
    idle_ns: int = 0  # the time in which the client waited for answers, or until the next request was due
    cpu_ns: int = 0  # the client's CPU time

    @property
    def requests_per_s(self) -> float:
        """Successful requests a second."""
        return len(self.latencies_ns) / max(self.duration_ns, 1) * 1e9

    @property
    def num_errors(self) -> int:
        """The number of requests that failed."""
        return sum(self.errors.values())

    @property
    def busy_share(self) -> float:
        """The share of the time in which the client did not wait: near 1, the client is the bottleneck."""
        return 1 - self.idle_ns / max(self.duration_ns, 1)

    def percentile_ms(self, percent: float) -> float | None:
        """The latency in ms that `percent` of the successful requests do not exceed; None where none succeeded."""
        return percentile_ms(sorted(self.latencies_ns), percent)


def merged(windows: Sequence[Window]) -> Window:
    """One window with the requests and times of several."""
    whole = Window()
    for each in windows:
        whole.duration_ns += each.duration_ns
        whole.latencies_ns.extend(each.latencies_ns)
        whole.errors.update(each.errors)
        whole.idle_ns += each.idle_ns
        whole.cpu_ns += each.cpu_ns
    return whole


def percentile_ms(ordered_ns: Sequence[int], percent: float) -> float | None:
    """The nearest-rank percentile of ascending times in ns, in ms; None if there are none."""
    if not ordered_ns:
        return None
    rank = max(1, math.ceil(percent / 100 * len(ordered_ns)))
    return ordered_ns[rank - 1] / 1e6

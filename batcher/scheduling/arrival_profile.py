"""How many rows arrive within a given time after a recurring event, such as the end of a batch: learned from past
occurrences of the event.

A rate would suffice for arrivals that are independent of the server. But clients that wait for an answer before they
send the next request send in a burst after each batch. So arrivals are counted by the time since the event, in spans
each twice as long as the one before, and older occurrences of the event count less. Pure.
"""

from collections.abc import Iterator

#: The first span: 2^14 ns = 16 us, less than it takes to wake a process.
_SHIFT = 14
#: Number of spans: the last one ends after eight seconds.
_NUM_SPANS = 20
#: How much more an occurrence counts than the one before (ours): the last sixteen occurrences have 62 % of the weight.
_GROWTH = 1 + 1 / 16
#: Weights are scaled down beyond this, long before a float would be infinite.
_MAX_WEIGHT = 1e100
#: The time in ns over which a rate is learned (ours).
RATE_NS = 500_000_000


class ArrivalProfile:
    """Arrivals after an event: `begin` at each occurrence, `add` the rows that arrive until the next one; `expected`
    predicts."""

    __slots__ = ("_rows", "_total", "_weight", "begun_ns")

    def __init__(self) -> None:
        # Changed by begin and add. By span: rows that came in it, each with the weight of its occurrence.
        self._rows = [0.0] * _NUM_SPANS
        self._weight = 1.0
        self._total = 1.0  # the profile begins as if the event had occurred once, without arrivals
        self.begun_ns = 0

    def begin(self, now_ns: int) -> None:
        """Note that the event has occurred again."""
        self.begun_ns = now_ns
        self._weight *= _GROWTH
        self._total += self._weight
        if self._weight > _MAX_WEIGHT:
            self._rows = [rows / self._weight for rows in self._rows]
            self._total /= self._weight
            self._weight = 1.0

    def add(self, rows: int, now_ns: int) -> None:
        """Count `rows` rows that arrive at `now_ns`."""
        span = ((now_ns - self.begun_ns) >> _SHIFT).bit_length()
        if span < _NUM_SPANS:
            self._rows[span] += rows * self._weight

    def expected(self, now_ns: int, horizon_ns: float) -> Iterator[tuple[float, float, float]]:
        """Predictions for several times, the last of which is the horizon. Each is the time from now (ns), the number
        of rows that arrive until then, and the sum of these rows' arrival times, counted from now (ns)."""
        elapsed = now_ns - self.begun_ns
        span = (elapsed >> _SHIFT).bit_length()
        passed_ns = rows = moments = 0.0
        while span < _NUM_SPANS and passed_ns < horizon_ns:
            end_ns = (1 << _SHIFT + span) - elapsed
            begin_ns = (1 << _SHIFT + span - 1) - elapsed if span else -elapsed
            until_ns = min(end_ns, horizon_ns)
            in_span = self._rows[span] / self._total * (until_ns - passed_ns) / (end_ns - begin_ns)
            rows += in_span
            moments += in_span * (passed_ns + until_ns) / 2
            passed_ns = until_ns
            yield passed_ns, rows, moments
            span += 1


class ArrivalRate:
    """Arriving rows per ns, over about the last half second, and at least the last 64 arrivals."""

    __slots__ = ("_num_arrivals", "_rows", "_since_ns", "per_ns")

    def __init__(self) -> None:
        # Changed by add alone: arrivals since the rate was last computed; rows since `_since_ns`; the rate.
        self._num_arrivals = 0
        self._rows = 0.0
        self._since_ns = 0
        self.per_ns = 0.0

    def add(self, rows: int, now_ns: int) -> None:
        """Count `rows` rows that arrive at `now_ns`."""
        self._rows += rows
        self._num_arrivals += 1
        if self._num_arrivals >= 64:
            passed_ns = now_ns - self._since_ns
            if passed_ns > 0:
                self.per_ns = self._rows / passed_ns
            if passed_ns > RATE_NS:
                # The next span starts as if its first half had passed at the rate just computed: earlier arrivals have
                # the weight of half a span, however long the pause before this arrival was.
                self._rows = self.per_ns * (RATE_NS // 2)
                self._since_ns = now_ns - RATE_NS // 2
            self._num_arrivals = 0

"""How many rows arrive within a time after something: learned from all the times that it happened.

A rate would do for arrivals that know nothing of the server. Clients that wait for an answer before they ask again do:
they come in a burst after each batch. So arrivals are counted by how long after the event they came, in spans that
double, each occasion counting for less than the next. Pure.
"""

from collections.abc import Iterator

#: The first span: 2^14 ns = 16 us, less than it takes to wake a process.
_SHIFT = 14
#: The last one ends after eight seconds.
_NUM_SPANS = 20
#: By how much the next occasion counts for more than this one (ours): the last sixteen make up two thirds.
_GROWTH = 1 + 1 / 16
#: Before floats lose their meaning.
_MAX_WEIGHT = 1e100
#: What a rate is learned over (ours).
RATE_NS = 500_000_000


class ArrivalProfile:
    """`begin` an occasion, `add` what arrives until the next one begins; `expected` tells."""

    __slots__ = ("_rows", "_total", "_weight", "begun_ns")

    def __init__(self) -> None:
        # Changed by begin and add. By span: rows that came in it, each with the weight of its occasion.
        self._rows = [0.0] * _NUM_SPANS
        self._weight = 1.0
        self._total = 1.0  # one occasion at which nothing came
        self.begun_ns = 0

    def begin(self, now_ns: int) -> None:
        """It happens again."""
        self.begun_ns = now_ns
        self._weight *= _GROWTH
        self._total += self._weight
        if self._weight > _MAX_WEIGHT:
            self._rows = [rows / self._weight for rows in self._rows]
            self._total /= self._weight
            self._weight = 1.0

    def add(self, rows: int, now_ns: int) -> None:
        """So many rows have arrived."""
        span = ((now_ns - self.begun_ns) >> _SHIFT).bit_length()
        if span < _NUM_SPANS:
            self._rows[span] += rows * self._weight

    def expected(self, now_ns: int, horizon_ns: float) -> Iterator[tuple[float, float, float]]:
        """Up to the horizon, which comes last: a time from now, how many rows arrive until then, the sum of when."""
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
    """Rows per ns, over about the last half second, and at least the last 64 arrivals."""

    __slots__ = ("_num_arrivals", "_rows", "_since_ns", "per_ns")

    def __init__(self) -> None:
        # Changed by add alone.
        self._num_arrivals = 0
        self._rows = 0.0
        self._since_ns = 0
        self.per_ns = 0.0

    def add(self, rows: int, now_ns: int) -> None:
        """So many rows have arrived."""
        self._rows += rows
        self._num_arrivals += 1
        if self._num_arrivals >= 64:
            passed_ns = now_ns - self._since_ns
            if passed_ns > 0:
                self.per_ns = self._rows / passed_ns
            if passed_ns > RATE_NS:
                # However long there was nothing: what was before counts as half of the next span, at the last rate.
                self._rows = self.per_ns * (RATE_NS // 2)
                self._since_ns = now_ns - RATE_NS // 2
            self._num_arrivals = 0

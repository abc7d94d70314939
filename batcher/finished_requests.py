"""The slowest and the failed requests of a model's last minutes. Lives in the batcher; bounded by time and number.

Time is cut into windows of a minute. A request is kept if it is among the slowest of its window so far: for each
answered request that is one comparison, with `slow_ns`. The first failed requests of each window are kept, and further
ones are only counted: a server that refuses every request must not spend its time on keeping them. A dead batcher's
successor begins with an empty list.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappush, heapreplace, nlargest

from shoal.errors import ShoalError
from shoal.finished_request import FinishedRequest
from shoal.request import split_header, unpack_options
from shoal.shm.layout import unpack_span

#: The length of a window (ns), the number of windows that are kept, and the number of slow, and of failed, requests
#: kept in each (ours).
WINDOW_NS, NUM_WINDOWS, NUM_KEPT = 60_000_000_000, 5, 16
#: A full window takes only requests that are slower by a sixteenth than the quickest request in it (ours). While a
#: queue grows, each request is slower than all before it; without the margin, each would cost the making of a
#: FinishedRequest.
_MARGIN_BITS = 4
#: Less than any time that a request takes. A time is negative if the request's start is later than the batcher's
#: `now_ns`.
_NONE_NS = -(1 << 62)

Make = Callable[[], FinishedRequest]


class _Window:
    """The requests that ended within one minute."""

    __slots__ = ("end_ns", "failed", "num_failed", "slowest")

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self.slowest: list[tuple[int, int, FinishedRequest]] = []  # a heap of (time, number, request)
        self.failed: list[FinishedRequest] = []
        self.num_failed = 0


class FinishedRequests:
    """The slowest and the failed requests of one model."""

    __slots__ = ("_least_ns", "_num_noted", "_windows", "notes_all", "slow_ns")

    def __init__(self) -> None:
        # Changed by every method: the time (ns) that a request must exceed to be kept as slow; the windows, the last
        # one open; the number of slow requests that were noted.
        #: A request that took longer than this (ns) is to be noted; public, since it is compared for each request.
        self.slow_ns = self._least_ns = -1
        #: Whether all requests are to be noted, since they are recorded, or the version is one of a split.
        self.notes_all = False
        self._windows: deque[_Window] = deque([_Window(0)], maxlen=NUM_WINDOWS)
        self._num_noted = 0

    def turn(self, now_ns: int) -> None:
        """Begin another window if the last one is over."""
        window = self._windows[-1]
        if now_ns < window.end_ns:
            return
        if not (window.slowest or window.num_failed):
            self._windows.pop()
        self._windows.append(_Window(now_ns + WINDOW_NS))
        self._set_least(-1)

    def note_all(self, *, is_on: bool) -> None:
        """Set whether all requests are noted (`is_on`), or only slow and failed ones."""
        self.notes_all = is_on
        self._set_least(self._least_ns)

    def _set_least(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self.slow_ns = _NONE_NS if self.notes_all else least_ns

    def note_slow(self, total_ns: int, now_ns: int, make: Make) -> None:
        """Keep an answered request if it is among the slowest of its window. To be called if the request took longer
        than `slow_ns`."""
        self.turn(now_ns)
        if total_ns <= self._least_ns:
            return
        slowest = self._windows[-1].slowest
        self._num_noted = number = self._num_noted + 1  # so that the heap never compares FinishedRequests
        if len(slowest) < NUM_KEPT:
            heappush(slowest, (total_ns, number, make()))
        else:
            heapreplace(slowest, (total_ns, number, make()))
        if len(slowest) == NUM_KEPT:
            least_ns = slowest[0][0]
            self._set_least(least_ns + (least_ns >> _MARGIN_BITS))

    def note_failed(self, now_ns: int, make: Make) -> FinishedRequest | None:
        """Keep a failed request and return it; if its window has kept NUM_KEPT already, only count it and return
        None."""
        self.turn(now_ns)
        window = self._windows[-1]
        window.num_failed += 1
        if len(window.failed) >= NUM_KEPT:
            return None
        window.failed.append(failed := make())
        return failed

    def recent(self, now_ns: int) -> tuple[list[FinishedRequest], list[FinishedRequest], int]:
        """The slowest requests of the last NUM_WINDOWS minutes, the slowest first; the failed requests, the last first;
        and the number of failed requests that were only counted."""
        windows = [each for each in self._windows if now_ns < each.end_ns + (NUM_WINDOWS - 1) * WINDOW_NS]
        kept = [(request, number) for window in windows for _, number, request in window.slowest]
        slowest = sorted(kept, key=lambda each: (each[0].total_ns, each[1]), reverse=True)
        failed = [each for window in reversed(windows) for each in reversed(window.failed)]
        num_failed = sum([window.num_failed for window in windows])
        return [request for request, _ in slowest], failed, num_failed - len(failed)


def recent_of_all(
    logs: Iterable[FinishedRequests], limit: int, now_ns: int
) -> tuple[list[FinishedRequest], list[FinishedRequest], int]:
    """The recent requests of several models together, like `FinishedRequests.recent`: at most `limit` of each kind."""
    slowest, failed, num_others = list[FinishedRequest](), list[FinishedRequest](), 0
    for log in logs:
        more_slow, more_failed, num_more = log.recent(now_ns)
        slowest += more_slow
        failed += more_failed
        num_others += num_more
    shown = nlargest(limit, failed, key=lambda each: each.points.end_ns)
    num_others += len(failed) - len(shown)
    return nlargest(limit, slowest, key=lambda each: each.total_ns), shown, num_others


#: The most bytes that are read of a request's header, for its id, and of a worker's error text (ours).
_MAX_READ = 4096


def text_of(block: memoryview, span: int) -> bytes:
    """The part of a block that a span names, cut off after _MAX_READ bytes."""
    offset, nbytes = unpack_span(span)
    return bytes(block[offset : offset + min(nbytes, _MAX_READ)])


def id_of(block: memoryview | None, span: int) -> str:
    """The client's id of a request; empty if it has none, or if its header, which a guest may have written, is too long
    or damaged."""
    if block is None or unpack_span(span)[1] > _MAX_READ:
        return ""
    try:
        return unpack_options(split_header(text_of(block, span))[1]).id
    except ShoalError:
        return ""

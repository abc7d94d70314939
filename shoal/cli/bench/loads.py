"""The times at which requests are sent: a closed loop keeps a number of them open, an open loop sends at times that are
set before.

The latency of an open loop's request counts from the time at which it was due, not from when it could be sent: a server
that stands still for a second is charged with all requests that were due in it (no coordinated omission).
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat

from shoal.cli.bench.transport import Transport
from shoal.cli.bench.window import Window

#: Time between two searches for requests that have waited for their answer for more than the timeout (ours).
_SEARCH_NS = 250_000_000
#: Time by which a window is extended while too few requests have ended in it (ours).
_EXTENSION_NS = 10_000_000


def constant_gaps(rate: float) -> Iterator[int]:
    """Equal times between requests, in ns, for `rate` requests a second."""
    return repeat(max(1, round(1e9 / rate)))


def poisson_gaps(rate: float) -> Iterator[int]:
    """Exponentially distributed times between requests, in ns: arrivals of many independent clients,
    the same in each run."""
    draw = random.Random(1)
    while True:
        yield round(draw.expovariate(rate) * 1e9)


class Load:
    """Requests to one server. Those that are under way at the end of a `run` are answered in the next `run`.

    With `gaps` the loop is open: a request is due after each gap, and waits while `num_slots` requests are under way.
    Without `gaps` the loop is closed: `num_slots` requests are under way at any time.
    """

    def __init__(
        self,
        transport: Transport,
        num_slots: int,
        gaps: Iterator[int] | None,
        *,
        timeout_s: float,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._transport = transport
        self._num_slots = num_slots
        self._gaps = gaps
        self._timeout_ns = round(timeout_s * 1e9)
        self._clock = clock
        # Changed by run and drain: slot → when its request was due; free slots; due times that wait for a slot.
        self._open: dict[int, int] = {}
        self._free: list[int] = list(range(num_slots - 1, -1, -1))
        self._waiting: deque[int] = deque()
        self._next_due_ns: int | None = None
        self._search_ns = 0

    @property
    def num_waiting(self) -> int:
        """Requests that are due and wait for a free connection."""
        return len(self._waiting)

    def run(self, seconds: float, num_requests: int = 0) -> Window:
        """Load the server for `seconds`, and on until `num_requests` requests have ended; returns the window of these.

        The window ends `timeout_s` after `seconds` even if fewer have ended. Raises UnreachableError.
        """
        clock, transport, opened = self._clock, self._transport, self._open
        is_open_loop = self._gaps is not None
        if not opened:  # drop connections that the server has closed while another server had its turn
            list(transport.wait(0, is_exact=is_open_loop))
        window = Window()
        start_ns = clock()
        end_ns = start_ns + round(seconds * 1e9)
        last_ns = end_ns + self._timeout_ns
        idle_ns, cpu_ns = transport.idle_ns, time.process_time_ns()
        self._search_ns = start_ns + _SEARCH_NS
        if self._gaps is not None and self._next_due_ns is None:
            self._next_due_ns = start_ns + next(self._gaps)
        now_ns = start_ns
        ended: list[int] = []
        while now_ns < end_ns:
            if self._free or is_open_loop:
                self._send_due(now_ns)
            until_ns = end_ns if self._next_due_ns is None else min(end_ns, self._next_due_ns)
            wait_s = max(0, min(until_ns, self._search_ns) - clock()) / 1e9
            for slot, error in transport.wait(wait_s, is_exact=is_open_loop):
                begun_ns = opened.pop(slot)
                if error is None:
                    window.latencies_ns.append(transport.arrived_ns - begun_ns)
                else:
                    window.errors[error] += 1
                ended.append(slot)
            # After the loop, so that the time of sending the next requests is part of no answer's latency.
            for slot in ended:
                self._reuse(slot)
            ended.clear()
            now_ns = clock()
            if now_ns >= self._search_ns:
                self._give_up_late(now_ns, window)
            if now_ns >= end_ns and len(window.latencies_ns) + window.num_errors < num_requests:
                end_ns = min(now_ns + _EXTENSION_NS, last_ns)
        window.duration_ns = now_ns - start_ns
        window.idle_ns = transport.idle_ns - idle_ns
        window.cpu_ns = time.process_time_ns() - cpu_ns
        return window

    def drain(self) -> None:
        """Wait for the answers to all open requests without counting them, and drop the requests that are due, since
        another server has its turn."""
        self._waiting.clear()
        self._next_due_ns = None
        end_ns = self._clock() + self._timeout_ns
        while self._open and (left_ns := end_ns - self._clock()) > 0:
            for slot, _ in self._transport.wait(min(left_ns, _SEARCH_NS) / 1e9):
                del self._open[slot]
                self._free.append(slot)
        for slot in self._open:
            self._transport.abandon(slot)
            self._free.append(slot)
        self._open.clear()

    def _send_due(self, now_ns: int) -> None:
        """Send the requests that are due: in a closed loop one in each free slot."""
        if self._gaps is None:
            while self._free:
                self._send(self._free.pop(), self._clock())
            return
        while self._next_due_ns is not None and self._next_due_ns <= now_ns:
            if self._free:
                self._send(self._free.pop(), self._next_due_ns)
            else:
                self._waiting.append(self._next_due_ns)
            self._next_due_ns += next(self._gaps)

    def _reuse(self, slot: int) -> None:
        if self._gaps is None:
            self._send(slot, self._clock())
        elif self._waiting:
            self._send(slot, self._waiting.popleft())
        else:
            self._free.append(slot)

    def _send(self, slot: int, due_ns: int) -> None:
        self._open[slot] = due_ns
        self._transport.send(slot)

    def _give_up_late(self, now_ns: int, window: Window) -> None:
        self._search_ns = now_ns + _SEARCH_NS
        late = [slot for slot, due_ns in self._open.items() if now_ns - due_ns > self._timeout_ns]
        for slot in late:
            del self._open[slot]
            self._transport.abandon(slot)
            window.errors[f"no answer within {self._timeout_ns / 1e9:g} s"] += 1
            self._reuse(slot)

"""Spinning: a process polls its doorbell for a short time before it sleeps.

A process that slept needs 5 to 8 µs to wake, and then finds the core's caches filled by other processes. With one
connection the three processes of a request sleep five times; if batcher and worker spin instead, the request's p50
falls from 125 to 90 µs (docs/performance.md). A process must not spin on a core that another program wants, so:

- a process spins only while its waits are short: the longest spin doubles with each short wait and ends with a long
  one, as in KVM's halt polling (https://docs.kernel.org/virt/kvm/halt-polling.html);
- between two polls it yields its core; a yield that takes long has given the core to another program, and the process
  does not spin for a multiple of that time. So such yields cost requests at most one part in PAUSE of the time.

Runs in the batcher and in workers; lanes sleep, since a third spinning process took more than it gave (two cores).
"""

import os
import select
import time
from collections.abc import Callable
from typing import Final

#: The longest spin after the first short wait, in ns (ours).
FIRST_NS: Final = 12_500
#: A wait is short if a spin of the greatest length would have seen its event: if the wait was no longer than that spin
#: or, before spins have that length, at most this many times as long, since processes that sleep take longer to answer
#: each other.
SHORT_ASLEEP: Final = 2
#: A yield that took longer than this, in ns, has given the core to another program: a process of
#: Shoal's gives it back after 10 to 50 µs.
LONG_YIELD_NS: Final = 200_000
#: The time without spins after a long yield, in multiples of the yield's length; each further long yield doubles it, up
#: to MOST_PAUSE, unless ENOUGH spins before that yield have ended with an event (ours).
PAUSE, MOST_PAUSE, ENOUGH = 100, 3200, 1000


class SpinPolicy:
    """When to spin, and how long. Pure: the time comes in as an argument, in monotonic ns."""

    __slots__ = ("_longest_ns", "_met", "_pause", "_resumes_ns", "_spin_ns")

    def __init__(self, longest_ns: int) -> None:
        self._longest_ns = longest_ns
        # Changed by note_wait, note_met and note_long_yield: all fields below.
        self._spin_ns = 0
        self._resumes_ns = 0
        self._pause = PAUSE
        self._met = 0  # spins that ended with an event, since the last long yield

    def spin_ns(self, now_ns: int) -> int:
        """How long (ns) the wait that begins now may spin; 0: the process is to sleep at once."""
        return self._spin_ns if now_ns >= self._resumes_ns else 0

    def note_wait(self, waited_ns: int) -> None:
        """Note that a wait has ended after `waited_ns`, in which the process slept, or spun and then slept."""
        longest_ns = self._longest_ns
        if waited_ns <= (longest_ns if self._spin_ns == longest_ns else SHORT_ASLEEP * longest_ns):
            self._spin_ns = min(max(2 * self._spin_ns, FIRST_NS), longest_ns)
        else:
            self._spin_ns = 0

    def note_met(self) -> None:
        """Note that a spin has ended with an event."""
        self._met += 1
        self._spin_ns = min(2 * self._spin_ns, self._longest_ns)

    def note_long_yield(self, lost_ns: int, now_ns: int) -> None:
        """Note that another program has had the core for `lost_ns`: there is no spin for a multiple of that time."""
        self._pause = PAUSE if self._met >= ENOUGH else min(2 * self._pause, MOST_PAUSE)
        self._met = self._spin_ns = 0
        self._resumes_ns = now_ns + self._pause * lost_ns


class SpinningPoller:
    """One thread's waits on an epoll instance, which is not closed here."""

    __slots__ = ("_clock_ns", "_policy", "_poll", "_yield_core")

    def __init__(
        self,
        poller: select.epoll,
        longest_ns: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        yield_core: Callable[[], object] = os.sched_yield,
    ) -> None:
        """`longest_ns` is the longest spin before a sleep, greater than 0."""
        self._poll = poller.poll
        self._policy = SpinPolicy(longest_ns)
        self._clock_ns = clock_ns
        self._yield_core = yield_core

    def poll(self, timeout_s: float | None, max_events: int) -> list[tuple[int, int]]:
        """The events of `epoll.poll`, after a spin and, if there are none yet, a sleep of at most `timeout_s` (None: no
        limit)."""
        clock_ns, policy = self._clock_ns, self._policy
        begin_ns = now_ns = clock_ns()
        if spin_ns := policy.spin_ns(begin_ns):
            end_ns = begin_ns + spin_ns
            while now_ns < end_ns:
                if events := self._poll(0, max_events):
                    policy.note_met()
                    return events
                self._yield_core()
                before_ns, now_ns = now_ns, clock_ns()
                if now_ns - before_ns > LONG_YIELD_NS:
                    policy.note_long_yield(now_ns - before_ns, now_ns)
                    return self._poll(timeout_s, max_events)
        events = self._poll(timeout_s, max_events)
        policy.note_wait(clock_ns() - begin_ns)
        return events

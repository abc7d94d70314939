"""How long a model's clients wait for an answer, learned from those that hang up while their requests are queued.

First come, first served answers everybody as long as everybody waits. Once clients give up sooner than the queue takes,
the request at its front is about to be given up, too: the model computes answers for clients that have gone. So if
many requests are given up, later ones get a deadline, a little shorter than most of those clients have waited, and are
refused at once if they would miss it (deadlines.py). Rules: a queue that its clients wait for is left alone, whatever
its length; the limit ends by itself, since it is raised for as long as no client gives up.

Pure policy, runs in the batcher: the time is handed in.
"""

from collections import deque
from typing import NamedTuple

#: Samples that are needed before there is a limit, and of how many the limit is made; a sample is taken at most every
#: SAMPLE_NS (ours: a client that drops many requests at once is one sample, and eight take 0.14 s at least).
LEAST, WINDOW, SAMPLE_NS = 8, 16, 20_000_000
#: After so long (ns) without a sample those before are forgotten (ours).
FORGOTTEN_NS = 60_000_000_000
#: There is a limit only if at least one client gives up for so many that are answered (ours: below, an execution in
#: sixteen is in vain, which costs less than to refuse clients that would have waited).
ANSWERED_PER_GIVEN_UP = 16
#: The limit is this part of what half of those clients waited at least: an answer has to arrive, too (ours).
PART = 0.9
#: No limit is lower (ns; ours): clients that wait less cannot make the model refuse those that wait longer.
LEAST_NS = 50_000_000
#: The limit is raised if no client has given up for so long (ns), and then in steps, until it is so high that it ends
#: (ours: a trial in ten seconds costs some tenths of a second of answers that come too late).
TRIAL_NS, STEP_NS, RAISED_BY, END_NS = 10_000_000_000, 2_000_000_000, 1.25, 60_000_000_000


class _Sample(NamedTuple):
    """A client that gave up."""

    now_ns: int
    waited_ns: int
    num_answered: int
    num_given_up: int


class Patience:
    """What one model's clients have waited before they gave up. `limit_ns` is the time that a request has from its
    start to its answer, as far as is known; 0 = no limit."""

    __slots__ = ("_num_given_up", "_raise_at_ns", "_samples", "limit_ns")

    def __init__(self) -> None:
        # Changed by gave_up and current_ns.
        self.limit_ns = 0
        self._raise_at_ns = 0
        self._num_given_up = 0
        self._samples: deque[_Sample] = deque(maxlen=WINDOW)

    def gave_up(self, waited_ns: int, num_answered: int, now_ns: int) -> None:
        """Note that a client has hung up whose request was still queued, and had begun `waited_ns` before;
        `num_answered` counts all requests that the model has answered."""
        self._num_given_up += 1
        samples = self._samples
        if samples and now_ns - samples[-1].now_ns < SAMPLE_NS:
            return
        if samples and now_ns - samples[-1].now_ns > FORGOTTEN_NS:
            samples.clear()
        samples.append(_Sample(now_ns, max(0, waited_ns), num_answered, self._num_given_up))
        first = samples[0]
        num_answered_meanwhile = num_answered - first.num_answered
        num_given_up_meanwhile = self._num_given_up - first.num_given_up + 1
        is_usual = num_answered_meanwhile <= ANSWERED_PER_GIVEN_UP * num_given_up_meanwhile
        if len(samples) >= LEAST and (is_usual or self.limit_ns):
            waited = sorted([each.waited_ns for each in samples])
            self.limit_ns = max(LEAST_NS, int(PART * waited[len(waited) // 2]))
            self._raise_at_ns = now_ns + TRIAL_NS

    def current_ns(self, now_ns: int) -> int:
        """The limit now, after it was raised for the time in which no client gave up; 0 = none."""
        if self.limit_ns and now_ns >= self._raise_at_ns:
            self._raise_at_ns = now_ns + STEP_NS
            self.limit_ns = int(RAISED_BY * self.limit_ns)
            if self.limit_ns > END_NS:
                self.limit_ns = 0
                self._samples.clear()
        return self.limit_ns

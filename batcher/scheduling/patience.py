"""The time that a model's clients wait for an answer before they give up, learned from those that hang up.

If clients give up sooner than the queue (first come, first served) takes, the client of each request at its front is
about to give up: the model computes answers for clients that have gone. If that becomes the usual case, later requests
get a deadline, a little shorter than the time that most of those clients have waited, and are refused at once if they
would miss it (deadlines.py).

Rules: there is no limit as long as more than half of the answers reach a client, however long the queue is and however
many clients hang up: only answers that have become useless are a reason for a limit. A hang-up is a sample of how long
clients wait only if its request had waited long, and the queue has not been empty since the first sample. An empty
queue ends the limit and discards all samples.

Pure policy, runs in the batcher: the time is handed in.
"""

from collections import deque

#: The time in the queue (ns) from which on a hang-up counts, and the lowest limit (ours: a client that hangs up sooner
#: has most likely not hung up for the wait, and a queue that takes less is no overload).
LONG_NS = 250_000_000
#: Samples of hang-ups that are needed for a limit; the most recent ones that count; and the least time between two in
#: ns (ours: a client that drops many requests at once is one sample).
LEAST, WINDOW, SAMPLE_NS = 8, 16, 20_000_000
#: There is a limit if USELESS of about ANSWERS answers in a row are useless (ours: a client can make useless only
#: answers to its own requests, and would need half of the model's executions to have other clients' requests refused;
#: with 0.3 of the executions, one attempt in 2,000 succeeds by chance). USELESS_AGAIN useless answers confirm a limit
#: (ours: a wrong limit is soon raised, so a weaker proof will do).
ANSWERS, USELESS, USELESS_AGAIN = 64, 32, 8
#: The limit is this part of the time that half of the samples exceed, so that an answer arrives before most clients
#: give up (ours).
PART = 0.9
#: A limit that was not confirmed for TRIAL_NS is raised by the factor RAISED_BY, again every STEP_NS, and ends above
#: END_NS (ours: to raise the limit once in ten seconds costs some tenths of a second of answers that come too late).
TRIAL_NS, STEP_NS, RAISED_BY, END_NS = 10_000_000_000, 2_000_000_000, 1.25, 60_000_000_000


class Patience:
    """The times that one model's clients have waited before they gave up. `limit_ns` is the time that a request has
    from its start to its answer, as far as is known; 0 = no limit."""

    __slots__ = (
        "_last_ns", "_num_answered", "_num_answered_before", "_num_useless", "_raise_at_ns", "_waits_ns", "limit_ns"
    )  # fmt: skip

    def __init__(self) -> None:
        # Changed by gave_up, answer_became_useless and current_ns. At `_raise_at_ns` a limit that is not confirmed is
        # raised.
        self.limit_ns = 0
        self._raise_at_ns = 0
        self._last_ns = 0  # when the last sample was taken
        self._waits_ns: deque[int] = deque(maxlen=WINDOW)  # samples
        self._num_useless = 0  # useless ones of the answers after the first `_num_answered_before`
        self._num_answered_before = 0

    def answer_became_useless(self) -> None:
        """Note that a client has hung up whose request is being executed and has had no response."""
        self._num_useless += 1

    def gave_up(self, waited_ns: int, num_answered: int, now_ns: int) -> None:
        """Note that a client has hung up whose request had been queued for `waited_ns` and still was; `num_answered`
        counts all requests that the model has answered, the useless answers among them."""
        waits_ns = self._waits_ns
        since_ns = now_ns - self._last_ns
        if waited_ns < LONG_NS or (waits_ns and since_ns < SAMPLE_NS):
            return
        if since_ns > waited_ns:
            waits_ns.clear()  # the queue may have been empty before this request came
        self._last_ns = now_ns
        if not waits_ns:
            self._begin(num_answered)
        waits_ns.append(waited_ns)
        num_meanwhile = num_answered - self._num_answered_before
        least = USELESS_AGAIN if self.limit_ns else USELESS
        is_usual = self._num_useless >= least and self._num_useless * ANSWERS >= num_meanwhile * least
        if is_usual and len(waits_ns) >= LEAST:
            self.limit_ns = max(LONG_NS, int(PART * sorted(waits_ns)[len(waits_ns) // 2]))
            self._raise_at_ns = now_ns + TRIAL_NS
            self._begin(num_answered)
        elif num_meanwhile >= ANSWERS:  # from now on the earlier answers count half
            self._num_answered_before += num_meanwhile // 2
            self._num_useless //= 2

    def _begin(self, num_answered: int) -> None:
        self._num_answered_before = num_answered
        self._num_useless = 0

    def current_ns(self, num_queued: int, now_ns: int) -> int:
        """The limit in ns for a request that comes now and finds `num_queued` in the queue; 0 = none. An empty queue
        ends the limit; a limit that no hang-ups confirm is raised in steps."""
        if not num_queued:
            self.limit_ns = 0
            self._waits_ns.clear()
        elif self.limit_ns and now_ns >= self._raise_at_ns:
            self._raise_at_ns = now_ns + STEP_NS
            self.limit_ns = int(RAISED_BY * self.limit_ns)
            if self.limit_ns > END_NS:
                self.limit_ns = 0
        return self.limit_ns

"""Limits on a client's behaviour: allowances that keep every known kind of flood (of pings, resets, frames without
content) within bounds. Pure."""

from shoal.frontend.grpc.http2.events import Event, StreamReset
from shoal.frontend.grpc.http2.frames import ENHANCE_YOUR_CALM, BrokenError
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.http2.sending import Sending
from shoal.frontend.grpc.http2.streams import Stream

#: Seconds between two pings of a client without open calls, as in gRPC core: TCP keep-alive's interval.
_IDLE_PING_INTERVAL_S = 7200.0


class TokenBucket:
    """The remaining allowance of a client for useless frames: a bucket that time and work done fill again."""

    __slots__ = ("_burst", "_filled_at_s", "_level", "_num_earned", "_per_earned", "_per_s")

    def __init__(self, burst: int, per_s: float, per_earned: float, now_s: float) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._per_earned = per_earned
        # The fields below are changed by `spend`.
        self._level = self._burst
        self._filled_at_s = now_s
        self._num_earned = 0

    def spend(self, cost: float, now_s: float, num_earned: int) -> bool:
        """Take `cost` from the allowance; False if too little was left. `num_earned` counts all work done for the
        client so far, which fills the allowance again."""
        level = self._level + (now_s - self._filled_at_s) * self._per_s
        level += (num_earned - self._num_earned) * self._per_earned
        self._filled_at_s = now_s
        self._num_earned = num_earned
        self._level = min(level, self._burst) - cost
        return self._level >= 0


class AbuseLimits:
    """Limits for one client; each method raises BrokenError with ENHANCE_YOUR_CALM once a limit is exceeded."""

    __slots__ = (
        "_last_ping_s",
        "_limits",
        "_nuisances",
        "_num_sent_at_ping",
        "_num_strikes",
        "_resets",
        "_sending",
        "now_s",
    )

    def __init__(self, limits: Limits, sending: Sending, now_s: float) -> None:
        self._limits = limits
        self._sending = sending
        #: The time of the bytes that are being received. Changed by the receiving side.
        self.now_s = now_s
        # The fields below are changed by the methods of this class.
        self._nuisances = TokenBucket(
            limits.nuisance_burst, limits.nuisances_per_s, limits.nuisances_per_frame_sent, now_s
        )
        self._resets = TokenBucket(limits.reset_burst, limits.resets_per_s, 1.0, now_s)
        self._num_strikes = 0
        self._last_ping_s = 0.0
        self._num_sent_at_ping = -1

    def nuisance(self, cost: float = 1.0) -> None:
        """Count a frame without content. Raises BrokenError for too many."""
        if not self._nuisances.spend(cost, self.now_s, self._sending.num_sent):
            raise BrokenError(ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def cancellation(self) -> None:
        """Count a reset of an open stream by the client. Raises BrokenError for too many."""
        if not self._resets.spend(1.0, self.now_s, self._sending.num_ended):
            raise BrokenError(ENHANCE_YOUR_CALM, "too many streams cancelled")

    def fault(self, stream: Stream, error_code: int, events: list[Event]) -> None:
        """Reset a stream on which the client broke a rule; the call ends as by a cancellation, and counts as one.
        Raises BrokenError for too many."""
        self.cancellation()
        self._sending.reset(stream.number, error_code)
        events.append(StreamReset(stream.number, error_code))

    def ping(self, num_streams: int) -> None:
        """Count a ping. An early ping is a strike, unless HEADERS or DATA were sent since the last ping. Raises
        BrokenError for too many."""
        self.nuisance()
        limits = self._limits
        is_idle = not num_streams and not limits.keepalive_permit_without_calls
        interval_s = _IDLE_PING_INTERVAL_S if is_idle else limits.min_recv_ping_interval_without_data_s
        if self._sending.num_sent != self._num_sent_at_ping:
            self._num_strikes = 0
        elif self.now_s < self._last_ping_s + interval_s:
            self._num_strikes += 1
            if self._num_strikes > limits.max_ping_strikes > 0:
                raise BrokenError(ENHANCE_YOUR_CALM, "too_many_pings")  # the text that gRPC clients recognise
        self._num_sent_at_ping = self._sending.num_sent
        self._last_ping_s = self.now_s

    def unread(self) -> None:
        """Check the number of answers that the client has not read. Raises BrokenError if there are too many."""
        if self._sending.num_answers > self._limits.max_unsent_answers:
            raise BrokenError(ENHANCE_YOUR_CALM, "too many answers that are not read")

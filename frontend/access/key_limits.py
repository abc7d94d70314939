"""The limits of API keys: how many requests a key may begin in a second, and how many it may have in flight.

The rate of a key is kept as one point in time (the generic cell rate algorithm): when its requests so far would have
ended, had they come evenly. A request may come before that point by as much as the key's burst allows. The road alone
counts: it is one process, to which lanes hand over the requests of keys with limits, so a limit holds for all lanes and
protocols together. Keys without limits are not known here. Any thread; the time is handed in.
"""

import threading
import time
from collections.abc import Callable
from math import ceil

from shoal.api_keys import ApiKey
from shoal.errors import UnavailableError
from shoal.frontend.response import Response

_NS_PER_S = 1_000_000_000


class KeyLimitError(UnavailableError):
    """A request is over a limit of its API key. Triton has no error code for that, so HTTP's and gRPC's are given
    here."""

    http_status, grpc_status = 429, 8


class KeyUse:
    """One key's use of its limits: requests in flight, admitted and refused, and its place in the rate."""

    __slots__ = ("even_ns", "num_admitted", "num_in_flight", "num_refused")

    def __init__(self) -> None:
        #: When the requests so far would have ended, one after another at the key's rate, in monotonic ns.
        self.even_ns = 0
        self.num_in_flight = 0
        self.num_admitted = 0
        self.num_refused = 0


class KeyUses:
    """The uses of all keys with limits, by key name: reading the file of keys again changes limits, not uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Changed under the lock by begin, end and forget.
        self.uses: dict[str, KeyUse] = {}

    def begin(self, key: ApiKey, now_ns: int) -> None:
        """Count a request of this key that begins; `end` must follow. Raises KeyLimitError, and only counts the
        refusal, if the request is over a limit."""
        with self._lock:
            self._begin(self.uses.setdefault(key.name, KeyUse()), key, now_ns)

    def _begin(self, use: KeyUse, key: ApiKey, now_ns: int) -> None:
        limits = key.limits
        if limits.max_in_flight and use.num_in_flight >= limits.max_in_flight:
            use.num_refused += 1
            raise _refusal(f"API key '{key.name}' has {use.num_in_flight} requests in flight, as many as it may", 1)
        if limits.requests_per_second:
            interval_ns = int(_NS_PER_S / limits.requests_per_second)
            early_ns = use.even_ns - now_ns - (limits.requests_at_once - 1) * interval_ns
            if early_ns > 0:
                use.num_refused += 1
                raise _refusal(
                    f"API key '{key.name}' may begin {limits.requests_per_second:g} requests in a second, "
                    f"{limits.requests_at_once} at once",
                    ceil(early_ns / _NS_PER_S),
                )
            use.even_ns = max(use.even_ns, now_ns) + interval_ns
        use.num_in_flight += 1
        use.num_admitted += 1

    def end(self, key: ApiKey) -> None:
        """Count the end of a request that has begun, however it ended."""
        with self._lock:
            self.uses[key.name].num_in_flight -= 1

    def forget(self, names: set[str]) -> None:
        """Forget the keys that are not among these names and have no request in flight."""
        with self._lock:
            for name in [name for name, use in self.uses.items() if name not in names and not use.num_in_flight]:
                del self.uses[name]

    def answer(self, key: ApiKey | None, answer: Callable[[], Response]) -> Response:
        """The response that `answer` returns; a request by a key with limits is in flight until the response is made
        or, if the response comes in parts, is closed. Raises KeyLimitError if the request is over a limit."""
        if key is None or not key.is_limited:
            return answer()
        self.begin(key, time.monotonic_ns())
        try:
            response = answer()
        except BaseException:
            self.end(key)
            raise
        if response.stream is None:  # before the response is sent: after it the client may send its next request
            self.end(key)
            return response

        def close() -> None:
            self.end(key)
            if response.close is not None:
                response.close()

        return response._replace(close=close)


def _refusal(sentence: str, retry_after_s: int) -> KeyLimitError:
    error = KeyLimitError(f"{sentence}. Try again in {retry_after_s} s, or ask for a higher limit")
    error.retry_after_s = retry_after_s
    return error

"""The memory of one process for requests that are arriving or being answered, and the choice of the request that is
refused when this memory runs out. Pure; any thread.

Bytes belong to the address that sends them. If all bytes together are more than the limit, the address with the most
bytes of unfinished requests loses the largest of these requests. So the client that holds most is refused, not a
newcomer that holds little.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from shoal.errors import TooLargeError, UnavailableError


class NoUploadMemoryError(UnavailableError):
    """The memory for requests that are arriving is used up; the request may be sent again."""

    retry_after_s = 1

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the {limit} bytes that requests may take while they arrive and are read are used up. "
            "Send the request again later, or raise --max-upload-mib"
        )


class UploadTimeoutError(UnavailableError):
    """A request did not arrive in time."""

    http_status = 408


class UploadPace(NamedTuple):
    """How long the body of a request, or a message of gRPC, may take: --upload-timeout-secs and --min-upload-rate."""

    timeout_s: float
    min_rate: int  # bytes a second

    def allowed_s(self, nbytes: int) -> float:
        """Seconds that a body may have taken when `nbytes` bytes of it have come."""
        return self.timeout_s + nbytes / self.min_rate

    def too_slow(self, what: str, nbytes: int, seconds: float) -> UploadTimeoutError:
        """The error for a body of which only `nbytes` bytes have come in `seconds`; `what` names it: "the request
        body"."""
        return UploadTimeoutError(
            f"{what} has not come in time: {nbytes} bytes in {seconds:.0f} s, where it may take {self.timeout_s:g} s "
            f"(--upload-timeout-secs) and one more for each {self.min_rate} bytes (--min-upload-rate)"
        )


class UploadTooLargeError(TooLargeError):
    """The request alone is larger than the memory for all arriving requests."""

    def __init__(self, nbytes: int, limit: int) -> None:
        super().__init__(
            f"a request of {nbytes} bytes exceeds the {limit} bytes that all requests together may take while they "
            "arrive. Raise --max-upload-mib"
        )


@dataclass(slots=True)
class _Share:
    address: str
    nbytes: int = 0
    is_unfinished: bool = True


class UploadBudget:
    """The requests that hold memory, each under a key that the calling code chooses."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        # Changed under the lock. By key: each request's address, bytes and whether it is unfinished; and the sum of all
        # bytes, decompressed ones included.
        self._shares: dict[Hashable, _Share] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that all requests hold, decompressed bodies included."""
        return self._nbytes

    def add(self, key: Hashable, address: str, nbytes: int) -> None:
        """Count further bytes of an unfinished request."""
        with self._lock:
            share = self._shares.setdefault(key, _Share(address))
            share.nbytes += nbytes
            share.is_unfinished = True
            self._nbytes += nbytes

    def finish(self, key: Hashable) -> None:
        """Count a request as whole: it can no longer be refused."""
        with self._lock:
            if key in self._shares:
                self._shares[key].is_unfinished = False

    def remove(self, key: Hashable) -> None:
        """Stop counting a request's bytes; no effect for a key without any."""
        with self._lock:
            share = self._shares.pop(key, None)
            self._nbytes -= 0 if share is None else share.nbytes

    def excess(self) -> Hashable | None:
        """The key of the request that is to be refused; None if the limit is kept, or all requests have come whole."""
        if self._nbytes <= self.limit:
            return None
        with self._lock:
            unfinished = [(key, share) for key, share in self._shares.items() if share.is_unfinished]
            by_address: Counter[str] = Counter()
            for _, share in unfinished:
                by_address[share.address] += share.nbytes
            if not by_address:
                return None
            (address, _), *_ = by_address.most_common(1)
            return max(((share.nbytes, key) for key, share in unfinished if share.address == address), key=_nbytes)[1]

    @contextmanager
    def expansion(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a decompressed body for as long as the context lasts.

        The yielded function sets the body's decompressed size so far; it raises NoUploadMemoryError if there is no room
        for more.
        """
        counted = 0

        def expand(nbytes: int) -> None:
            nonlocal counted
            with self._lock:
                if nbytes > counted and self._nbytes + nbytes - counted > self.limit:
                    raise NoUploadMemoryError(self.limit)
                self._nbytes += nbytes - counted
                counted = nbytes

        try:
            yield expand
        finally:
            expand(0)


def _nbytes(entry: tuple[int, Hashable]) -> int:
    return entry[0]

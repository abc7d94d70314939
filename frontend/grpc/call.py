"""The interface of a gRPC connection to its calls."""

from collections.abc import Callable
from typing import Protocol

from shoal.errors import ShoalError


class OpenCall(Protocol):
    """One call, which is a stream of the connection."""

    #: The memory into which the next bytes of the call's message may be received directly, or None.
    @property
    def target(self) -> memoryview | None: ...

    def received_into_target(self, nbytes: int) -> None:
        """Note that `nbytes` bytes were received into `target`."""
        ...

    def take(self, data: bytes | memoryview) -> None:
        """Receive a piece of the call's messages."""
        ...

    def end(self) -> None:
        """Note that the client sends nothing more."""
        ...

    def cancel(self) -> None:
        """End the call because the client does not want it any more, or is gone: nothing may be sent on it."""
        ...

    def expire(self, now_s: float) -> None:
        """End the call if its deadline has passed by `now_s` (monotonic)."""
        ...

    def recall(self, is_wanted: Callable[[tuple[int, int]], bool]) -> None:
        """Copy answers that wait for others and lie in blocks that are wanted back, as far as there is room for
        copies."""
        ...

    def end_idle(self, error: ShoalError) -> None:
        """End a call that waits for its client only, for this reason."""
        ...

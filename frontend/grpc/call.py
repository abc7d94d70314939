"""What a connection asks of its calls."""

from collections.abc import Callable
from typing import Protocol


class OpenCall(Protocol):
    """A stream of the connection."""

    #: Where the next bytes of its message may be received directly, or None.
    @property
    def target(self) -> memoryview | None: ...

    def received_into_target(self, nbytes: int) -> None:
        """So many bytes were received into `target`."""
        ...

    def take(self, data: bytes | memoryview) -> None:
        """A piece of its messages has come."""
        ...

    def end(self) -> None:
        """The client sends nothing more."""
        ...

    def cancel(self) -> None:
        """The client does not want it any more, or is gone: nothing may be sent on it."""
        ...

    def expire(self, now_s: float) -> None:
        """Look at its deadline."""
        ...

    def recall(self, is_wanted: Callable[[tuple[int, int]], bool]) -> None:
        """Copy answers that wait for others and lie in blocks that are wanted back, as far as there is room for it."""
        ...

    def end_idle(self) -> None:
        """The server ends: so does a call that has nothing to wait for but its client."""
        ...

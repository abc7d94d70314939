"""The sockets that a gRPC lane has beside its clients' connections: one end of a pair each, the road has the other."""

import socket
from typing import Protocol


class CallSocket(Protocol):
    """An object with a socket of its own that the lane waits for."""

    fd: int

    def serve(self, event: int) -> None:
        """Handle an event of the listener's descriptor."""
        ...


class LaneSockets(Protocol):
    """The lane, as the owner of such a socket uses it."""

    now_s: float  # monotonic time of this pass

    def hand_over(self, theirs: socket.socket, data: bytes) -> None:
        """Give the road its end of a socket pair."""
        ...

    def listen(self, listener: CallSocket) -> None:
        """Call the listener's `serve` whenever its descriptor can be read. Raises OSError, with no effect, if the
        kernel watches no further descriptor."""
        ...

    def forget(self, listener: CallSocket) -> None:
        """Stop listening to a descriptor that is about to be closed."""
        ...

"""What every kind of gRPC call does for its connection and its lane, and a call of models for their replies."""

from collections.abc import Callable

from shoal.errors import ShoalError
from shoal.frontend.grpc.inference_protocol import AskedMessage
from shoal.shm.port import Reply


class OpenCall:
    """One call, which is a stream of the connection. Not abstract for Python: `isinstance` is asked for each call."""

    __slots__ = ()

    @property
    def target(self) -> memoryview | None:
        """The memory into which the next bytes of the call's message may be received directly, or None."""
        return None

    def received_into_target(self, nbytes: int) -> None:
        """Note that `nbytes` bytes were received into `target`."""
        raise NotImplementedError

    def take(self, data: bytes | memoryview) -> None:
        """Receive a piece of the call's messages."""
        raise NotImplementedError

    def end(self) -> None:
        """Note that the client sends nothing more."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End the call because the client does not want it any more, or is gone: nothing may be sent on it."""
        raise NotImplementedError

    def expire(self, now_s: float) -> None:
        """End the call if its deadline has passed by `now_s` (monotonic)."""
        raise NotImplementedError

    def recall(self, is_wanted: Callable[[tuple[int, int]], bool]) -> None:
        """Copy answers that wait for others and lie in blocks that are wanted back, as far as there is room for
        copies; most calls have none."""

    def end_idle(self, error: ShoalError) -> None:
        """End a call that waits for its client only, for this reason; the road ends the calls that it has."""


class AskingCall(OpenCall):
    """A call that submits requests to models."""

    __slots__ = ()

    def replied(self, number: int, asked: AskedMessage, reply: Reply, timing: str = "") -> None:
        """Handle a reply, and release its block. `timing` are the request's times, which its client has asked for."""
        raise NotImplementedError

    def judged(self, number: int, error: ShoalError | None) -> None:
        """Handle the answer to the question of this number (admissions.py): the next message of a stream is admitted,
        or refused with an error. The road asks for calls of other kinds."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Log the exception being handled, which is a fault of this server, and end the connection."""
        raise NotImplementedError

    def resume(self) -> int:
        """Submit the waiting request, since there probably is room. Returns 0, or the number of the model for which
        there is none; then the call has not changed, and waits on."""
        raise NotImplementedError

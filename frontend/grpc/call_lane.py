"""What a gRPC lane offers to the calls on it: requests to models, memory, a clock, the way to the road."""

import socket
from typing import Protocol

from shoal.errors import UnavailableError
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.inbox import MessageBuffers
from shoal.frontend.grpc.inference import Inference
from shoal.frontend.grpc.opening import Opening
from shoal.frontend.grpc.parking import Parking
from shoal.frontend.grpc.service import GrpcCall
from shoal.shm.slab import Block


class CallSocket(Protocol):
    """A socket of a call's own."""

    fd: int

    def serve(self, event: int) -> None:
        """Handle an event of the listener's descriptor."""
        ...


class CallLane(Protocol):
    """A gRPC lane, as far as the calls on it use it."""

    buffers: MessageBuffers
    inference: Inference
    parking: Parking
    now_s: float  # of this pass

    def has_output(self, connection: GrpcConnection) -> None:
        """Note that a connection has bytes to send at the end of this pass."""
        ...

    def close(self, connection: GrpcConnection) -> None:
        """Close a connection: no further byte is received or sent."""
        ...

    def free(self, block: Block) -> None:
        """Free the block of a received message that will not be submitted."""
        ...

    def service_call(self, opening: Opening, connection: GrpcConnection) -> GrpcCall:
        """The call as its handler sees it."""
        ...

    def deadline_s(self, opening: Opening) -> float:
        """When a call that begins now is too late: the client's deadline, or the server's."""
        ...

    def answer_by_s(self) -> float:
        """When the next answer of a streamed request is too late."""
        ...

    def too_late(self, opening: Opening) -> tuple[int, str]:
        """What a call is told whose deadline has passed."""
        ...

    def no_answer(self) -> UnavailableError:
        """What a request is told that no model has answered in time."""
        ...

    def hand_over(self, theirs: socket.socket, data: bytes) -> None:
        """Give the road its end of a call."""
        ...

    def listen(self, listener: CallSocket) -> None:
        """Serve it when it can be read."""
        ...

    def watch(self, fd: int, events: int) -> None:
        """Wait for something else on a listener's socket."""
        ...

    def forget(self, listener: CallSocket) -> None:
        """Stop listening to a descriptor that is about to be closed."""
        ...

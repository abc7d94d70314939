"""The interface of a gRPC lane to its calls: its requests, its memory, its clock, its ways to the road."""

from typing import Protocol

from shoal.errors import UnavailableError
from shoal.frontend.grpc.admissions import Admissions
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.inbox import MessageBuffers
from shoal.frontend.grpc.inference import Inference
from shoal.frontend.grpc.lane_sockets import LaneSockets
from shoal.frontend.grpc.opening import Opening
from shoal.frontend.grpc.parking import Parking
from shoal.frontend.grpc.service import GrpcCall
from shoal.frontend.upload_budget import UploadBudget
from shoal.shm.slab import Block


class CallLane(LaneSockets, Protocol):
    """The lane, as its calls use it."""

    buffers: MessageBuffers
    inference: Inference
    parking: Parking

    admissions: Admissions
    #: Private memory for bytes of calls that the road has not taken.
    upload_budget: UploadBudget

    def may_hand_over(self, num_calls: int) -> bool:
        """Whether a connection with so many calls on the road may have one more there: each takes a descriptor until
        it is answered."""
        ...

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
        """The call in the form for a handler of the service."""
        ...

    def deadline_s(self, opening: Opening) -> float:
        """The monotonic time at which a call that begins now is too late: the client's deadline, or the server's."""
        ...

    def answer_by_s(self) -> float:
        """The monotonic time at which the next answer of a streamed request is too late."""
        ...

    def too_late(self, opening: Opening) -> tuple[int, str]:
        """The status and message for a call whose deadline has passed."""
        ...

    def no_answer(self) -> UnavailableError:
        """The error for a request that no model has answered in time."""
        ...

    def watch(self, fd: int, events: int) -> None:
        """Wait for other events of a listener's descriptor."""
        ...

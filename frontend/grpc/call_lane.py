"""What a gRPC lane offers to its calls: memory for messages, deadlines and their errors, and ways to hand work to the
road. One thread, the lane's; grpc_lane.py has the loop."""

import select
import socket

from shoal.errors import UnavailableError
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.admissions import AdmissionClient, CallSocket
from shoal.frontend.grpc.call import Opening
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.inbox import MessageBuffers
from shoal.frontend.grpc.inference import Inference
from shoal.frontend.grpc.parking import Parking
from shoal.frontend.grpc.service import GrpcCall
from shoal.frontend.lane_loop import GunicornHandle, Lane, reserve
from shoal.shm.slab import Block

_DEADLINE_EXCEEDED = 4
#: Of the descriptors that connections must leave free, one in so many may be taken by calls on the road, of which a
#: client has up to 1024 on each connection. The others are for segments: a lane that cannot receive a segment ends
#: (ours).
_RESERVE_PER_CALL = 2


class CallLane(Lane[GrpcConnection]):
    """The part of a gRPC lane that its calls use; GrpcLane inherits from it."""

    def __init__(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> None:
        super().__init__(front_end, gunicorn)
        self._max_handed_over = reserve() // _RESERVE_PER_CALL
        self.buffers = MessageBuffers(self._port, self._state.upload_pace)
        #: The limit of private memory for bytes of calls that the road has not read yet.
        self.upload_budget = self._state.upload_budget
        self.inference = Inference(self._state, self._port)
        self.parking = Parking(self._port)
        self.admissions = AdmissionClient(self)
        # The fields below are changed by every pass of the loop.
        self._dirty: list[GrpcConnection] = []  # connections with bytes to send
        self._listeners: dict[int, CallSocket] = {}  # the owners of registered sockets, by the sockets' descriptors

    def close(self, connection: GrpcConnection) -> None:
        """Close a connection: no further byte is received or sent. No effect if it is closed already."""
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
            self._poller.unregister(connection.fd)
            connection.close()

    def note_output(self, connection: GrpcConnection) -> None:
        """Note that a connection has unsent output, which is sent at the end of this pass."""
        if not connection.is_dirty:
            connection.is_dirty = True
            self._dirty.append(connection)

    def deadline_s(self, opening: Opening) -> float:
        """The monotonic time by which a call that begins now must be answered: the earlier of the client's deadline and
        the server's limit."""
        timeout_s = self._place.request_timeout_s if opening.method.handler is None else self._place.answer_timeout_s
        return self.now_s + (timeout_s if opening.timeout_s is None else min(timeout_s, opening.timeout_s))

    def answer_by_s(self) -> float:
        """The monotonic time by which the next response to a request in a stream must have come."""
        return self.now_s + self._place.request_timeout_s

    def too_late(self, opening: Opening) -> tuple[int, str]:
        """The status and message for a call whose deadline has passed: DEADLINE_EXCEEDED if the deadline was the
        client's."""
        if (
            not self._state.gives_up
            and opening.timeout_s is not None
            and opening.timeout_s < self._place.request_timeout_s
        ):
            return _DEADLINE_EXCEEDED, "Deadline Exceeded"
        error = self.no_answer()
        return error.grpc_status, str(error)

    def no_answer(self) -> UnavailableError:
        """The error for a request that no model has answered in time."""
        return self._state.no_answer(self._place.request_timeout_s)

    def service_call(self, opening: Opening, connection: GrpcConnection) -> GrpcCall:
        """The call as the service's handlers receive it (service.py)."""
        return GrpcCall(self._state, None, opening.metadata, connection.peer, key=opening.key)

    def free(self, block: Block) -> None:
        """Free the block of a received message that will not be submitted."""
        self._port.slab.free(block.ref)

    def may_hand_over(self, num_calls: int) -> bool:
        """Whether a connection that has `num_calls` on the road may hand over one more; each call there takes a
        descriptor until it is answered."""
        # One connection may take half of what is free, so that other connections always find some.
        return 2 * num_calls < self._max_handed_over - len(self._listeners)

    def listen(self, listener: CallSocket) -> None:
        """Call the listener's `serve` whenever its descriptor can be read. Raises OSError, with no effect, if the
        kernel watches no further descriptor."""
        self._poller.register(listener.fd, select.EPOLLIN)
        self._listeners[listener.fd] = listener

    def forget(self, listener: CallSocket) -> None:
        """Stop listening to a descriptor that is about to be closed."""
        del self._listeners[listener.fd]
        self._poller.unregister(listener.fd)

    def watch(self, fd: int, events: int) -> None:
        """Change the events for which a listener's `serve` is called."""
        self._poller.modify(fd, events)

    def hand_over(self, theirs: socket.socket, data: bytes) -> None:
        """Send the road its end (`theirs`) of a socket pair, with the first bytes that it is to read from there."""
        self._sources.hand_over(theirs, data)

    def _on_other(self, fd: int, event: int) -> None:
        listener = self._listeners.get(fd)
        if listener is not None:
            listener.serve(event)

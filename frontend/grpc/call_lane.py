"""A gRPC lane as its calls use it: its requests, its memory, its deadlines, its ways to the road. One thread."""

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
#: Of the descriptors that are kept free of connections, one in so many may be a call's on the road (ours: a client has
#: up to 1024 calls on each of its connections, and the others are for segments, without which a lane ends).
_RESERVE_PER_CALL = 2


class CallLane(Lane[GrpcConnection]):
    """The part of a gRPC lane that its calls use; GrpcLane is the whole."""

    def __init__(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> None:
        super().__init__(front_end, gunicorn)
        self._max_handed_over = reserve() // _RESERVE_PER_CALL
        self.buffers = MessageBuffers(self._port, self._state.upload_pace)
        #: Private memory for bytes of calls that the road has not taken.
        self.upload_budget = self._state.upload_budget
        self.inference = Inference(self._state, self._port)
        self.parking = Parking(self._port)
        self.admissions = AdmissionClient(self)
        # Changed by every pass of the loop.
        self._dirty: list[GrpcConnection] = []
        self._listeners: dict[int, CallSocket] = {}  # by descriptor

    def close(self, connection: GrpcConnection) -> None:
        """Close a connection, unless it is closed: no further byte is received or sent."""
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
            self._poller.unregister(connection.fd)
            connection.close()

    def has_output(self, connection: GrpcConnection) -> None:
        """Note that a connection has bytes to send at the end of this pass."""
        if not connection.is_dirty:
            connection.is_dirty = True
            self._dirty.append(connection)

    def deadline_s(self, opening: Opening) -> float:
        """The monotonic time at which a call that begins now is too late: the client's deadline, or the server's."""
        timeout_s = self._place.request_timeout_s if opening.method.handler is None else self._place.answer_timeout_s
        return self.now_s + (timeout_s if opening.timeout_s is None else min(timeout_s, opening.timeout_s))

    def answer_by_s(self) -> float:
        """The monotonic time at which the next answer of a streamed request is too late."""
        return self.now_s + self._place.request_timeout_s

    def too_late(self, opening: Opening) -> tuple[int, str]:
        """The status and message for a call whose deadline has passed."""
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
        """The call in the form for a handler of the service."""
        return GrpcCall(self._state, None, opening.metadata, connection.peer, key=opening.key)

    def free(self, block: Block) -> None:
        """Free the block of a received message that will not be submitted."""
        self._port.slab.free(block.ref)

    def may_hand_over(self, num_calls: int) -> bool:
        """Whether a connection with so many calls on the road may have one more there: each takes a descriptor until
        it is answered."""
        # A connection may have half as many as there is room for: every other one finds some.
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
        """Wait for other events of a listener's descriptor."""
        self._poller.modify(fd, events)

    def hand_over(self, theirs: socket.socket, data: bytes) -> None:
        """Give the road its end of a socket pair."""
        self._sources.hand_over(theirs, data)

    def _on_other(self, fd: int, event: int) -> None:
        listener = self._listeners.get(fd)
        if listener is not None:
            listener.serve(event)

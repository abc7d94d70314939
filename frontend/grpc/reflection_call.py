"""A call of server reflection: questions and answers in turn on one stream. One thread, the lane's."""

from shoal.errors import ShoalError
from shoal.frontend.grpc.call import OpenCall, Opening
from shoal.frontend.grpc.call_lane import CallLane
from shoal.frontend.grpc.connection import GrpcConnection, prefixed
from shoal.frontend.grpc.framing import HEADERS, decompress
from shoal.frontend.grpc.inbox import Inbox, LargeMessage
from shoal.frontend.grpc.inference import MAX_UNPACKED_BYTES

_DEADLINE_EXCEEDED, _INVALID_ARGUMENT = 4, 3
#: Most bytes of answers that the client has not read; if there are more, the next question ends the call (an answer has
#: kilobytes of descriptors).
_MAX_UNSENT_BYTES = 1 << 20


class ReflectionCall(OpenCall):
    """A call of server reflection. No question is large enough to be received directly."""

    __slots__ = ("_connection", "_deadline_s", "_has_begun", "_inbox", "_opening", "_stream_id")

    def __init__(self, lane: CallLane, connection: GrpcConnection, stream_id: int, opening: Opening) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._opening = opening
        self._deadline_s = lane.deadline_s(opening)
        # The fields below are changed as the call goes on.
        self._inbox = Inbox(lane.buffers, connection.unfinished)
        self._has_begun = False

    def take(self, data: bytes | memoryview) -> None:
        from shoal.frontend.grpc.reflection import answer  # imported here: few clients need it, and it takes 1.5 MiB

        http2 = self._connection.http2
        for arrival in self._inbox.feed(data):
            if isinstance(arrival, LargeMessage) or http2.unsent_nbytes(self._stream_id) > _MAX_UNSENT_BYTES:
                self._finish(_INVALID_ARGUMENT, "too long a question, or too many that wait for their answers")
                return
            question = arrival.data
            try:
                if arrival.is_compressed:
                    question = decompress(self._opening.encoding, question, MAX_UNPACKED_BYTES)
            except ShoalError as error:
                self._finish(error.grpc_status, str(error))
                return
            self._begin()
            http2.send_data(self._stream_id, prefixed([answer(question)]))
        http2.credit(self._stream_id, len(data))

    def end(self) -> None:
        self._finish()

    def cancel(self) -> None:
        self._inbox.close()

    def expire(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self._finish(_DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif (late := self._inbox.late(now_s)) is not None:
            self._finish(late.grpc_status, str(late))

    def end_idle(self, error: ShoalError) -> None:
        del error
        self._finish()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.http2.send_headers(self._stream_id, HEADERS)

    def _finish(self, status: int = 0, message: str = "") -> None:
        self._inbox.close()
        self._begin()
        self._connection.finish(self._stream_id, status, message)

"""A call with one message each way: ModelInfer, and all calls that the lane answers by itself. One thread, the
lane's."""

import logging
from collections.abc import Sequence

from shoal.errors import ShoalError
from shoal.frontend.grpc.call import AskingCall, Opening
from shoal.frontend.grpc.call_lane import CallLane
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.framing import OK, decompress, with_timing
from shoal.frontend.grpc.inbox import NO_ROOM_FOR_UNFINISHED, SMALL_BYTES, Inbox, LargeMessage, ReceivedMessage, whole
from shoal.frontend.grpc.inference import MAX_UNPACKED_BYTES
from shoal.frontend.grpc.inference_protocol import AskedMessage
from shoal.frontend.grpc.road_call import RoadCall
from shoal.frontend.grpc.service import run
from shoal.frontend.grpc.submission import MessageTemplate, RegionTemplate
from shoal.frontend.prepared import RoadOnlyError
from shoal.frontend.v2.compression import ExpansionLimitError
from shoal.open_files import explain
from shoal.shm.port import NoRoomError, Reply

_log = logging.getLogger("shoal")

TOO_MANY_HANDED_OVER = "too many large calls, and calls that may wait, are under way: try again later"
_RESOURCE_EXHAUSTED, _INTERNAL = 8, 13


class UnaryCall(AskingCall):
    """A unary call, until its message has come whole and, if the call is an inference, until the model has answered."""

    __slots__ = (
        "_connection",
        "_deadline_s",
        "_inbox",
        "_lane",
        "_number",
        "_parked",
        "_stream_id",
        "_waits_for",
        "opening",
    )

    def __init__(self, lane: CallLane, connection: GrpcConnection, stream_id: int, opening: Opening) -> None:
        self._lane = lane
        self._connection = connection
        self._stream_id = stream_id
        self.opening = opening
        self._deadline_s = lane.deadline_s(opening)
        # The fields below are changed as the call goes on.
        self._inbox: Inbox | None = None  # None for a message that comes in one piece, as most do
        self._number = 0  # number of the request whose reply the call waits for
        self._parked: ReceivedMessage | None = None  # the message, until there is room for the request
        self._waits_for = 0  # the model that has no room

    # --- the message comes in ---

    @property
    def target(self) -> memoryview | None:
        return None if self._inbox is None else self._inbox.target

    def received_into_target(self, nbytes: int) -> None:
        assert self._inbox is not None, "there was a target"
        received = self._inbox.received_into_target(nbytes)
        if received is None:
            self._connection.http2.credit(self._stream_id, nbytes)
        else:
            self._received(received)

    def take(self, data: bytes | memoryview) -> None:
        """Receive a piece of the message; bytes after its end are ignored."""
        if self._number or self._parked is not None:
            return
        inbox = self._inbox
        if inbox is None:
            received = whole(data)
            if received is not None:
                self._received(received)
                return
            inbox = self._inbox = Inbox(self._lane.buffers, self._connection.unfinished)
        arrivals = inbox.feed(data)
        if not arrivals:
            self._connection.has_target = inbox.target is not None
            self._connection.http2.credit(self._stream_id, len(data))
        elif isinstance(arrivals[0], ReceivedMessage):
            self._received(arrivals[0])
        elif arrivals[0].nbytes > SMALL_BYTES:
            self._take_road(arrivals[0])
        else:
            self._end()
            self._connection.refuse(self._stream_id, _RESOURCE_EXHAUSTED, NO_ROOM_FOR_UNFINISHED)

    def end(self) -> None:
        if not self._number and self._parked is None:  # no reply and no room is awaited: the message is incomplete
            self._end()
            self._connection.refuse(self._stream_id, _INTERNAL, "the call ended before its message was complete")

    def _received(self, received: ReceivedMessage) -> None:
        """Answer a message that has come whole."""
        opening = self.opening
        if opening.method.handler is None:
            self._infer(received)
            return
        data = received.data
        if received.block is not None:  # the slab is for inferences: other messages are copied out of it
            data = bytes(data)
            self._lane.free(received.block)
        try:
            if received.is_compressed:
                data = decompress(opening.encoding, data, MAX_UNPACKED_BYTES)
            call = self._lane.service_call(opening, self._connection)
            if opening.method.waits(call.state, data):
                self._hand_over(data, is_compressed=False)
                return
            chunks: list[bytes | memoryview] = [run(opening.method, call, data)]
        except ExpansionLimitError:
            self._hand_over(data, is_compressed=True)
        except ShoalError as error:
            self._refuse(error)
        else:
            self._end()
            self._connection.respond(self._stream_id, chunks, None)

    def _infer(self, received: ReceivedMessage) -> None:
        model = self._lane.parking.must_wait(received, self.opening.protocol)
        if model and received.block is not None:  # the block goes back to the memory that all models share
            block, received = received.block, received._replace(data=bytes(received.data), block=None)
            self._lane.free(block)
        model = model or self._ask(received)
        if model:
            self._parked, self._waits_for = received, model
            self._lane.parking.park(self, model, len(received.data))

    def _ask(self, received: ReceivedMessage) -> int:
        """Submit the request. Returns 0, or the model that has no room for the request before a reply has come."""
        try:
            self._number, _ = self._lane.inference.ask(
                self, self.opening, received, self._connection.begun_s, self._deadline_s, is_stream=False
            )
        except RoadOnlyError:  # the message's block was freed, but the bytes in it are unchanged
            self._hand_over(bytes(received.data), is_compressed=received.is_compressed)
        except NoRoomError as error:
            if self._lane.parking.may_wait(error.model, received):
                return error.model
            self._refuse(error)
        except ShoalError as error:
            self._refuse(error)
        return 0

    def infer_known(self, template: MessageTemplate | RegionTemplate, id_: bytes, tensors: Sequence[bytes]) -> bool:
        """Submit a message that has come whole and is of a known template. False, without effect, if there is no
        room."""
        lane = self._lane
        waiting = lane.parking.waiting
        if waiting and template.prepared.entry.model_id in waiting:  # earlier calls to the model go first
            return False
        try:
            self._number = lane.inference.ask_known(
                self, template, id_, tensors, self.opening, self._connection.begun_s, self._deadline_s
            )
        except NoRoomError:
            return False
        except ShoalError as error:
            self._refuse(error)
            lane.note_output(self._connection)
        return True

    def resume(self) -> int:
        received = self._parked
        if received is not None:
            if model := self._ask(received):
                self._waits_for = model
                return model
            self._parked = None
            self._lane.note_output(self._connection)
        return 0

    @property
    def template(self) -> MessageTemplate | RegionTemplate | None:
        """The known template of the call's request, if it has one."""
        asked = self._lane.inference.asked(self._number)
        return None if asked is None else asked.recognised_by

    def _hand_over(self, data: bytes | memoryview, *, is_compressed: bool) -> None:
        """Have the road answer a call whose message has come whole."""
        self._take_road(LargeMessage(len(data), data, is_compressed=is_compressed))

    def _take_road(self, message: LargeMessage) -> None:
        """Have the road answer this call, because the call may have to wait; refuse the call if the lane has no
        descriptor left for it."""
        self._close_inbox()
        sentence = TOO_MANY_HANDED_OVER
        if self._lane.may_hand_over(sum([isinstance(each, RoadCall) for each in self._connection.calls.values()])):
            try:
                road = RoadCall(self._lane, self._connection, self._stream_id, self.opening, message, self._deadline_s)
            except OSError as error:
                sentence = explain(error)
            else:
                self._connection.calls[self._stream_id] = road
                road.bound()
                return
        self._end()
        self._connection.refuse(self._stream_id, _RESOURCE_EXHAUSTED, sentence)

    # --- the answer goes out ---

    def replied(self, number: int, asked: AskedMessage, reply: Reply, timing: str = "") -> None:
        """Handle a reply; the last reply is the response. `timing` goes into the response's trailers."""
        inference = self._lane.inference
        if not reply.is_final:
            inference.release(number, reply.part)
            return
        try:
            chunks = self.opening.protocol.response(asked, reply)
        except ShoalError as error:
            if reply.block is not None:
                inference.release(number, 0)
            self._refuse(error, timing)
            self._lane.note_output(self._connection)
            return
        connection = self._connection
        trailers = OK if not timing else with_timing(OK, timing)
        if not connection.respond(self._stream_id, chunks, (number, 0), self.opening.response_encoding, trailers):
            inference.release(number, 0, prompt=False)
        self._lane.note_output(connection)

    # --- other ends of the call ---

    def end_idle(self, error: ShoalError) -> None:
        if not self._number and self._parked is None:
            self._refuse(error)

    def cancel(self) -> None:
        self._end()

    def expire(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self._end()
            self._connection.refuse(self._stream_id, *self._lane.too_late(self.opening))
            self._lane.note_output(self._connection)
        elif self._inbox is not None and (late := self._inbox.late(now_s)) is not None:
            self._refuse(late)
            self._lane.note_output(self._connection)

    def give_up(self) -> None:
        _log.exception("a connection is closed, since answering a call on it failed")
        self._lane.close(self._connection)

    def _refuse(self, error: ShoalError, timing: str = "") -> None:
        self._end()
        self._connection.refuse(self._stream_id, error.grpc_status, str(error), timing)

    def _close_inbox(self) -> None:
        if self._inbox is not None:
            self._inbox.close()

    def _end(self) -> None:
        self._close_inbox()
        if self._number:
            self._lane.inference.forget(self._number)
        if self._parked is not None:
            self._parked = None
            self._lane.parking.leave(self, self._waits_for)

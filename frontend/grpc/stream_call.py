"""A call of ModelStreamInfer: many requests and many more answers on one stream. One thread, the lane's.

Answers of ordinary models leave in the order of their requests, answers of decoupled models as they come. A request's
error is an answer, too, and the stream goes on. All queues are bounded. A stream has a limit of open requests: when it
is reached, the stream's window keeps further messages in the client. A request has a limit of unread answers: when it
is reached, the request's worker waits.
"""

import logging
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Generic, NamedTuple, TypeVar

from shoal.api_keys import ApiKey
from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.frontend.grpc.call import AskingCall, Opening
from shoal.frontend.grpc.call_lane import CallLane
from shoal.frontend.grpc.connection import GrpcConnection, Token, prefixed
from shoal.frontend.grpc.framing import HEADERS, IDENTITY, headers
from shoal.frontend.grpc.inbox import Inbox, LargeMessage, ReceivedMessage
from shoal.frontend.grpc.inference_protocol import AskedMessage
from shoal.shm.port import NoRoomError, Reply

T = TypeVar("T")


class StreamOrder(Generic[T]):
    """The answers of a stream's ordinary requests, by their tickets, in the order of the requests, as in Triton.
    Requests that may have several answers have no place in this order."""

    __slots__ = ("_answers", "_next_ticket", "_tickets")

    def __init__(self) -> None:
        # The fields below are changed by every method.
        self._next_ticket = 0
        self._tickets: deque[int] = deque()  # the tickets of requests whose answer has not gone out
        self._answers: dict[int, T] = {}  # by ticket: answers that must wait for an earlier one

    def __len__(self) -> int:
        return len(self._tickets)

    def enter(self) -> int:
        """Give a request its ticket, which is its place in the order; `answer` takes the ticket."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets.append(ticket)
        return ticket

    def answer(self, ticket: int, answer: T) -> list[T]:
        """Add the answer of a ticket's request. Returns the answers that may go out now, in order."""
        tickets, answers = self._tickets, self._answers
        if len(tickets) == 1:
            tickets.clear()
            return [answer]
        answers[ticket] = answer
        ready = []
        while tickets and tickets[0] in answers:
            ready.append(answers.pop(tickets.popleft()))
        return ready

    def change(self, changed: Callable[[T], T]) -> None:
        """Replace each waiting answer by the result of `changed` for it."""
        for ticket, answer in self._answers.items():
            self._answers[ticket] = changed(answer)

    def drain(self) -> list[T]:
        """End the stream. Returns waiting responses, whose blocks the caller is to release."""
        waiting = list(self._answers.values())
        self._tickets.clear()
        self._answers.clear()
        return waiting


_log = logging.getLogger("shoal")

_INTERNAL = 13
#: Most requests of one stream that wait for their answers (ours: a client keeps tens in flight on a stream).
MAX_OPEN = 256
#: Most large answers of one stream that lie in workers' memory while the client reads; further ones are copied (ours: a
#: quarter of the unread answers that a request may have). And the bytes that may be queued on a connection before a
#: check for room.
_MAX_LENT, _READ_SOON_BYTES = 8, 64 * 1024


class OutgoingMessage(NamedTuple):
    """An answer as a message of the stream, and the reply whose block the message lies in."""

    chunks: list[bytes | memoryview]
    token: Token | None
    #: Bytes that the connection counts for a copied response until it is sent.
    kept_bytes: int = 0


class PendingRequest(NamedTuple):
    """A request that was submitted and has not had its last answer."""

    ticket: int | None  # the place in the stream's order; None: answers of decoupled models have none
    deadline_s: float
    admission: int  # AdmissionClient's number of the request; 0: no key with limits


class RefusedMessage(NamedTuple):
    """A message refused for lack of memory to wait in; its error is sent when the message's turn comes."""

    message: bytes
    error: ShoalError


class StreamCall(AskingCall):
    """A call of ModelStreamInfer, until both sides have ended it."""

    __slots__ = (
        "_admission", "_backlog", "_connection", "_deadline_s", "_has_begun", "_has_ended", "_inbox", "_is_over",
        "_kept", "_lane", "_num_kept", "_num_uncredited", "_open", "_order", "_protocol", "_refusal", "_stream_id",
        "_undecided", "_waits_for", "opening",
    )  # fmt: skip

    def __init__(self, lane: CallLane, connection: GrpcConnection, stream_id: int, opening: Opening) -> None:
        self._lane = lane
        self._connection = connection
        self._stream_id = stream_id
        self.opening = opening
        self._protocol = opening.protocol
        self._deadline_s = inf if opening.timeout_s is None else lane.now_s + opening.timeout_s
        # The fields below are changed as the stream goes on.
        self._inbox = Inbox(lane.buffers, connection.unfinished)
        self._order: StreamOrder[OutgoingMessage | None] = StreamOrder()
        self._open: dict[int, PendingRequest] = {}  # requests that wait for answers, by their numbers
        self._backlog: deque[ReceivedMessage | LargeMessage | RefusedMessage] = deque()  # messages not submitted yet
        self._kept: deque[tuple[int, int]] = deque()  # for each message of the backlog, what parking has counted
        self._num_uncredited = 0
        self._num_kept = 0  # bytes of the backlog that count against the connection's window
        self._has_begun = False  # whether the response headers were sent
        self._has_ended = False  # whether the client sends nothing more
        self._is_over = False
        self._waits_for = 0  # the model that has no room for the next message
        # AdmissionClient's number of the next message, if the key has limits: before the road's decision, and after its
        # consent; else 0.
        self._undecided = self._admission = 0
        self._refusal: ShoalError | None = None

    # --- requests come in ---

    @property
    def target(self) -> memoryview | None:
        return self._inbox.target

    def received_into_target(self, nbytes: int) -> None:
        received = self._inbox.received_into_target(nbytes)
        self._arrive([] if received is None else [received], nbytes)

    def take(self, data: bytes | memoryview) -> None:
        self._arrive(self._inbox.feed(data), len(data))

    def end(self) -> None:
        self._has_ended = True
        self._end_if_done()

    def _arrive(self, arrivals: "list[ReceivedMessage | LargeMessage] | list[ReceivedMessage]", nbytes: int) -> None:
        self._backlog.extend(arrivals)
        if self._inbox.target is not None:
            self._connection.has_target = True
        if arrivals and isinstance(arrivals[-1], LargeMessage):
            self._inbox.skip(arrivals[-1].nbytes - len(arrivals[-1].begun))
        self._num_uncredited += nbytes
        self._work_off()

    def _work_off(self) -> None:
        """Submit the messages that have come, as far as MAX_OPEN and the models' room allow."""
        if not self._waits_for and (model := self._ask_all(is_our_turn=False)):
            self._waits_for = model
            self._lane.parking.park(self, model, 0)  # 0 bytes: `_keep_backlog` counts the messages one by one
        if self._backlog:
            self._keep_backlog()
        self._count_backlog()

    def resume(self) -> int:
        num_waiting = len(self._backlog)
        model = self._ask_all(is_our_turn=True)
        self._waits_for = model
        self._count_backlog()
        if model and len(self._backlog) == num_waiting:
            return model
        if model:
            self._lane.parking.park(self, model, 0)
        self._end_if_done()
        self._lane.note_output(self._connection)
        return 0

    def _ask_all(self, *, is_our_turn: bool) -> int:
        """Submit messages of the backlog; once all are submitted, credit their bytes to the client. `is_our_turn`:
        parking has found room for the first message. Returns 0, or the model that has no room before a reply has
        come."""
        backlog, parking = self._backlog, self._lane.parking
        while backlog and len(self._open) + len(self._order) < MAX_OPEN and not self._is_over:
            arrival = backlog[0]
            if isinstance(arrival, RefusedMessage):
                self._forget_admission()
                self._refuse(*arrival, self._order.enter())
            elif isinstance(arrival, LargeMessage):
                error = _too_large(arrival) if self._lane.buffers.is_too_large(arrival.nbytes) else _no_room()
                self._refuse(self._protocol.refused_message(error, arrival.begun), error, self._order.enter())
            elif (key := self.opening.key) is not None and key.is_limited and not self._is_admitted(key, arrival):
                if self._undecided:
                    return 0
            elif model := (0 if is_our_turn else parking.must_wait(arrival, self._protocol)) or self._ask(arrival):
                return model
            is_our_turn = False
            if backlog:  # empty if a refusal has ended the stream
                backlog.popleft()
                if self._kept:
                    parking.drop(*self._kept.popleft())
        if not backlog and self._num_uncredited and not self._has_ended:
            self._connection.http2.credit(self._stream_id, self._num_uncredited)
            self._num_uncredited = 0
        return 0

    def _is_admitted(self, key: ApiKey, received: ReceivedMessage) -> bool:
        """Whether the next message, of a key with limits, may be submitted. If not, either the road has still to
        decide, or the road has refused the message, which this method answers with the error."""
        error, self._refusal = self._refusal, None
        if error is not None:
            message = self._protocol.refused_message(error, received.data)
            if received.block is not None:
                self._lane.free(received.block)
                self._backlog[0] = received._replace(data=b"", block=None)
            self._refuse(message, error, self._order.enter())
        elif self._lane.inference.is_exiting:  # the submission will refuse the request
            return True
        elif not (self._admission or self._undecided):
            self._undecided = self._lane.admissions.ask(self, key)
        return self._admission > 0

    def decided(self, number: int, error: ShoalError | None) -> None:
        self._undecided, self._refusal = 0, error
        if error is None:
            self._admission = number
        self._work_off()
        self._end_if_done()
        self._lane.note_output(self._connection)

    def _end_admission(self, admission: int) -> None:
        if admission:
            self._lane.admissions.end(admission)

    def _forget_admission(self) -> None:
        """Give up the admission of the next message, which is not submitted."""
        self._end_admission(self._admission or self._undecided)
        self._admission = self._undecided = 0

    def _keep_backlog(self) -> None:
        """Move waiting messages out of the memory that all models share. In the memory for waiting messages
        (parking.py) they take no more than their model's share: messages beyond it are refused when their turn
        comes."""
        backlog, kept, lane = self._backlog, self._kept, self._lane
        for position in range(len(kept), len(backlog)):
            arrival, counted = backlog[position], (0, 0)
            if isinstance(arrival, ReceivedMessage):
                if (found := lane.parking.keep(arrival, self._protocol)) is None:
                    error = _no_room()
                    backlog[position] = RefusedMessage(self._protocol.refused_message(error, arrival.data), error)
                else:
                    backlog[position], counted = arrival._replace(data=bytes(arrival.data), block=None), found
                if arrival.block is not None:
                    lane.free(arrival.block)
            kept.append(counted)

    def _count_backlog(self) -> None:
        """Count the unconsumed bytes of the backlog against the connection's window."""
        nbytes = self._num_uncredited if self._backlog else 0
        if nbytes != self._num_kept:
            self._connection.http2.keep_received(nbytes - self._num_kept)
            self._num_kept = nbytes

    def _ask(self, received: ReceivedMessage) -> int:
        """Submit a request. Returns 0, or the model that has no room for the request before a reply has come."""
        lane = self._lane
        try:
            number, asked = lane.inference.ask(
                self, self.opening, received, self._connection.begun_s, self._deadline_s, is_stream=True
            )
        except ShoalError as error:
            if isinstance(error, NoRoomError) and lane.parking.may_wait(error.model, received):
                return error.model
            self._forget_admission()
            self._refuse(self._protocol.refused_message(error, received.data), error, self._order.enter())
            return 0
        ticket = None if asked.found.entry.is_decoupled else self._order.enter()
        self._open[number] = PendingRequest(ticket, lane.answer_by_s(), self._admission)
        self._admission = 0
        return 0

    # --- answers go out ---

    def replied(self, number: int, asked: AskedMessage, reply: Reply, timing: str = "") -> None:
        waiting = self._open[number]
        inference = self._lane.inference
        if reply.is_final:
            del self._open[number]
            self._end_admission(waiting.admission)
        else:
            self._open[number] = waiting._replace(deadline_s=self._lane.answer_by_s())
        token = None if reply.block is None else (number, reply.part)
        if reply.is_final and reply.is_empty:
            if token is not None:
                inference.release(*token)
            last = self._protocol.empty_final(asked)
            self._send_in_order(waiting.ticket, None if last is None else OutgoingMessage([last], None))
        else:
            try:
                chunks = self._protocol.response(asked, reply, stream=True, final=reply.is_final)
            except ShoalError as error:
                if token is not None:
                    inference.release(*token)
                message = self._protocol.refused_request(error, asked, final=reply.is_final)
                self._refuse(message, error, waiting.ticket)
            else:
                self._send_in_order(waiting.ticket, self._packed(chunks, token))
        self._lane.note_output(self._connection)
        self._work_off()
        self._end_if_done()

    def _packed(self, chunks: list[bytes | memoryview], token: Token | None) -> OutgoingMessage:
        """A message of the stream; a copy where the worker's memory would otherwise be held until the client has
        read."""
        connection = self._connection
        if token is None:
            return OutgoingMessage(chunks, token)
        queue = connection.http2.streams.queue_of(self._stream_id)
        if queue is None or not queue.nbytes:
            is_copied = len(chunks) == 1
        else:
            nbytes = sum(map(len, chunks))
            is_copied = len(chunks) == 1 or queue.num_lent >= _MAX_LENT or connection.must_keep(self._stream_id)
            is_copied = is_copied and connection.has_room(nbytes)
        if is_copied:
            chunks = chunks if len(chunks) == 1 else [b"".join(chunks)]
            self._lane.inference.release(*token, prompt=False)
            token = None
        return OutgoingMessage(chunks, token)

    def recall(self, is_wanted: Callable[[Token], bool]) -> None:
        self._order.change(lambda answer: self._kept_of(answer, is_wanted))

    def _kept_of(self, answer: OutgoingMessage | None, is_wanted: Callable[[Token], bool]) -> OutgoingMessage | None:
        if answer is None or answer.token is None or not is_wanted(answer.token):
            return answer
        nbytes = sum(map(len, answer.chunks))
        if not self._connection.has_room(nbytes):
            return answer
        copied = OutgoingMessage([b"".join(answer.chunks)], None, nbytes)
        self._connection.keep_waiting(nbytes)
        self._lane.inference.release(*answer.token)
        return copied

    def _send_in_order(self, ticket: int | None, answer: OutgoingMessage | None) -> None:
        for ready in [answer] if ticket is None else self._order.answer(ticket, answer):
            if ready is not None:
                self._send(ready)

    def _send(self, answer: OutgoingMessage) -> None:
        connection, encoding = self._connection, self.opening.response_encoding
        http2 = connection.http2
        if answer.kept_bytes:
            connection.keep_waiting(-answer.kept_bytes)
        if not self._has_begun:
            self._has_begun = True
            http2.send_headers(self._stream_id, headers(encoding))
        chunks = prefixed(answer.chunks, encoding)
        if encoding != IDENTITY and answer.token is not None and connection.has_room(sum(map(len, chunks))):
            self._lane.inference.release(*answer.token, prompt=False)  # compressed chunks are copies
            answer = OutgoingMessage(chunks, None)
        http2.send_data(self._stream_id, chunks, answer.token, self._lane.now_s)
        if http2.num_queued > _READ_SOON_BYTES and self._must_end(answer):
            self._stop()
            connection.cut(self._stream_id)

    def _must_end(self, answer: OutgoingMessage) -> bool:
        """Whether there is no room for a message that was just queued, and the stream must be cut, since its client
        reads too slowly."""
        connection = self._connection
        if answer.token is None:
            return not connection.has_room(0)
        return connection.must_refuse(self._stream_id) and not connection.has_room(sum(map(len, answer.chunks)))

    def _refuse(self, message: bytes, error: ShoalError, ticket: int | None) -> None:
        """Answer a request with an error or, where the protocol says so, end the whole stream with this error."""
        if self._protocol.ends_with_error(self.opening.method.path, self.opening.metadata):
            self.finish(error.grpc_status, str(error))
            return
        self._send_in_order(ticket, OutgoingMessage([message], None))

    def _end_if_done(self) -> None:
        if not self._has_ended or self._is_over or self._open or self._backlog or len(self._order):
            return
        if self._inbox.is_empty:
            self.finish()
        else:
            self.finish(_INTERNAL, "the stream ended before its last message was complete")

    # --- other ends of the call ---

    def finish(self, status: int = 0, message: str = "") -> None:
        """End the stream with this status: 0 once every answer has gone out, or an error."""
        self._stop()
        connection = self._connection
        if not self._has_begun:
            if status:
                connection.refuse(self._stream_id, status, message)
                return
            connection.http2.send_headers(self._stream_id, HEADERS)
        connection.finish(self._stream_id, status, message)

    def end_idle(self, error: ShoalError) -> None:
        if not (self._open or self._backlog or len(self._order)):
            self.finish(error.grpc_status, str(error))

    def cancel(self) -> None:
        self._stop()

    def expire(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self.finish(*self._lane.too_late(self.opening))
            self._lane.note_output(self._connection)
            return
        if (error := self._inbox.late(now_s, is_held_up=bool(self._backlog))) is not None:
            self.finish(error.grpc_status, str(error))
            self._lane.note_output(self._connection)
            return
        late = [number for number, each in self._open.items() if now_s >= each.deadline_s]
        for number in late:
            self._expire_request(number)
        if late:
            self._work_off()
            self._end_if_done()
            self._lane.note_output(self._connection)

    def _expire_request(self, number: int) -> None:
        """Answer a request, whose model has not answered in time, with an error; the stream goes on."""
        if self._is_over:  # an error has ended the stream
            return
        inference = self._lane.inference
        waiting, asked = self._open.pop(number), inference.asked(number)
        self._end_admission(waiting.admission)
        inference.forget(number)
        if asked is not None:
            error = self._lane.no_answer()
            self._refuse(self._protocol.refused_request(error, asked, final=True), error, waiting.ticket)

    def give_up(self) -> None:
        _log.exception("a connection is closed, since answering a stream on it failed")
        self._lane.close(self._connection)

    def _stop(self) -> None:
        """Cancel all requests and release what waits: nothing more is sent on the stream."""
        self._is_over = True
        self._inbox.close()
        inference = self._lane.inference
        for number, waiting in self._open.items():
            inference.forget(number)
            self._end_admission(waiting.admission)
        self._open.clear()
        self._forget_admission()
        for answer in self._order.drain():
            if answer is not None and answer.token is not None:
                inference.release(*answer.token)
            elif answer is not None:
                self._connection.keep_waiting(-answer.kept_bytes)
        parking = self._lane.parking
        parking.leave(self, self._waits_for)
        for counted in self._kept:
            parking.drop(*counted)
        self._kept.clear()
        for arrival in self._backlog:
            if isinstance(arrival, ReceivedMessage) and arrival.block is not None:
                self._lane.free(arrival.block)
        self._backlog.clear()
        self._count_backlog()


def _no_room() -> ShoalError:
    return UnavailableError("Exceeds maximum queue size")


def _too_large(message: LargeMessage) -> ShoalError:
    return InvalidArgumentError(
        f"a streamed request of {message.nbytes} bytes is too large for the shared memory of this front end"
        f"{', compressed as it is' if message.is_compressed else ''}: send it with ModelInfer, send less at once, "
        "or raise --shm-client-slab-mib"
    )

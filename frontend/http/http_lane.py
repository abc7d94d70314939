"""HTTP on a lane: requests that the lane answers by itself, and those that it hands over to the road.

The lane answers whatever cannot block: health, metadata, configuration, statistics, and `infer`, `generate`,
`generate_stream` and OpenAI's completions with a Content-Length and JSON of at most 256 KiB. A body goes straight into
shared memory, a response goes out of the worker's block. A request that the lane is not sure of, or that may take long,
takes the road: the connection is handed over with the bytes already read, and comes back when it is idle again.
"""

import logging
import select
import socket
from collections.abc import Container, Sequence
from typing import Any, Final

from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend.access_log import HttpExchange, address_of
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.http.connection import (
    QUEUED,
    READ_BYTES,
    READING,
    RECEIVING,
    SENDING,
    STREAMING,
    WAITING,
    HttpConnection,
)
from shoal.frontend.http.generations import Generations
from shoal.frontend.http.http_head import MAX_HEAD_BYTES, Head, has_bare_line_feed, parse_head
from shoal.frontend.http.incoming import (
    BODY_S,
    MAX_UNFINISHED_BYTES,
    PATIENCE_S,
    Incoming,
    UnfinishedRequests,
    WaitingBodies,
    WaitingBody,
)
from shoal.frontend.http.lane_api import SMALL_BODY_BYTES, LaneApi, TritonApi
from shoal.frontend.http.outgoing import OutgoingResponses
from shoal.frontend.http.templates import KnownRequest, prepared_of
from shoal.frontend.lane_loop import HEAD_LATE, HEAD_S, LINGER_S, TICK_S, GunicornHandle, Lane
from shoal.frontend.prepared import RoadOnlyError
from shoal.frontend.response import CONTINUE, Response, body_cut_short, response_head
from shoal.frontend.torchserve.lane_api import TorchServeApi
from shoal.frontend.tracing import or_untraced
from shoal.frontend.upload_budget import NoUploadMemoryError, UploadTimeoutError
from shoal.shm.port import NoRoomError, Reply
from shoal.shm.slab import Block

_log = logging.getLogger("shoal")

#: A request that repeats no earlier one may be kept, so that later ones like it are recognised. Of a connection's
#: unrecognised requests in a row, the first EAGER_MISSES are kept, and then one in RARE_MISSES (ours).
EAGER_MISSES, RARE_MISSES = 8, 64
_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_GONE: Final = select.EPOLLHUP | select.EPOLLERR


class HttpLane(Lane[HttpConnection]):
    """Every HTTP connection of one lane."""

    def __init__(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> None:
        super().__init__(front_end, gunicorn)
        self._triton = TritonApi(self._state, self._port)
        self._apis: dict[str, LaneApi] = {
            name: TorchServeApi(self._state, self._port, apis)
            for name, apis in self._state.torchserve_apis.items()
            if "inference" in apis
        }
        self._incoming = Incoming(self._port)
        self._waiting = WaitingBodies(self._begin_large)
        self._unfinished = UnfinishedRequests()
        self._outgoing = outgoing = OutgoingResponses(self._port, self._poller, self._close)
        self._generations = Generations(
            self._state, self._port, self._poller, outgoing, self._resume, self._close, self._place.request_timeout_s
        )
        self._port.on_recall = self._recall
        # The fields below are changed as requests go in and replies come.
        self._pending: dict[int, tuple[HttpConnection, Any] | None] = {}

    def _begin_to_stop(self) -> None:
        self._outgoing.idle_s = LINGER_S
        for connection in self._connections.values():
            connection.close_by(self.now_s + LINGER_S)

    def _forget_admitted(self) -> None:
        self._triton.forget_known()
        for connection in self._connections.values():
            connection.known = None

    # --- connections come and go ---

    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        # A connection that comes back from the road is idle, a new one is about to send a request.
        patience_s = HEAD_S if is_new and not self._stops_at_s else self._outgoing.idle_s
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        api = self._apis.get(self._endpoint_of(accepted), self._triton) if self._apis else self._triton
        connection = self._make_connection(accepted, self.now_s + patience_s, api)
        if self._watch(accepted, connection) and data:
            self._process(connection, data)

    def _make_connection(self, accepted: socket.socket, deadline_s: float, api: LaneApi) -> HttpConnection:
        return HttpConnection(accepted, self.now_s, deadline_s, api)

    def _forget(self, connection: HttpConnection) -> None:
        """Forget a connection that leaves the lane; its request is cancelled, and its blocks are released."""
        del self._connections[connection.fd]
        self._poller.unregister(connection.fd)
        if connection.stage is WAITING:
            self._pending[connection.number] = None
            self._port.cancel(connection.number)
        elif connection.stage is STREAMING:
            self._generations.forget(connection)
        elif connection.stage is QUEUED:
            self._waiting.forget(connection)
        if connection.trace is not None:
            connection.trace.end()
        self._unfinished.release(connection)
        self._incoming.release(connection)
        self._outgoing.forget(connection, self.now_s)

    def _close(self, connection: HttpConnection) -> None:
        self._forget(connection)
        connection.socket.close()

    def _hand_over(self, connection: HttpConnection, data: bytes) -> None:
        """Hand a connection over to the road, which can handle any request."""
        connection.exchange = None
        self._forget(connection)
        self._sources.hand_over(connection.socket, data)

    # --- bytes come in ---

    def _give_up(self, connection: HttpConnection) -> None:
        _log.exception("a connection is closed, since serving it failed")
        if self._connections.get(connection.fd) is connection:
            self._close(connection)

    def _serve(self, connection: HttpConnection, event: int) -> None:
        if event & _GONE:
            self._close(connection)
        elif connection.stage is READING:
            data = connection.read()
            if data and connection.buffer:
                self._unfinished.release(connection)
                self._process(connection, connection.buffer + data)
            elif data:
                connection.begun_s = self.now_s  # these are the first bytes of a request
                connection.deadline_s = self.now_s + HEAD_S
                self._process(connection, data)
            elif data is not None and connection.buffer:
                self._hand_over(connection, connection.buffer)  # the request was cut short: the road refuses it
            elif data is not None:
                self._close(connection)
        elif connection.stage is RECEIVING:
            self._receive(connection)
        elif event & _OUT and connection.stage is STREAMING:
            self._generations.send_rest(connection, self.now_s)
        elif event & _OUT:
            if self._outgoing.send_rest(connection, self.now_s):
                self._resume(connection)
        elif event & _IN:
            self._read_ahead(connection)

    def _read_ahead(self, connection: HttpConnection) -> None:
        """Read once from a client that waits for a response; further bytes wait in the kernel.

        The end of the bytes may mean that the client has gone, or only that it sends no more: the model at work is
        notified, as in Triton. A client that still reads ignores an interim response (RFC 9110, section 15.2) and gets
        the final one; a client that is gone sends a reset, and its queued requests are dropped.
        """
        if len(connection.buffer) < READ_BYTES:
            data = connection.read()
            connection.buffer += data or b""
            if data == b"" and connection.stage is WAITING:
                self._port.cancel(connection.number, is_sure=False)
                connection.send([CONTINUE], len(CONTINUE))
            elif data == b"" and connection.stage is STREAMING and self._generations.doubt(connection):
                connection.send([CONTINUE], len(CONTINUE))
        self._set_quiet(connection, True)

    def _set_quiet(self, connection: HttpConnection, quiet: bool) -> None:
        if quiet != connection.is_quiet:
            connection.is_quiet = quiet
            self._poller.modify(connection.fd, _OUT * bool(connection.unsent) | _IN * (not quiet))

    def _process(self, connection: HttpConnection, data: bytes) -> None:
        """Use received bytes: whole requests are answered, the beginning of a further request is kept."""
        while True:
            connection.buffer = b""
            if self._state.log_access:
                connection.exchange = HttpExchange(data, address_of(connection.socket))
            found = connection.api.find(data, connection.known)
            if found is not None:
                known, values = found
                if self._submit_known(connection, known, values, data):
                    return
            elif connection.known is not None and connection.known.layout.is_head(data):
                connection.buffer = data  # the body is still to come
                return
            end = data.find(b"\r\n\r\n") + 4
            if end == 3:
                if has_bare_line_feed(data):
                    self._refuse_head(connection)
                else:
                    self._keep(connection, data, MAX_HEAD_BYTES, HEAD_S)
                return
            head = connection.api.parse_head(data[:end])
            if head is None or connection.api.is_for_road(head):
                self._hand_over(connection, data)
                return
            connection.keep_alive = head.keep_alive and self._stops_at_s == 0.0
            needed = end + head.content_length
            if len(data) < needed:
                self._begin_body(connection, head, data, end)
                return
            connection.buffer = data[needed:]
            run = self._submit_new if head.is_infer else self._answer
            if not run(connection, head, memoryview(data)[end:needed]) or not connection.buffer:
                return
            data = connection.buffer

    def _refuse_head(self, connection: HttpConnection) -> None:
        """Refuse at once a head whose lines end in bare line feeds: the empty line at its end would never be found."""
        sentence = "a line of the request's head ends in LF, and not in CR LF (RFC 9112, section 2.2)"
        self._refuse_last(connection, InvalidArgumentError(sentence))

    def _keep(self, connection: HttpConnection, data: bytes, limit: int, patience_s: float) -> None:
        if len(data) > limit or not self._unfinished.keep(connection, data, patience_s):
            self._hand_over_begun(connection, data)

    def _begin_body(self, connection: HttpConnection, head: Head, data: bytes, end: int) -> None:
        """Begin to receive an incomplete body: a small one is collected, a large one is received straight into
        shared memory."""
        if head.content_length <= SMALL_BODY_BYTES:  # only infer and generate have larger bodies
            self._keep(connection, data, MAX_HEAD_BYTES + SMALL_BODY_BYTES, BODY_S)
            return
        body = WaitingBody(connection, head, data, end, self.now_s)
        if self._waiting.begin(body):
            self._receive(connection)
        elif self._waiting.add(body):
            connection.stage = QUEUED
            connection.deadline_s = self.now_s + HEAD_S
            self._set_quiet(connection, True)
        else:
            self._hand_over(connection, data)

    def _begin_large(self, body: WaitingBody) -> bool:
        """Begin to receive a large body. False, and no effect, if there is no room for it."""
        connection, head = body.connection, body.head
        # While there is ample room, no model exceeds its share of it, so the model need not be looked up.
        model = 0 if self._port.is_ample else connection.api.model_of(head)
        begun = memoryview(body.data)[body.begun_at :]
        return self._incoming.begin(connection, head, connection.api.place(head), begun, self.now_s, model)

    def _finish_pass(self) -> None:
        """Receive bodies for which there is room by now. Bodies that have waited in vain take the road, where they get
        memory or are refused."""
        if not self._waiting.bodies:
            return
        begun, given_up = self._waiting.look(self.now_s)
        for body in begun:
            try:
                self._set_quiet(body.connection, False)
                self._receive(body.connection)
            except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all
                self._give_up(body.connection)
        for body in given_up:
            body.connection.stage = READING
            self._hand_over(body.connection, body.data)
        self._patience_s = PATIENCE_S if self._waiting.bodies else TICK_S

    def _receive(self, connection: HttpConnection) -> None:
        received = self._incoming.receive(connection)
        if received is None:
            return
        head, block, body = received
        if received.is_complete and head.is_infer:
            self._submit(connection, head, body, None, block)
            return
        text = bytes(body) if received.is_complete else b""
        self._port.slab.free(block.ref)
        if not received.is_complete:
            self._refuse_last(connection, body_cut_short(len(body), head.content_length))
        elif self._answer(connection, head, memoryview(text)):
            self._resume(connection)

    # --- requests go in, responses out ---

    def _submit_new(self, connection: HttpConnection, head: Head, body: memoryview) -> bool:
        """Submit a request that is not known and has come in one piece. True if it was refused and the connection can
        go on at once."""
        before, connection.last_head = connection.last_head, head
        connection.num_missed = num_missed = connection.num_missed + 1
        # Keeping a request costs as much as submitting it, so few requests are kept of a client that repeats none.
        is_kept = num_missed <= EAGER_MISSES or num_missed % RARE_MISSES == 0
        return self._submit(connection, head, body, before if is_kept else None)

    def _submit(
        self,
        connection: HttpConnection,
        head: Head,
        body: memoryview,
        before: Head | None = None,
        block: Block | None = None,
    ) -> bool:
        """Submit a request. True if it was refused and the connection can go on at once."""
        try:
            number, asked = connection.api.submit(head, body, block, before)
        except ShoalError as error:
            # a large body with a place in flight, but no memory on the lane, takes the road, which has other memory
            lacks_memory = block is not None and isinstance(error, NoRoomError) and self._port.has_place(error.model)
            if not (lacks_memory or isinstance(error, RoadOnlyError)):
                return self._refuse(connection, error)
            # the body's block was freed, but the bytes in it are unchanged
            self._hand_over(connection, head.raw + bytes(body) + connection.buffer)
            return False
        self._wait(connection, head, number, asked)
        return False

    def _submit_known(
        self, connection: HttpConnection, known: KnownRequest, values: Sequence[bytes], data: bytes
    ) -> bool:
        """Submit a known request, which is all of `data`. False, and no effect, if it must be parsed in full."""
        head = known.head
        connection.keep_alive = head.keep_alive and self._stops_at_s == 0.0
        try:
            submitted = self._triton.submit_known(known, values)
        except RoadOnlyError:
            self._hand_over(connection, data)
        except ShoalError as error:
            self._refuse(connection, error)
        else:
            if submitted is None:
                return False
            if connection.known is not known:
                connection.known = known
                connection.num_missed = 0
            if known.layout.num_fields and (self._state.tracing is not None or head.wants_timing):
                head = parse_head(data[: data.find(b"\r\n\r\n") + 4]) or head  # a field may name the trace
            number, asked = submitted
            self._wait(connection, head, number, asked)
        return True

    def _refuse(self, connection: HttpConnection, error: ShoalError) -> bool:
        """Respond with an error. True if the connection can go on at once."""
        return self._outgoing.respond(connection, connection.api.refusal(connection, error), self.now_s)

    def _refuse_last(self, connection: HttpConnection, error: ShoalError) -> None:
        connection.keep_alive = False
        self._refuse(connection, error)

    def _wait(self, connection: HttpConnection, head: Head, number: int, asked: Any) -> None:
        connection.stage = WAITING
        connection.number = number
        connection.deadline_s = self.now_s + self._place.request_timeout_s
        self._pending[number] = (connection, asked)
        if self._state.tracing is not None or head.wants_timing:
            self._trace(connection, head, asked)

    def _trace(self, connection: HttpConnection, head: Head, asked: Any) -> None:
        """Begin a request's trace, if it is sampled or its client asks for its times."""
        tracing = or_untraced(self._state.tracing, self._state.models.names)
        trace = connection.trace = tracing.sample(prepared_of(asked), head.headers)
        if trace is not None:
            block, span, start_ns = self._port.submitted(connection.number)
            trace.received(int(connection.begun_s * 1e9), start_ns)
            trace.submitted(block, span)
            trace.announce(self._port, connection.number)

    def _answer(self, connection: HttpConnection, head: Head, body: memoryview) -> bool:
        """Run a handler that cannot block. True if the connection can go on at once."""
        found = head.found
        if not isinstance(found, Response) and found.is_generation:
            return self._generate(connection, head, body)
        response = connection.api.answer(connection, head, body)
        if head.is_head:
            return self._outgoing.send(connection, [response_head(response)], self.now_s)
        return self._outgoing.respond(connection, response, self.now_s)

    def _generate(self, connection: HttpConnection, head: Head, body: memoryview) -> bool:
        """Submit a request that a Rendering answers. True if it was refused and the connection can go on at once."""
        try:
            prepared = self._generations.begin(connection, head, body, self.now_s)
        except ShoalError as error:
            refuse = None if isinstance(head.found, Response) else head.found.refuse
            response = connection.api.refusal(connection, error) if refuse is None else refuse(error)
            return self._outgoing.respond(connection, response, self.now_s)
        if self._state.tracing is not None or head.wants_timing:
            self._trace(connection, head, prepared)
        return False

    def _recall(self, segments: Container[int], is_urgent: bool) -> None:
        self._outgoing.recall(segments, self.now_s, is_urgent=is_urgent)
        self._generations.recall(segments, self.now_s, is_urgent=is_urgent)

    def _deliver(self) -> None:
        for reply in self._port.poll():
            # A request in `_pending` is answered once, by its last reply.
            waiting = self._pending.pop(reply.number, None) if reply.is_final else None
            if waiting is None:
                self._deliver_generated(reply)
                continue
            release = reply.number if reply.block is not None else 0
            connection, asked = waiting
            try:
                self._reply(connection, asked, reply, release)
            except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all
                self._give_up(connection)

    def _deliver_generated(self, reply: Reply) -> None:
        connection = self._generations.connection_of(reply.number)
        if connection is None:  # the request was cancelled
            if reply.block is not None:
                self._port.release(reply.number, reply.part)
            return
        try:
            self._generations.replied(connection, reply, self.now_s)
        except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all
            self._give_up(connection)

    def _reply(self, connection: HttpConnection, asked: Any, reply: Reply, release: int) -> None:
        connection.stage = READING
        connection.release = release  # released once the response is sent, whatever fails
        if connection.trace is not None:
            connection.trace.replied(reply)
        chunks = connection.api.known_response(asked, reply) or connection.api.rendered(connection, asked, reply)
        if self._outgoing.send(connection, chunks, self.now_s) and (connection.buffer or connection.is_quiet):
            self._resume(connection)

    def _resume(self, connection: HttpConnection) -> None:
        """Read on from a connection whose response has left; its next request may have come already."""
        self._set_quiet(connection, False)
        connection.begun_s = self.now_s
        data, connection.buffer = connection.buffer, b""
        if data:
            self._process(connection, data)

    # --- time passes ---

    def _tick(self) -> None:
        now_s = self.now_s
        self._outgoing.given_up.log(now_s)
        for connection in [each for each in self._connections.values() if each.deadline_s <= now_s]:
            if connection.stage is WAITING:
                self._time_out(connection)
            elif connection.stage is STREAMING:
                self._generations.expire(connection, now_s)
            elif connection.stage is not SENDING:
                self._end_late(connection)
            elif not self._outgoing.hold_no_longer(connection, now_s):
                self._close(connection)

    def _end_late(self, connection: HttpConnection) -> None:
        """End the wait for a request that has not come whole in time. One whose head has come is handed over to the
        road, which waits longer, in memory of its own; a late head is refused."""
        begun = self._incoming.take_back(connection) if connection.stage is RECEIVING else connection.buffer
        if not begun:
            self._close(connection)
        elif self._stops_at_s and self.now_s < connection.begun_s + HEAD_S:
            connection.deadline_s = connection.begun_s + HEAD_S  # the lane goes on waiting: the road may have ended
        elif not self._stops_at_s and b"\r\n\r\n" in begun:
            self._hand_over_begun(connection, begun)
        else:
            sentence = "the request has not come whole, and the server ends" if self._stops_at_s else HEAD_LATE
            self._refuse_last(connection, UploadTimeoutError(sentence))

    def _hand_over_begun(self, connection: HttpConnection, begun: bytes) -> None:
        """Have the road receive the rest of a request; refuse the request if, with it, the bytes that the road has not
        taken yet would exceed MAX_UNFINISHED_BYTES."""
        if self._sources.waiting_nbytes + len(begun) <= MAX_UNFINISHED_BYTES:
            self._hand_over(connection, begun)
        else:
            self._refuse_last(connection, NoUploadMemoryError(MAX_UNFINISHED_BYTES))

    def _time_out(self, connection: HttpConnection) -> None:
        self._pending[connection.number] = None
        self._port.cancel(connection.number)
        connection.stage = READING
        if self._refuse(connection, self._state.no_answer(self._place.request_timeout_s)):
            self._resume(connection)

    def _refuse_all(self) -> None:
        for connection in list(self._connections.values()):
            connection.keep_alive = False
            if connection.stage is WAITING:
                self._time_out(connection)
            elif connection.stage is STREAMING:
                self._generations.expire(connection, self.now_s)
            elif connection.stage in (RECEIVING, QUEUED) or (connection.stage is READING and connection.buffer):
                self._incoming.release(connection)
                self._waiting.forget(connection)
                connection.stage = READING
                self._refuse(connection, self._state.no_answer(self._place.request_timeout_s))

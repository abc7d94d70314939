"""`generate`, `generate_stream` and OpenAI's completions on a lane: requests go in, a Rendering (generation.py) makes
text of each reply, and a stream sends each text as a chunk.

The JSON of a reply is rendered when the reply comes, and the worker's block released. Text that the client's socket
does not take is kept, within the connection's share of the lane's kept memory (kept_memory.py). Where there is no room
for its text, a reply keeps its block until the client has read more; a model with 32 unread replies to a request waits.
If the worker runs out of memory meanwhile, and none can be freed elsewhere, connections whose clients left replies
unread for HOLD_S are closed.

One thread, the lane's. Rules: nothing blocks; a connection has one generation at most, while its stage is STREAMING.
"""

import select
import time
from collections import deque
from collections.abc import Callable, Container

from shoal.errors import ShoalError
from shoal.frontend.call import HandlerCall
from shoal.frontend.generation import PLANNERS, Rendering
from shoal.frontend.header_forwarding import NOTHING, forwarded
from shoal.frontend.http.connection import READING, STREAMING, HttpConnection
from shoal.frontend.http.http_head import Head
from shoal.frontend.http.outgoing import OutgoingResponses
from shoal.frontend.kept_memory import HOLD_S, SEND_S
from shoal.frontend.prepared import PreparedRequest, submit_copy
from shoal.frontend.recorded_headers import as_answered, with_headers
from shoal.frontend.response import Headers, Response, status_and_fields
from shoal.frontend.router import RouteMatch
from shoal.frontend.state import ServerState
from shoal.shm.port import Port, Reply
from shoal.star.refusal import answered, other_version

#: The last chunk of a body in chunked transfer coding, and the end of its (empty) trailers (RFC 9112, section 7.1).
LAST_CHUNK = b"0\r\n\r\n"
#: The most bytes of one piece of unread text (ours): small events are joined into such pieces, and no join copies more
#: bytes than a piece has.
_PIECE_BYTES = 64 * 1024


class Generation:
    """A request of one connection that a Rendering answers, and how much of the answer has been sent."""

    __slots__ = ("connection", "has_begun", "is_cancelled", "num_unsent", "rendering", "unread")

    def __init__(self, connection: HttpConnection, rendering: Rendering) -> None:
        self.connection = connection
        self.rendering = rendering
        # The fields below are changed by Generations.
        self.has_begun = False  # whether the head of a stream has been sent
        self.is_cancelled = False
        self.num_unsent = 0  # bytes that the client's socket has not taken
        self.unread: deque[tuple[Reply, float]] = deque()  # replies without room for their text, and when they came


class Generations:
    """All generations of one lane."""

    def __init__(
        self,
        state: ServerState,
        port: Port,
        poller: select.epoll,
        outgoing: OutgoingResponses,
        resume: Callable[[HttpConnection], None],
        close: Callable[[HttpConnection], None],
        timeout_s: float,
    ) -> None:
        """`resume` continues with a connection whose response has been sent, `close` ends a connection; `timeout_s` is
        how long the model may take for each response."""
        self._state = state
        self._port = port
        self._poller = poller
        self._outgoing = outgoing
        self._resume = resume
        self._close = close
        self._timeout_s = timeout_s
        # Changed by every method: the generations, by the request's number.
        self._open: dict[int, Generation] = {}

    # --- requests go in ---

    def begin(self, connection: HttpConnection, head: Head, body: memoryview, now_s: float) -> PreparedRequest:
        """Submit a request, whose replies go to `replied`. Raises ShoalError, with no effect, if the request is
        refused."""
        start_ns = time.monotonic_ns()
        state, found = self._state, head.found
        assert isinstance(found, RouteMatch), "a refusal has no model"
        pattern = state.header_forward_pattern
        fields = forwarded(pattern, head.raw) if pattern else NOTHING
        call = HandlerCall(state, None, head.headers, body, found.name, found.version, found.query, fields)
        plan = PLANNERS[found.handler](call)
        rendering = plan.prepare(state.models.lookup(plan.name, plan.version))
        rendering.prepared = prepared = with_headers(rendering.prepared, state.recorded_headers, head.headers)
        connection.number = number = submit_copy(self._port, prepared, start_ns)
        connection.stage = STREAMING
        connection.deadline_s = now_s + self._timeout_s
        self._open[number] = Generation(connection, rendering)
        return prepared

    def forget(self, connection: HttpConnection) -> None:
        """Cancel the request of a connection that ends, and release the replies that were not read. Unsent bytes stay
        with the connection."""
        generation = self._open[connection.number]
        self._cancel(generation)
        self._forget_replies(generation)

    def _forget_replies(self, generation: Generation) -> None:
        del self._open[generation.connection.number]
        for reply, _ in generation.unread:
            self._release(reply)
        generation.unread.clear()

    def doubt(self, connection: HttpConnection) -> bool:
        """Notify the model that the client may have gone. Returns whether the client can still be probed with an
        interim response, which is possible until the head of the response has been sent."""
        generation = self._open[connection.number]
        if not generation.is_cancelled:
            self._port.cancel(connection.number, is_sure=False)
        return not generation.has_begun

    def _cancel(self, generation: Generation) -> None:
        """Cancel a request, unless it has ended or was cancelled before."""
        if not generation.is_cancelled:
            generation.is_cancelled = True
            self._port.cancel(generation.connection.number)

    # --- replies become events ---

    def connection_of(self, number: int) -> HttpConnection | None:
        """The connection that waits for replies to a request; None if no connection does."""
        generation = self._open.get(number)
        return None if generation is None else generation.connection

    def replied(self, connection: HttpConnection, reply: Reply, now_s: float) -> None:
        """Handle a reply to the request that a connection waits for."""
        generation = self._open[reply.number]
        if generation.unread or not self._has_room(generation, reply):
            generation.unread.append((reply, now_s))
            return
        if not generation.num_unsent:
            connection.deadline_s = now_s + self._timeout_s
        self._take(generation, reply, now_s)

    def _has_room(self, generation: Generation, reply: Reply) -> bool:
        """Whether there is room for the text of one more reply beside the text that the client has not read."""
        if not generation.num_unsent:
            return True
        nbytes = 0 if reply.block is None else len(reply.block)
        return self._outgoing.kept.has_room(generation.num_unsent, nbytes)

    def _take(self, generation: Generation, reply: Reply, now_s: float) -> None:
        """Render a reply and send its text; the generation may have ended afterwards."""
        is_final = reply.is_final
        trace = generation.connection.trace
        if is_final and trace is not None:
            trace.replied(reply)
        data: bytes | ShoalError = b""
        if is_final and reply.is_empty:
            self._release(reply)
        else:
            data = self._rendered(generation, reply)
        is_last = is_final or generation.rendering.is_complete
        if is_final:
            generation.is_cancelled = True  # the model has ended the request by itself
        if generation.rendering.is_stream:
            self._send_part(generation, data, now_s, is_last=is_last)
        elif isinstance(data, ShoalError):
            self._end_with(generation, generation.rendering.refusal(data), now_s)
        elif is_last:
            self._end_with(generation, _body(generation.rendering), now_s)

    def _rendered(self, generation: Generation, reply: Reply) -> bytes | ShoalError:
        """The bytes that a stream sends for a reply, or the error instead; the reply is released."""
        rendering = generation.rendering
        prepared = rendering.prepared
        try:
            _, response, block = answered(prepared.entry, prepared.id, reply, prepared.correlation_id)
            if version := other_version(reply):
                rendering.prepared = as_answered(rendering.prepared, version)
            return rendering.add(response, block)
        except ShoalError as error:
            return error.with_traceback(None)  # the traceback would keep views of the worker's memory
        finally:
            self._release(reply)

    def _release(self, reply: Reply) -> None:
        if reply.block is not None:
            self._port.release(reply.number, reply.part)

    # --- one response ---

    def _end_with(self, generation: Generation, response: Response, now_s: float) -> None:
        """End a request, of whose response nothing has been sent, with this whole response."""
        connection = generation.connection
        self.forget(connection)
        connection.stage = READING
        if self._outgoing.respond(connection, response, now_s):
            self._resume(connection)

    # --- a stream of events ---

    def _send_part(self, generation: Generation, data: bytes | ShoalError, now_s: float, *, is_last: bool) -> None:
        """Send a part of a stream and, if it is the last, the end of the stream. An error before any part also
        determines the status of the response."""
        rendering = generation.rendering
        status, headers = 200, rendering.headers
        if isinstance(data, ShoalError):
            status, headers, data, is_over = rendering.failed(data, has_begun=generation.has_begun)
            is_last = is_last or is_over
        elif is_last:
            data += rendering.end()
        framed = b"" if generation.has_begun else self._begin_stream(generation, status, headers)
        if data:
            framed += b"%x\r\n%b\r\n" % (len(data), data)
        if is_last:
            framed += LAST_CHUNK
            self._cancel(generation)  # has no effect if the model has ended the request
        if not framed:
            return
        if not self._send(generation, framed, now_s) or not is_last:
            return
        connection = generation.connection
        self._forget_replies(generation)
        connection.stage = READING
        if generation.num_unsent:
            self._outgoing.begin_rest(connection, now_s)
        elif self._outgoing.sent(connection, now_s):
            self._resume(connection)

    def _begin_stream(self, generation: Generation, status: int, headers: Headers) -> bytes:
        generation.has_begun = True
        connection = generation.connection
        if connection.trace is not None:
            connection.trace.sending()
        if connection.exchange is not None:
            connection.exchange.status = status
        close = "" if connection.keep_alive else "Connection: close\r\n"
        return f"{status_and_fields(status, headers)}{close}Transfer-Encoding: chunked\r\n\r\n".encode("latin-1")

    def _send(self, generation: Generation, data: bytes, now_s: float) -> bool:
        """Send bytes, and keep those that the socket does not take. Returns false if the connection had to be
        closed."""
        connection = generation.connection
        if connection.exchange is not None:
            connection.exchange.nbytes += len(data)
        if generation.num_unsent:
            _append(connection, data)
            generation.num_unsent += len(data)
            self._outgoing.kept.nbytes += len(data)
            return True
        if not connection.send([data], len(data)):
            self._close(connection)
            return False
        if connection.unsent:
            generation.num_unsent = num_unsent = connection.num_unsent
            connection.unsent = [bytearray(connection.unsent[0])]
            self._outgoing.kept.nbytes += num_unsent
            connection.deadline_s = now_s + SEND_S
            self._watch(connection)
        return True

    def send_rest(self, connection: HttpConnection, now_s: float) -> None:
        """Continue sending when the socket takes more; then handle the replies that had no room."""
        generation = self._open[connection.number]
        before = generation.num_unsent
        if not connection.send(connection.unsent, before):
            self._close(connection)
            return
        generation.num_unsent = after = connection.num_unsent
        self._outgoing.kept.nbytes -= before - after
        connection.deadline_s = now_s + (SEND_S if after else self._timeout_s)
        if not after:
            self._watch(connection)
        unread = generation.unread
        while unread and self._open.get(connection.number) is generation and self._has_room(generation, unread[0][0]):
            self._take(generation, unread.popleft()[0], now_s)

    def _watch(self, connection: HttpConnection) -> None:
        """Have the poller report room in the socket as long as there are unsent bytes, and bytes to read unless the
        connection is quiet."""
        wanted = select.EPOLLOUT if connection.unsent else 0
        self._poller.modify(connection.fd, wanted if connection.is_quiet else wanted | select.EPOLLIN)

    # --- time passes, memory is short ---

    def expire(self, connection: HttpConnection, now_s: float) -> None:
        """End the generation of a connection if the model has not answered in time, or if the client has read nothing
        for SEND_S."""
        generation = self._open[connection.number]
        if generation.num_unsent:
            self._close(connection)
            return
        error = self._state.no_answer(self._timeout_s)
        if not generation.has_begun:
            self._end_with(generation, generation.rendering.refusal(error), now_s)
            return
        self._cancel(generation)
        self._send_part(generation, error, now_s, is_last=True)

    def recall(self, segments: Container[int], now_s: float, *, is_urgent: bool) -> None:
        """Release the memory of a worker that lacks memory: render the unread replies in these segments for whose text
        there is room by now; with `is_urgent`, close connections whose clients have left such replies unread for
        HOLD_S."""
        for generation in [each for each in self._open.values() if each.unread]:
            connection, unread = generation.connection, generation.unread
            number = connection.number
            if not any(self._port.lies_in(each.number, each.part, segments) for each, _ in unread):
                continue
            while unread and self._open.get(number) is generation and self._has_room(generation, unread[0][0]):
                self._take(generation, unread.popleft()[0], now_s)
            if is_urgent and unread and now_s - unread[0][1] >= HOLD_S:
                self._close(connection)
                self._outgoing.given_up.add(now_s)


def _body(rendering: Rendering) -> Response:
    try:
        return rendering.body()
    except ShoalError as error:
        return rendering.refusal(error)


def _append(connection: HttpConnection, data: bytes) -> None:
    """Add bytes to those that the socket has not taken yet."""
    last = connection.unsent[-1]
    if isinstance(last, bytearray) and len(last) < _PIECE_BYTES:
        last += data
    else:
        connection.unsent.append(bytearray(data))

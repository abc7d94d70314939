"""The lane's loop: one thread, one epoll, HTTP without ever waiting for anything but that epoll.

It answers whatever cannot block: health, metadata, configuration, statistics, and `infer` with a Content-Length and
JSON of at most 256 KiB. A body goes straight into shared memory, a response goes out of the worker's block. One pass of
the loop handles all that is ready and rings the batcher once. What it is not sure of, or what may take long, takes the
road: the connection is handed over with the bytes already read, and comes back when it is idle again.
"""

import logging
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shoal.client.place import REPLIES_FIRST
from shoal.errors import ShoalError
from shoal.frontend.connection import READ_BYTES, READING, RECEIVING, SENDING, WAITING, Connection
from shoal.frontend.doors import Doors
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.http_head import MAX_HEAD_BYTES, Head, parse_head
from shoal.frontend.incoming import HEAD_S, Incoming
from shoal.frontend.outgoing import Outgoing
from shoal.frontend.response import Response, body_cut_short, error_response, no_answer
from shoal.frontend.router import HTTP, answer
from shoal.frontend.submission import Asked, Known, Submission
from shoal.frontend.tracing import Tracing
from shoal.frontend.v2.infer import PreparedRequest
from shoal.options import SLAB_PARTS
from shoal.shm.port import Reply
from shoal.shm.slab import Block

_log = logging.getLogger("shoal")

#: JSON longer than this takes milliseconds to parse, during which the lane would answer nobody (10 ms a MB, measured).
MAX_JSON_BYTES = 256 * 1024
#: A body up to this comes with its head in one read; it is copied into its block. A larger one is received there.
SMALL_BODY_BYTES = 48 * 1024
#: Open connections of one lane; further ones wait in the kernel.
MAX_CONNECTIONS = 10_000
#: How long a stopping lane leaves idle connections open for a request that is on its way already.
LINGER_S = 2.0
_TICK_S = 0.5
_IN, _OUT, _GONE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR


class Lane:
    """The loop and every connection of one process."""

    def __init__(
        self,
        front_end: FrontEnd,
        listeners: list[Any],
        wakeup_fd: int,
        is_alive: Callable[[], bool],
        notify: Callable[[], None],
    ) -> None:
        self._front_end = front_end
        self._state = front_end.state
        self._place = front_end.place
        self._port = front_end.place.port
        self._largest_body_nbytes = self._port.slab.largest_nbytes // SLAB_PARTS
        self._submission = Submission(self._state, self._port)
        self._wakeup_fd = wakeup_fd
        self._is_alive = is_alive
        self._notify = notify
        self._poller = select.epoll()
        self._doors = Doors(self._poller, listeners)
        self._incoming = Incoming(self._port)
        self._outgoing = Outgoing(self._port, self._poller, self._close)
        # Changed by every pass of the loop.
        self._connections: dict[int, Connection] = {}
        self._pending: dict[int, tuple[Connection, Asked] | None] = {}
        self._now_s = time.monotonic()
        self._stops_at_s = 0.0

    def run(self, graceful_timeout_s: float) -> None:
        """Serve; after `is_alive` has turned false, until nothing is in flight or the time is over."""
        self._doors.open()
        for fd in (self._place.bell.fd, self._place.channel.fileno(), self._wakeup_fd):
            self._poller.register(fd, select.EPOLLIN)
        next_tick_s = 0.0
        while not self._is_done(graceful_timeout_s):
            events = self._poller.poll(_TICK_S)
            self._now_s = time.monotonic()
            others = []
            for fd, event in events:
                connection = self._connections.get(fd)
                if connection is None:
                    others.append(fd)
                else:
                    try:
                        self._serve(connection, event)
                    except Exception:  # noqa: BLE001  the rim: a fault of ours costs one connection, not all of them
                        self._give_up(connection)
            # New connections last: one could have got the descriptor of one that was closed in this very pass.
            for fd in others:
                self._on_other(fd)
            self._port.flush()
            if self._now_s >= next_tick_s:
                next_tick_s = self._now_s + _TICK_S
                self._notify()
                self._tick()
        self._doors.end()

    def _is_done(self, graceful_timeout_s: float) -> bool:
        if self._is_alive():
            return False
        if not self._stops_at_s:
            self._stops_at_s = self._now_s + graceful_timeout_s
            self._outgoing.idle_s = LINGER_S
            for accepted, data in self._doors.close():
                self._add(accepted, data, LINGER_S)
            for connection in self._connections.values():
                if connection.stage is READING:
                    connection.deadline_s = min(connection.deadline_s, self._now_s + LINGER_S)
        is_idle = not self._connections and not self._doors.is_busy
        return is_idle or self._now_s >= self._stops_at_s

    def _on_other(self, fd: int) -> None:
        if fd == self._place.bell.fd:
            self._deliver()
        elif fd == self._place.channel.fileno():
            self._receive_message()
        elif fd == self._wakeup_fd:
            self._drain_wakeup()
        else:
            # What the road gives back is between two requests, what comes from outside is about to ask.
            patience_s = HEAD_S if self._doors.leads_outside(fd) else self._outgoing.idle_s
            for accepted, data in self._doors.enter(fd):
                self._add(accepted, data, patience_s)
            if len(self._connections) >= MAX_CONNECTIONS:
                self._doors.shut()

    def _receive_message(self) -> None:
        message, fds = self._place.channel.receive()
        if message["op"] in REPLIES_FIRST:
            self._deliver()
        self._front_end.apply(message, fds)

    def _drain_wakeup(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wakeup_fd, 4096)

    # --- connections come and go ---

    def _add(self, accepted: socket.socket, data: bytes, patience_s: float) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(accepted, self._now_s, self._now_s + patience_s)
        self._connections[connection.fd] = connection
        self._poller.register(connection.fd, select.EPOLLIN)
        if data:
            self._process(connection, data)

    def _forget(self, connection: Connection) -> None:
        """The connection is no longer ours; what it holds in shared memory is given back."""
        del self._connections[connection.fd]
        self._poller.unregister(connection.fd)
        if connection.stage is WAITING:
            self._pending[connection.number] = None
            self._port.cancel(connection.number)
        if connection.trace is not None:
            connection.trace.end()
        self._incoming.release(connection)
        self._outgoing.release(connection)

    def _close(self, connection: Connection) -> None:
        self._forget(connection)
        connection.socket.close()

    def _hand_over(self, connection: Connection, data: bytes) -> None:
        """Whatever it is, the road copes with it."""
        self._forget(connection)
        self._doors.leave(connection.socket, data)

    # --- bytes come in ---

    def _give_up(self, connection: Connection) -> None:
        _log.exception("a connection is closed, since serving it failed")
        if self._connections.get(connection.fd) is connection:
            self._close(connection)

    def _serve(self, connection: Connection, event: int) -> None:
        if event & _GONE:
            self._close(connection)
        elif connection.stage is READING:
            data = connection.read()
            if data and connection.buffer:
                self._process(connection, connection.buffer + data)
            elif data:
                connection.begun_s = self._now_s  # the first bytes of a request
                connection.deadline_s = self._now_s + HEAD_S
                self._process(connection, data)
            elif data is not None and connection.buffer:
                self._hand_over(connection, connection.buffer)  # cut short: the road says so
            elif data is not None:
                self._close(connection)
        elif connection.stage is RECEIVING:
            self._receive(connection)
        elif event & _OUT:
            if self._outgoing.send_rest(connection, self._now_s):
                self._resume(connection)
        elif event & _IN:
            self._read_ahead(connection)

    def _read_ahead(self, connection: Connection) -> None:
        """The client sends while it is owed an answer: one read of it is kept, the rest waits in the kernel.

        Its end may mean that it has gone, or that it has closed its side only: a model that is at work is told, as
        Triton tells it, and the answers are still sent.
        """
        if len(connection.buffer) < READ_BYTES:
            data = connection.read()
            connection.buffer += data or b""
            if data == b"" and connection.stage is WAITING:
                self._port.cancel(connection.number, is_sure=False)
        self._set_quiet(connection, True)

    def _set_quiet(self, connection: Connection, quiet: bool) -> None:
        if quiet != connection.is_quiet:
            connection.is_quiet = quiet
            wanted = _OUT if connection.stage is SENDING else 0
            self._poller.modify(connection.fd, wanted if quiet else wanted | _IN)

    def _process(self, connection: Connection, data: bytes) -> None:
        """Use up what has come: whole requests are answered, the beginning of one is kept."""
        while True:
            connection.buffer = b""
            known = self._submission.find(data[: connection.prefix_nbytes], len(data))
            if known is not None:
                self._submit_known(connection, known, data)
                return
            end = data.find(b"\r\n\r\n") + 4
            if end == 3:
                self._keep(connection, data, MAX_HEAD_BYTES)
                return
            raw = data[:end]
            head = parse_head(raw)
            if head is None or self._is_for_road(head):
                self._hand_over(connection, data)
                return
            connection.keep_alive = head.keep_alive and self._stops_at_s == 0.0
            connection.prefix_nbytes = end + (head.json_length or 0)
            needed = end + head.content_length
            if len(data) < needed:
                self._begin_body(connection, head, data, end)
                return
            connection.buffer = data[needed:]
            run = self._submit if head.is_infer else self._answer
            if not run(connection, head, memoryview(data)[end:needed], raw) or not connection.buffer:
                return
            data = connection.buffer

    def _is_for_road(self, head: Head) -> bool:
        if HTTP.restricted(self._state, head.path, head.headers):
            return True  # it says so; what is let through here may be Known, and is by all of its head
        if isinstance(head.found, Response) and head.content_length:
            return True  # refused unread: closing without losing the answer is the road's
        if not head.is_infer:
            waits = not isinstance(head.found, Response) and head.found.asks_model(self._state)
            return waits or head.content_length > SMALL_BODY_BYTES
        json_length = head.content_length if head.json_length is None else head.json_length
        return json_length > MAX_JSON_BYTES or head.content_length > self._largest_body_nbytes

    def _keep(self, connection: Connection, data: bytes, limit: int) -> None:
        if len(data) > limit:
            self._hand_over(connection, data)
            return
        connection.buffer = data

    def _begin_body(self, connection: Connection, head: Head, data: bytes, end: int) -> None:
        """A body is still on its way: a small one is collected, a large one goes straight into shared memory."""
        if not head.is_infer or head.content_length <= SMALL_BODY_BYTES:
            self._keep(connection, data, MAX_HEAD_BYTES + SMALL_BODY_BYTES)
            return
        # Without room it waits for memory, or is refused; either takes reading the body.
        if self._incoming.begin(connection, head, memoryview(data)[end:], self._now_s):
            self._receive(connection)
        else:
            self._hand_over(connection, data)

    def _receive(self, connection: Connection) -> None:
        received = self._incoming.receive(connection)
        if received is None:
            return
        head, block, body = received
        if received.is_complete:
            self._submit(connection, head, body, b"", block)
            return
        self._port.slab.free(block.ref)
        connection.keep_alive = False
        error = body_cut_short(len(body), head.content_length)
        self._outgoing.respond(connection, error_response(error), self._now_s)

    # --- requests go in, responses out ---

    def _submit(
        self, connection: Connection, head: Head, body: memoryview, raw: bytes, block: Block | None = None
    ) -> bool:
        """Queue a request. True where it was refused and the connection can go on at once."""
        try:
            number, asked = self._submission.submit(head, body, block, raw)
        except ShoalError as error:
            return self._outgoing.respond(connection, error_response(error), self._now_s)
        self._wait(connection, head, number, asked)
        return False

    def _submit_known(self, connection: Connection, known: Known, data: bytes) -> None:
        """Queue a request that is all of `data`."""
        connection.keep_alive = known.keep_alive and self._stops_at_s == 0.0
        try:
            number, asked = self._submission.submit_known(known, data)
        except ShoalError as error:
            self._outgoing.respond(connection, error_response(error), self._now_s)
        else:
            self._wait(connection, known.head, number, asked)

    def _wait(self, connection: Connection, head: Head, number: int, asked: Asked) -> None:
        connection.stage = WAITING
        connection.number = number
        connection.deadline_s = self._now_s + self._place.request_timeout_s
        self._pending[number] = (connection, asked)
        if self._state.tracing is not None:
            self._trace(self._state.tracing, connection, head, asked)

    def _trace(self, tracing: Tracing, connection: Connection, head: Head, asked: Asked) -> None:
        """Begin a request's trace, where it is to be traced."""
        prepared = asked if isinstance(asked, PreparedRequest) else asked.prepared
        trace = connection.trace = tracing.sample(prepared, head.headers)
        if trace is not None:
            block, span, start_ns = self._port.submitted(connection.number)
            trace.received(int(connection.begun_s * 1e9), start_ns)
            trace.submitted(block, span)
            self._port.trace(connection.number)

    def _answer(self, connection: Connection, head: Head, body: memoryview, _raw: bytes) -> bool:
        """Run a handler that cannot block. True where the connection can go on at once."""
        found = head.found
        if not isinstance(found, Response):
            found = answer(found, self._state, None, head.headers, body)
        return self._outgoing.respond(connection, found, self._now_s)

    def _deliver(self) -> None:
        """Every reply that has come becomes a response."""
        self._place.bell.clear()
        for reply in self._port.poll():
            if not reply.is_final:  # a model that answers here does so once: by its last reply
                self._port.release(reply.number, reply.part)
                continue
            waiting = self._pending.pop(reply.number, None)
            release = reply.number if reply.block is not None else 0
            if waiting is None:
                if release:
                    self._port.release(release)
                continue
            connection, asked = waiting
            try:
                self._reply(connection, asked, reply, release)
            except Exception:  # noqa: BLE001  the rim: a fault of ours costs one connection, not all of them
                self._give_up(connection)

    def _reply(self, connection: Connection, asked: Asked, reply: Reply, release: int) -> None:
        connection.stage = READING
        connection.release = release  # until it is sent: whatever fails, it is given back
        if connection.trace is not None:
            connection.trace.replied(reply)
        chunks = self._submission.known_response(asked, reply) or self._submission.response(asked, reply)
        if self._outgoing.send(connection, chunks, self._now_s) and (connection.buffer or connection.is_quiet):
            self._resume(connection)

    def _resume(self, connection: Connection) -> None:
        """Ready for the next request, which may have come already."""
        self._set_quiet(connection, False)
        connection.begun_s = self._now_s
        data, connection.buffer = connection.buffer, b""
        if data:
            self._process(connection, data)

    # --- time passes ---

    def _tick(self) -> None:
        now_s = self._now_s
        if len(self._connections) < MAX_CONNECTIONS and not self._stops_at_s:
            self._doors.reopen()
        for connection in [each for each in self._connections.values() if each.deadline_s <= now_s]:
            if connection.stage is WAITING:
                self._time_out(connection)
            elif not (connection.stage is SENDING and self._outgoing.hold_no_longer(connection, now_s)):
                self._close(connection)

    def _time_out(self, connection: Connection) -> None:
        self._pending[connection.number] = None
        self._port.cancel(connection.number)
        connection.stage = READING
        error = no_answer(self._place.request_timeout_s)
        if self._outgoing.respond(connection, error_response(error), self._now_s):
            self._resume(connection)

"""Guests: users' processes that connect to a socket in the file system, and submit requests as front ends do.

    connect (same user) ─► join ─► own segment, link, bell ─► models ─► started ─► asks ─► hangs up, or is hung up on

A guest may send anything, send nothing, or stand still with what it was given. So its messages are checked here; no
process waits for it; segments are announced to it only when it asks, since messages that it does not read hold
descriptors. Its connection is closed, which ends its requests and frees its memory, where its outbox is full, where it
has not sent its open requests again half a second after a batcher's successor serves, or where its memory holds invalid
records. Runs in the supervisor.
"""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.client.socket_path import server_path, sweep
from shoal.control import Listener, remove_left_over
from shoal.errors import UnavailableError
from shoal.messages.from_client import GuestConnected
from shoal.messages.message import Handlers, on, table
from shoal.messages.shared import PayloadWanted, Refused
from shoal.messages.to_client import GuestWelcomed, ServerStopping
from shoal.open_files import explain
from shoal.shm.doorbell import GuestBell
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import ACCEPT_AGAIN_S, Future, Task, first, shared, sleep
from shoal.supervisor.memory.memory_plan import client_link_geometry, guest_geometry
from shoal.supervisor.memory.participant import Participant, make_guest, read_only
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.clients import client_handlers
from shoal.supervisor.processes.members import Member
from shoal.supervisor.questions.questions import Questions

_log = logging.getLogger(__name__)

#: How many messages may wait for a guest beside the 200 KB that its socket takes, and how long a guest has to send a
#: batcher's successor its open requests and held replies, which are kept until then (ours).
MAX_OUTBOX, RESEND_S = 256, 0.5


class Guests:
    """All guests of the server. `send_models` sends a guest all models, and then that it may send requests."""

    def __init__(self, star: Star, questions: Questions, send_models: Callable[[Participant], object]) -> None:
        self._loop = star.loop
        self._star = star
        self._options = star.options
        self._questions = questions
        self._send_models = send_models
        # Changed by open and close, and as guests come and go.
        self._listener: Listener | None = None
        self._path = ""
        self._connections: set[Member] = set()
        self._is_stopping = False
        self._gone: Future[None] = star.loop.future()  # done when all guests have left after `close`

    def start(self, http_port: int, inherited: socket.socket | None = None) -> None:
        """Listen at the path of --client-socket or, without one, at the path at which clients look for the server with
        this HTTP port. At an upgrade, `inherited` is the old server's socket: it is used if it has this path, else
        closed. An error is logged, and the server runs without guests."""
        path = self._options.client_socket
        try:
            if path is None:
                path = server_path(os.environ, http_port)
                sweep(Path(path).parent)
            if path and self._options.client_count:
                self.open(path, inherited)
                inherited = None
        except OSError as error:
            _log.error("no client on this host can connect to this server: %s", error)
        if inherited is not None:
            inherited.close()

    def open(self, path: str, inherited: socket.socket | None = None) -> None:
        """Listen for guests on a socket at this path. Raises OSError."""
        is_inherited = inherited is not None and inherited.getsockname() == path
        self._listener = Listener.adopt(inherited) if inherited is not None and is_inherited else Listener.at(path)
        self._path = path
        self._loop.on_readable(self._listener.fileno(), self._accept)
        _log.info("clients on this host find the server at %s", path)

    @property
    def socket_fd(self) -> int | None:
        """The listening socket's descriptor; None where there is none."""
        return None if self._listener is None else self._listener.fileno()

    def close(self, *, has_sibling: bool = False) -> None:
        """Stop listening, and remove the socket's file; with `has_sibling`, when another server of an upgrade runs, the
        file stays if that server listens there. Guests that join later are sent that the server is stopping."""
        listener, self._listener = self._listener, None
        self._is_stopping = True
        if listener is not None:
            self._loop.forget(listener.fileno())
            listener.close()
            with suppress(OSError):
                remove_left_over(self._path) if has_sibling else os.unlink(self._path)

    async def await_end(self) -> None:
        """After `close`, wait until all guests have left, which they do when their requests are answered. Those that
        have not after half of --exit-timeout-secs are disconnected."""
        if self._connections:
            await first(self._gone, limit_s=self._options.exit_timeout_secs / 2)
        for member in tuple(self._connections):
            member.hang_up()

    async def disconnect_late(self, successor: Member, serves: Task[None]) -> None:
        """Disconnect guests that have not sent a batcher's successor their open requests and held replies RESEND_S
        after it has begun to serve."""
        await shared(serves)
        await sleep(RESEND_S)
        if self._star.batcher is not successor:
            return  # this successor is dead: guests have RESEND_S from when the next one serves
        for client in self._star.joined:
            if client.is_guest and client.is_late:
                client.member.hang_up()

    def _leave(self, member: Member) -> None:
        self._connections.discard(member)
        if not (self._connections or self._listener or self._gone.done()):
            self._gone.set_result(None)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted = self._listener.accept(is_guests=True)
        except BlockingIOError:  # the other server of an upgrade, which listens on the same socket, has accepted it
            return
        except OSError as error:  # the guest has gone again, or descriptors have run out
            _log.warning("a client cannot connect: %s", explain(error))
            self._loop.pause(self._listener.fileno(), ACCEPT_AGAIN_S)
            return
        if accepted is None:
            return
        channel, pid = accepted
        member = Member(self._loop, channel, pid, self._star.acknowledgements, MAX_OUTBOX)
        if len(self._connections) >= self._options.client_count:
            sentence = f"{len(self._connections)} clients are connected, more are not taken; raise --client-count"
            self._refuse(member, sentence)
            return
        try:
            self._star.descriptors.check_guest()
        except UnavailableError as error:
            self._refuse_to_join(member, error)
            self._loop.pause(self._listener.fileno(), ACCEPT_AGAIN_S)  # or a guest that retries would fill the log
            return
        self._connections.add(member)
        member.listen_only(table(on(GuestConnected, lambda _message: self._join(member))))
        member.on_malformed = lambda _error: self._distrust(member, "sent a wrong first message")
        member.on_gone = lambda: self._leave(member)
        member.start()

    def _refuse(self, member: Member, sentence: str) -> None:
        member.send(Refused(UnavailableError.wire, sentence))
        member.hang_up()

    def _join(self, member: Member) -> None:
        star, options = self._star, self._options
        own, link = guest_geometry(options), client_link_geometry(options)
        try:
            star.descriptors.check_guest()
            guest, far_end = make_guest(star.take_owner(), member, own, link)
        except (UnavailableError, OutOfSharedMemoryError, OSError) as error:
            self._refuse_to_join(member, error)
            return
        member.listen(self._handlers(guest))
        member.on_malformed = lambda _error: self._distrust(member, "sent a malformed message")

        def gone() -> None:
            star.acknowledgements.gone(member)
            star.leave_client(guest)
            self._leave(member)

        member.on_gone = gone
        self._loop.start(self._welcome(guest, far_end, star.announce_client(guest)))

    def _refuse_to_join(self, member: Member, error: Exception) -> None:
        sentence = explain(error)
        _log.error("a client cannot join: %s", sentence)
        self._refuse(member, sentence)

    async def _welcome(self, guest: Participant, far_end: GuestBell, known: Future[None]) -> None:
        """Send a guest its memory, once the batcher knows it, and then all models."""
        star, options, member = self._star, self._options, guest.member
        try:
            await star.await_batcher(known)
            if not member.is_open:
                return
            with read_only(guest.link_fd) as (link_fd,):
                welcome = GuestWelcomed(
                    correlation_key=star.correlation_key,
                    max_in_flight=options.max_in_flight,
                    model_namespacing=options.model_namespacing,
                    request_timeout_s=options.request_timeout_secs,
                    answer_timeout_s=options.model_load_timeout_secs,
                    segment=guest.segment_fd,
                    link=link_fd,
                    bell=far_end.fd,
                )
                guest.is_joined = True
                mapped = star.acknowledgements.announce([(member, welcome)])
        except OSError as error:
            self._refuse_to_join(member, error)
            return
        finally:
            far_end.close()
        await mapped
        self._send_models(guest)
        if self._is_stopping:  # all guests that had joined were sent ServerStopping before this one had
            member.send(ServerStopping())

    def _handlers(self, guest: Participant) -> Handlers:
        handlers = client_handlers(self._star, self._questions, guest)
        return handlers | table(on(PayloadWanted, lambda message: self._make_payload(guest, message)))

    def _make_payload(self, guest: Participant, message: PayloadWanted) -> None:
        if message.nbytes < 0:
            self._distrust(guest.member, "asked for a segment of negative size")
        else:
            self._star.payloads.receive(guest, message)

    def _distrust(self, member: Member, what: str) -> None:
        _log.warning("a client, process %d, %s; its connection is closed", member.pid, what)
        member.hang_up()

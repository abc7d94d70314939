"""Guests: processes that are not ours, connect to a socket in the file system, and submit requests as front ends do.

    connect (same user) ─► join ─► own segment, link, bell ─► models ─► started ─► asks ─► hangs up, or is hung up on

A guest may send anything, send nothing, or stand still with what it was given. So its messages have one door, here;
no process waits for it; segments are announced to it only when it asks, since messages that it does not read hold
descriptors. Its connection is closed, which undoes all it has, where its outbox is full, where it has not sent its open
requests again half a second after a batcher's successor serves, or where its memory holds what cannot be. Runs in the
supervisor.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.client.socket_path import server_path, sweep
from shoal.control import Listener
from shoal.errors import UnavailableError
from shoal.messages.from_client import GuestConnected
from shoal.messages.message import Handlers, on, table
from shoal.messages.shared import PayloadWanted, Refused
from shoal.messages.to_client import GuestWelcomed
from shoal.options import ServerOptions
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.descriptors import Descriptors
from shoal.supervisor.event_loop import ACCEPT_AGAIN_S, EventLoop
from shoal.supervisor.memory.memory_plan import client_link_geometry, guest_geometry
from shoal.supervisor.memory.participant import Participant, make_guest, read_only
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.clients import client_handlers
from shoal.supervisor.processes.members import Member
from shoal.supervisor.questions.questions import Questions

_log = logging.getLogger(__name__)

#: Messages that may wait for a guest beside the 200 KB that its socket takes, and how long it has to send a batcher's
#: successor again what it holds, which is kept for it until then (ours).
MAX_OUTBOX, WORD_S = 256, 0.5


class Guests:
    """All of them. `tell_models` tells one of the models, and that it may start."""

    def __init__(
        self,
        loop: EventLoop,
        star: Star,
        options: ServerOptions,
        questions: Questions,
        tell_models: Callable[[Participant], None],
        descriptors: Descriptors,
    ) -> None:
        self._loop = loop
        self._star = star
        self._options = options
        self._questions = questions
        self._tell_models = tell_models
        self._descriptors = descriptors
        # Changed by open and close, and as guests come and go.
        self._listener: Listener | None = None
        self._path = ""
        self._connections: set[Member] = set()
        self._when_empty: Callable[[], None] | None = None

    def start(self, http_port: int) -> None:
        """Listen where the options say, or where a client looks for a server of this port. What hinders that is logged,
        and hinders nobody else."""
        path = self._options.client_socket
        if path == "" or not self._options.client_count:
            return
        try:
            if path is None:
                path = server_path(os.environ, http_port)
                sweep(Path(path).parent)
            self.open(path)
        except OSError as error:
            _log.error("no client on this host can connect to this server: %s", error)

    def open(self, path: str) -> None:
        """Listen. Raises OSError."""
        self._listener = Listener.at(path)
        self._path = path
        self._loop.on_readable(self._listener.fileno(), self._accept)
        _log.info("clients on this host find the server at %s", path)

    def close(self) -> None:
        """Nobody connects any more. Those that are connected have heard that the server is stopping."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.forget(listener.fileno())
            listener.close()
            with suppress(OSError):
                os.unlink(self._path)

    def see_off(self, then: Callable[[], None]) -> None:
        """After `close`: call `then` once all have gone, which they do when what they asked is answered; those that do
        not for too long are sent away."""
        self._when_empty = then
        self._check_empty()
        self._loop.call_after(self._options.exit_timeout_secs / 2, self._hang_up_all)

    def await_word(self) -> None:
        """A batcher's successor keeps what guests may hold: they have WORD_S to send what they do hold."""
        successor = self._star.batcher
        self._loop.call_after(WORD_S, lambda: self._hang_up_silent(successor))

    def _hang_up_silent(self, successor: Member | None) -> None:
        if self._star.batcher is not successor:
            return  # it is dead: guests have WORD_S from when the next one serves
        for client in self._star.joined:
            if client.is_guest and client.is_late:
                client.member.hang_up()

    def _hang_up_all(self) -> None:
        for member in tuple(self._connections):
            member.hang_up()

    def _leave(self, member: Member) -> None:
        self._connections.discard(member)
        self._check_empty()

    def _check_empty(self) -> None:
        if not self._connections and self._when_empty is not None:
            then, self._when_empty = self._when_empty, None
            then()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted = self._listener.accept(is_guests=True)
        except OSError as error:
            _log.warning("a client cannot connect: %s", error)  # it has gone again, or descriptors have run out
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
        self._connections.add(member)
        member.listen_only(table(on(GuestConnected, lambda _message: self._join(member))))
        member.on_malformed = lambda: self._distrust(member, "did not join")
        member.on_gone = lambda: self._leave(member)
        member.start()

    def _refuse(self, member: Member, sentence: str) -> None:
        member.send(Refused(UnavailableError.wire, sentence))
        member.hang_up()

    def _join(self, member: Member) -> None:
        try:
            self._descriptors.check_guest()
            guest = self._make(member)
        except (UnavailableError, OutOfSharedMemoryError, OSError) as error:
            _log.error("a client cannot join: %s", error)
            self._refuse(member, str(error))
            return
        member.listen(self._handlers(guest))
        member.on_malformed = lambda: self._distrust(member, "said what no client says")

        def gone() -> None:
            self._star.acknowledgements.gone(member)
            self._star.leave_client(guest)
            self._leave(member)

        member.on_gone = gone

    def _make(self, member: Member) -> Participant:
        star, options = self._star, self._options
        guest, far_end = make_guest(star.take_owner(), member, guest_geometry(options), client_link_geometry(options))

        def let_in() -> None:
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
                star.acknowledgements.announce([(member, welcome)], lambda: self._tell_models(guest))
            far_end.close()

        star.announce_client(guest, let_in)
        return guest

    def _handlers(self, guest: Participant) -> Handlers:
        handlers = client_handlers(self._star, self._questions, guest)
        return handlers | table(on(PayloadWanted, lambda message: self._make_payload(guest, message)))

    def _make_payload(self, guest: Participant, message: PayloadWanted) -> None:
        if message.nbytes < 0:
            self._distrust(guest.member, "asked for less than nothing")
        else:
            self._star.payloads.hear(guest, message)

    def _distrust(self, member: Member, what: str) -> None:
        _log.warning("a client, process %d, %s; its connection is closed", member.pid, what)
        member.hang_up()

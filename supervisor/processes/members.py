"""The supervisor's end of a control connection: messages out without blocking, acknowledgements counted.

A process that does not read must not stop the supervisor: messages that do not fit into its socket wait here.
"""

import itertools
import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from shoal.control import Channel
from shoal.messages.message import Handlers, Kinds, Message, MessageError, encode, on, table
from shoal.messages.shared import Acknowledged, LedgerCounted
from shoal.open_files import explain
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.failure_domains import FailureDomain, contained

_log = logging.getLogger(__name__)

#: Messages that may wait for one process: enough for 512 model versions, their workers and their segments.
MAX_OUTBOX = 8192
#: How long an announcement waits for recipients that run users' code, which may hold the interpreter for minutes (ours;
#: an idle one acknowledges within a millisecond).
PATIENCE_S = 0.25

#: A member and a message to it.
Recipient = tuple["Member", Message]


class Member:
    """A process at the other end of a control connection. `on_gone` is called once when the connection ends; by default
    announcements no longer wait for the process. `on_malformed` is called for a malformed message; by default it ends
    the connection."""

    def __init__(
        self,
        loop: EventLoop,
        channel: Channel,
        pid: int,
        acknowledgements: "Acknowledgements",
        max_outbox: int = MAX_OUTBOX,
    ) -> None:
        self.pid = pid
        self._max_outbox = max_outbox
        self._loop = loop
        self._channel = channel
        # Changed by send and by the loop's callbacks.
        self._outbox: deque[tuple[bytes, list[int]]] = deque()  # encoded, with duplicates of its descriptors
        self.is_open = True
        #: The process's counts in answer to the ledger's last request; None where it has not answered.
        self.counts: dict[str, int] | None = None
        self._own = table(
            on(Acknowledged, lambda message: acknowledgements.received(self, message.seq)),
            on(LedgerCounted, self._on_ledger),
        )
        self._handlers: Handlers = self._own
        self._kinds = Kinds(*self._own)
        self.on_malformed: Callable[[MessageError], None] = self._give_up
        self.on_gone: Callable[[], None] = lambda: acknowledgements.gone(self)
        #: The domain for errors in handling this process's messages: this connection, or what the process belongs to.
        self.domain: FailureDomain = self

    @property
    def title(self) -> str:
        return f"the connection of process {self.pid}"

    def contain(self, _error: Exception) -> None:
        """Close the connection after an unexpected error; the process takes that as the end of its supervisor."""
        self.hang_up()

    def start(self) -> None:
        self._loop.on_readable(self._channel.fileno(), self._on_readable)

    def listen(self, handlers: Handlers) -> None:
        """Accept messages of these types from the process from now on, each for its handler, beside acknowledgements
        and ledgers."""
        self.listen_only(handlers | self._own)

    def listen_only(self, handlers: Handlers) -> None:
        """Accept messages of these types alone: the process has not joined yet."""
        self._handlers = handlers
        self._kinds = Kinds(*handlers)

    def send(self, message: Message, seq: int = 0) -> None:
        """Send a message now, or as soon as the process reads; descriptors are duplicated: the caller keeps its own."""
        if not self.is_open:
            return
        body, fds = encode(message, seq)
        if not self._outbox:
            try:
                self._channel.send_encoded(body, fds)
                return
            except BlockingIOError:
                self._loop.on_writable(self._channel.fileno(), self._flush)
            except ConnectionError:
                return  # the process has ended; the connection's end of file is already on the way
            except OSError as error:  # no descriptor or memory for a large message, without which it could not go on
                self._give_up(explain(error))
                return
        if len(self._outbox) >= self._max_outbox:
            self._give_up(f"the process has not read {len(self._outbox)} messages")
            return
        duplicates = list[int]()
        self._outbox.append((body, duplicates))
        try:
            for fd in fds:
                duplicates.append(os.dup(fd))
        except OSError as error:  # without this message the process could not go on
            self._give_up(explain(error))

    def _give_up(self, reason: object) -> None:
        _log.warning("%s is closed: %s", self.title, reason)
        self.hang_up()

    def drain(self) -> None:
        """Handle the messages that the process sent before its end; close the connection at a malformed one."""
        try:
            while self._receive():
                """On to the next."""
        except MessageError as error:
            self._give_up(error)

    def hang_up(self) -> None:
        """Close the connection; the process takes that as the end of its supervisor."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        for _, fds in self._outbox:
            _close_all(fds)
        self._outbox.clear()
        self.on_gone()

    def kill(self) -> bool:
        return self.signal(signal.SIGKILL)

    def signal(self, number: int) -> bool:
        """Send the process a signal, unless it has ended, since its pid may be another's by then. False where this
        process has no descriptor left for that."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        try:
            # The connection is still open after the pidfd was opened, so the pidfd is that process's.
            if self.is_open and not self._channel.is_hung_up():
                signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            pass  # the process has just ended
        finally:
            os.close(pidfd)
        return True

    def has_unread(self) -> bool:
        """Whether something that the process has sent is not read yet."""
        return self.is_open and self._channel.is_readable()

    def close(self) -> None:
        """Close the connection without `on_gone`: the supervisor ends."""
        self.on_gone = lambda: None
        self.hang_up()

    def _flush(self) -> None:
        while self._outbox:
            body, fds = self._outbox[0]
            try:
                self._channel.send_encoded(body, fds)
            except BlockingIOError:
                return
            except ConnectionError:
                self.hang_up()
                return
            except OSError as error:
                self._give_up(explain(error))
                return
            self._outbox.popleft()
            _close_all(fds)
        self._loop.on_writable(self._channel.fileno(), None)

    def _on_readable(self) -> None:
        with contained(self.domain):
            try:
                self._receive()
            except MessageError as error:
                self.on_malformed(error)

    def _receive(self) -> bool:
        """Handle one message of the process; False where there is none. Raises MessageError where it is malformed."""
        if not self.is_open:
            return False
        try:
            message, _ = self._channel.receive(self._kinds)
        except BlockingIOError:
            return False
        except EOFError:
            self.hang_up()
            return False
        self._handlers[type(message)](message)
        return True

    def _on_ledger(self, message: LedgerCounted) -> None:
        if not all(type(name) is str and type(count) is int for name, count in message.counts.items()):
            raise MessageError("a ledger of what is no count")
        self.counts = message.counts


class Acknowledgements:
    """Announcements to several processes, each with a future that is done when all of them have acknowledged it."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        # Changed by announce, received and gone: sequence number → missing acknowledgements by member, and the future.
        self._pending: dict[int, tuple[Counter[Member], Future[None]]] = {}
        # Members that a brief announcement has gone on without, and that have acknowledged nothing since.
        self._late: set[Member] = set()

    def announce(
        self,
        to: Iterable[Recipient],
        *,
        briefly: Iterable[Recipient] = (),
        patience_s: float = PATIENCE_S,
    ) -> Future[None]:
        """Send messages to members; the future is done when all that still live have acknowledged each, at once if
        there are none.

        Members in `briefly` are waited for no longer than `patience_s`.
        """
        seq = next(self._numbers)
        brief = [recipient for recipient in briefly if recipient[0].is_open]
        recipients = [*[recipient for recipient in to if recipient[0].is_open], *brief]
        applied: Future[None] = self._loop.future()
        if not recipients:
            applied.set_result(None)
            return applied
        self._pending[seq] = (Counter(member for member, _ in recipients), applied)
        if brief:
            self._loop.call_after(patience_s, lambda: self._pass_over(seq, {member for member, _ in brief}))
        for member, message in recipients:
            member.send(message, seq)
        return applied

    def _pass_over(self, seq: int, members: set[Member]) -> None:
        if seq in self._pending:
            missing, _ = self._pending[seq]
            self._late |= members & missing.keys()
        for member in members:
            self._settle(member, [seq], None)

    def is_late(self, member: Member) -> bool:
        """Whether a brief announcement has gone on without this member, which has acknowledged nothing since."""
        return member in self._late

    def oldest(self, member: Member) -> tuple[int, int] | None:
        """The number of the oldest announcement that a member has not acknowledged, and how many of its messages the
        member has still to acknowledge; None where there is none."""
        return next(((seq, missing[member]) for seq, (missing, _) in self._pending.items() if member in missing), None)

    def received(self, member: Member, seq: int) -> None:
        """Note a member's acknowledgement of one message."""
        self._late.discard(member)
        self._settle(member, [seq], 1)

    def gone(self, member: Member) -> None:
        """Count a dead member's missing acknowledgements as given."""
        self._late.discard(member)
        self._settle(member, list(self._pending), None)

    def _settle(self, member: Member, numbers: Sequence[int], count: int | None) -> None:
        for seq in numbers:
            if seq not in self._pending:
                continue
            missing, applied = self._pending[seq]
            if member not in missing:
                continue
            missing[member] -= missing[member] if count is None else count
            if missing[member] == 0:
                del missing[member]
            if not missing:
                del self._pending[seq]
                if not applied.done():
                    applied.set_result(None)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)

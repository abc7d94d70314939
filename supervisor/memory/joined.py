"""The processes that have joined the star, by kind, and how all processes of one kind are sent a message.

Runs in the supervisor. The star itself (star.py) extends this; parts of the star, such as payloads, send through it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shoal.messages.message import Message
from shoal.messages.shared import LogSettings, Ping
from shoal.options import ServerOptions
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.memory.loans import Loans
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.processes.members import Acknowledgements, Member, Recipient


@dataclass(slots=True)
class Participants:
    """The batcher, clients and workers by owner id, and the segments that are lent to some of them."""

    options: ServerOptions
    log_settings: LogSettings
    loop: EventLoop
    acknowledgements: Acknowledgements = field(init=False)
    # Changed by the star, as processes join and leave.
    batcher: Member | None = None
    clients: dict[int, Participant] = field(default_factory=dict)
    workers: dict[int, Participant] = field(default_factory=dict)
    loans: Loans = field(default_factory=Loans)

    def members(self) -> Iterator[list[Member]]:
        """The processes that have joined, in the order in which memory goes back: front ends, the batcher, workers."""
        yield [client.member for client in self.joined if not client.is_guest]
        yield [] if self.batcher is None else [self.batcher]
        yield [worker.member for worker in self.workers.values() if worker.is_joined]

    @property
    def joined(self) -> list[Participant]:
        """Clients that have been sent all segments and are announced."""
        return [client for client in self.clients.values() if client.is_joined]

    @property
    def front_ends(self) -> list[Participant]:
        """Front ends that have been sent all segments and are announced."""
        return [client for client in self.joined if client.is_front_end]

    def send_to_guests(self, message: Message) -> None:
        """Send a message to every guest that has joined."""
        for client in self.joined:
            if client.is_guest:
                client.member.send(message)

    def announce_to_clients(self, messages: Sequence[Message]) -> Future[None]:
        """Send messages to every client that has joined. The future is done when front ends have applied them, and the
        batcher what was sent to it before: it might read a request that follows sooner than those messages.

        Models that call others are waited for briefly, guests not at all. Such a client may still ask for a segment or
        model that is gone: it is refused, and asks again when it has applied the messages.
        """
        recipients = self.to_batcher(Ping())
        briefly: list[Recipient] = []
        for client in self.joined:
            if client.is_guest:
                for each in messages:
                    client.member.send(each)
            else:
                group = recipients if client.is_front_end else briefly
                group += [(client.member, each) for each in messages]
        return self.acknowledgements.announce(recipients, briefly=briefly)

    def send_to_batcher(self, message: Message) -> None:
        """Send the batcher, if there is one, a message that need not be acknowledged."""
        if self.batcher is not None:
            self.batcher.send(message)

    def to_batcher(self, message: Message) -> list[Recipient]:
        """A message as an announcement's recipient: the batcher's, if there is one."""
        return [] if self.batcher is None else [(self.batcher, message)]

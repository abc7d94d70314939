"""The interface of a star to its own parts: the processes that have joined, and the ways to send them messages."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from shoal.messages.message import Message
from shoal.options import ServerOptions
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.loans import Loans
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.processes.members import Acknowledgements, Recipient


class Participants(Protocol):
    """A star as its parts see it; implemented and described in star.py."""

    options: ServerOptions
    loop: EventLoop
    acknowledgements: Acknowledgements
    loans: Loans

    @property
    def workers(self) -> Mapping[int, Participant]: ...
    @property
    def joined(self) -> Sequence[Participant]: ...
    @property
    def front_ends(self) -> Sequence[Participant]: ...
    def to_front_ends(self, message: Message) -> list[Recipient]: ...
    def to_batcher(self, *messages: Message) -> list[Recipient]: ...
    def take_owner(self) -> int: ...

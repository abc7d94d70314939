"""A client's place in the star: its port, its bell, the models it may ask, and the supervisor's messages about them.

Every front end has one, every worker whose model calls others, and every guest; the latter two, in which users' code
runs, ask for the segments that answers lie in. One thread uses it, or several under a
lock (shared_port.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from shoal import control, errors
from shoal.control import Channel
from shoal.ledger import connections, ledger_message
from shoal.messages.from_client import CallerConnected, FrontEndConnected
from shoal.messages.message import Handlers, close_descriptors, on, table
from shoal.messages.shared import BatcherReplaced, LedgerWanted, Refused, SegmentAnnounced, SegmentGone, SegmentMissing
from shoal.messages.to_client import (
    CLIENT_WELCOME,
    GUEST_WELCOME,
    TO_CLIENT,
    ClientWelcomed,
    GuestWelcomed,
    ModelChanged,
    ModelForgotten,
    ModelsKnown,
    ToClient,
)
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.port import Port
from shoal.shm.segment import Segment, SegmentView
from shoal.star.models import ModelTable

#: Puts a message in force that has this sequence number.
Apply: TypeAlias = Callable[[ToClient, int], None]

#: Messages that make replies void which have not been collected: those that a dead worker gave name its segment, those
#: that a dead batcher gave are to requests that are sent to its successor. Where a reply waits for a segment (`wanted`
#: of the port), they wait, too.
REPLIES_FIRST = (SegmentGone, BatcherReplaced)


@dataclass(frozen=True, slots=True)
class Place:
    """What a client has after it joined."""

    port: Port
    bell: Doorbell | GuestBell
    channel: Channel
    models: ModelTable
    request_timeout_s: float
    answer_timeout_s: float  # of the supervisor

    @property
    def handlers(self) -> Handlers:
        """A table of the messages that mean the same to every client."""
        port, channel, models = self.port, self.channel, self.models
        return table(
            on(SegmentAnnounced, lambda message: port.add_segment(message.owner, SegmentView.attach(message.segment))),
            on(SegmentGone, lambda message: port.remove_segment(message.owner)),
            on(SegmentMissing, lambda message: port.remove_segment(message.owner)),
            on(BatcherReplaced, lambda _message: port.resubmit()),
            on(ModelChanged, models.apply),
            on(ModelForgotten, models.apply),
            on(LedgerWanted, lambda _: channel.send(ledger_message(connections_open=connections(), **port.counts))),
        )

    def apply(self, message: ToClient, seq: int, others: Callable[[ToClient], None] = close_descriptors) -> None:
        """Put a message in force, and acknowledge it where that is wanted; `others` gets what not every client knows.

        Before one of REPLIES_FIRST, the replies that have come must be collected.
        """
        self.handlers.get(type(message), others)(message)
        if seq:
            # What a lane has pushed by the table as it was is seen before this is: whoever hears that a reload is in
            # force here, and then has the batcher look at the rings, finds no request for the old version later. The
            # requests of other threads may have been looked up long before they are pushed; those are looked up again.
            self.port.flush()
            self.channel.acknowledge(seq)

    def settle(self, seq: int, others: Callable[[ToClient], None] = close_descriptors) -> None:
        """Acknowledge the welcome, and apply all that follows until all models are known."""
        self.channel.acknowledge(seq)
        message: ToClient | None = None
        while not isinstance(message, ModelsKnown):
            message, seq = self.channel.receive(TO_CLIENT)
            self.apply(message, seq, others)


def take_place(
    kind: type[FrontEndConnected | CallerConnected], *, asks_for_segments: bool = False
) -> tuple[Place, ClientWelcomed, int]:
    """Join the supervisor as a client of the star: the place, and the welcome with its sequence number, which is not
    acknowledged yet. The counters' descriptor is the caller's.

    Raises ShoalError where there is no room for one, OSError or EOFError where the supervisor is gone.
    """
    channel = control.join(kind())
    welcome, seq = _welcomed(channel, *channel.receive(CLIENT_WELCOME))
    port = Port(
        Segment.attach(welcome.segment), SegmentView.attach(welcome.link), Doorbell(welcome.batcher_bell),
        welcome.max_in_flight, welcome.correlation_key, asks_for_segments=asks_for_segments,
    )  # fmt: skip
    return _place(port, Doorbell(welcome.bell), channel, welcome), welcome, seq


def visit(path: str) -> Place:
    """Join the server that listens there as a guest, a process that is not of it; returns when all models are known.

    Raises ShoalError where there is no room for one, OSError or EOFError where there is no server of this user's.
    """
    channel = control.visit(path)
    try:
        welcome, seq = _welcomed(channel, *channel.receive(GUEST_WELCOME))
        bell = GuestBell(welcome.bell)
        # Pages come as they are used: most guests use few.
        port = Port(
            Segment.attach(welcome.segment, populate=False),
            SegmentView.attach(welcome.link),
            bell,
            welcome.max_in_flight,
            welcome.correlation_key,
            asks_for_segments=True,
        )
        place = _place(port, bell, channel, welcome)
        place.settle(seq)
    except BaseException:
        channel.close()
        raise
    return place


W = TypeVar("W", ClientWelcomed, GuestWelcomed)


def _welcomed(channel: Channel, welcome: W | Refused, seq: int) -> tuple[W, int]:
    if isinstance(welcome, Refused):
        channel.close()
        raise errors.from_wire(welcome.wire, welcome.sentence)
    return welcome, seq


def _place(port: Port, bell: Doorbell | GuestBell, channel: Channel, welcome: ClientWelcomed | GuestWelcomed) -> Place:
    models = ModelTable(namespacing=welcome.model_namespacing)
    return Place(port, bell, channel, models, welcome.request_timeout_s, welcome.answer_timeout_s)

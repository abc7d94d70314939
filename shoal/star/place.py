"""A client's place in the star: its port, its bell, its table of models, and the supervisor's messages to it.

Every front end, every guest, and every worker whose model calls others has a place. Workers and guests, which run
users' code, ask for the segments in which answers lie. One thread uses a place, or several under a lock
(shared_port.py).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
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

#: A function that applies a message; the second argument is the message's sequence number, 0 if it has none.
Apply: TypeAlias = Callable[[ToClient, int], None]

#: Messages before which all replies must be collected: SegmentGone, because a dead worker's replies lie in its segment;
#: BatcherReplaced, because all requests without a reply of the dead batcher are then sent again. While a reply waits
#: for its segment (`Port.wanted`), these messages wait, too.
REPLIES_FIRST = (SegmentGone, BatcherReplaced)

_NONE: Handlers = {}  # the handlers of a client that has none of its own


@dataclass(frozen=True)
class Place:
    """A client's place in the star, once the client has joined."""

    port: Port
    bell: Doorbell | GuestBell
    channel: Channel
    models: ModelTable
    request_timeout_s: float
    answer_timeout_s: float  # how long the supervisor may take to answer a question
    #: Functions that are called with a segment's owner id once the segment is gone.
    segment_gone: list[Callable[[int], None]] = field(default_factory=list)

    @cached_property
    def handlers(self) -> Handlers:
        """The handlers of messages that mean the same to every client. No handler refers to the place,
        so that the place and its memory end with the last reference of its owner."""
        port, channel, models, segment_gone = self.port, self.channel, self.models, self.segment_gone

        def remove_segment(message: SegmentGone) -> None:
            port.remove_segment(message.owner)
            for each in segment_gone:
                each(message.owner)

        return table(
            on(SegmentAnnounced, lambda message: port.add_segment(message.owner, SegmentView.attach(message.segment))),
            on(SegmentGone, remove_segment),
            on(SegmentMissing, lambda message: port.remove_segment(message.owner)),
            on(BatcherReplaced, lambda _message: port.resubmit()),
            on(ModelChanged, models.apply),
            on(ModelForgotten, models.apply),
            on(LedgerWanted, lambda _: channel.send(ledger_message(connections_open=connections(), **port.counts))),
        )

    def apply(self, message: ToClient, seq: int, others: Handlers = _NONE) -> None:
        """Apply a message, and acknowledge it if it has a sequence number; `others` are the client's own handlers,
        and a message without a handler has no effect.

        Before one of REPLIES_FIRST, the caller must have collected all replies.
        """
        kind = type(message)
        (self.handlers.get(kind) or others.get(kind, close_descriptors))(message)
        if seq:
            # Requests that a lane has pushed by the old table of models become visible before the acknowledgement. The
            # supervisor then has the batcher read the rings, so that no request for the old version comes later.
            # Processes with several threads may look up a model long before they push the request; if the version is
            # gone by then, they look it up again.
            self.port.flush()
            self.channel.acknowledge(seq)

    def settle(self, seq: int, others: Handlers = _NONE, deadline_s: float | None = None) -> None:
        """Acknowledge the welcome, and apply all messages until all models are known. Raises TimeoutError if they are
        not known by the monotonic time `deadline_s`, if there is one."""
        self.channel.acknowledge(seq)
        message: ToClient | None = None
        while not isinstance(message, ModelsKnown):
            if deadline_s is not None:
                self.channel.set_deadline(deadline_s)
            message, seq = self.channel.receive(TO_CLIENT)
            self.apply(message, seq, others)


def take_place(
    kind: type[FrontEndConnected | CallerConnected], *, asks_for_segments: bool = False
) -> tuple[Place, ClientWelcomed, int]:
    """Join the supervisor as a client of the star. Returns the place, and the welcome with its sequence number, which
    the caller must acknowledge. The caller owns the welcome's descriptor of the counters.

    Raises ShoalError if the supervisor refuses, OSError or EOFError if it is gone.
    """
    channel = control.join(kind())
    welcome, seq = _welcomed(channel, *channel.receive(CLIENT_WELCOME))
    port = Port(
        Segment.attach(welcome.segment), SegmentView.attach(welcome.link), Doorbell(welcome.batcher_bell),
        welcome.max_in_flight, welcome.correlation_key, asks_for_segments=asks_for_segments,
    )  # fmt: skip
    return _place(port, Doorbell(welcome.bell), channel, welcome), welcome, seq


def join_as_guest(path: str, limit_s: float) -> Place:
    """Join the server that listens at `path` as a guest; returns when all models are known.

    Raises ShoalError if the server refuses, OSError or EOFError if no server of this user listens there, TimeoutError
    if it has not let this process join within `limit_s` seconds.
    """
    deadline_s = time.monotonic() + limit_s
    channel = control.connect_guest(path, deadline_s)
    try:
        welcome, seq = _welcomed(channel, *channel.receive(GUEST_WELCOME))
        bell = GuestBell(welcome.bell)
        # The segment's pages are reserved when they are first written: most guests use few.
        port = Port(
            Segment.attach(welcome.segment, populate=False),
            SegmentView.attach(welcome.link),
            bell,
            welcome.max_in_flight,
            welcome.correlation_key,
            asks_for_segments=True,
        )
        place = _place(port, bell, channel, welcome)
        place.settle(seq, deadline_s=deadline_s)
        channel.set_deadline(None)
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

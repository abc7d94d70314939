"""A client's place in the star: its port, its bell, the models it may ask, and the supervisor's messages about them.

Every front end has one, every worker whose model calls others, and every guest; the latter two, in which users' code
runs, ask for the segments that answers lie in. One thread uses it, or several under a
lock (shared_port.py).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from shoal import control, errors
from shoal.control import Channel, Message
from shoal.ledger import connections, ledger_message
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.port import Port
from shoal.shm.segment import Segment, SegmentView
from shoal.star.models import ModelTable

#: Takes a message into force, and the descriptors that came with it.
Apply: TypeAlias = Callable[[Message, list[int]], None]

#: Messages that make replies void which have not been collected: those that a dead worker gave name its segment, those
#: that a dead batcher gave are to requests that are sent to its successor. Where a reply waits for a segment (`wanted`
#: of the port), they wait, too.
REPLIES_FIRST = frozenset({"segment_gone", "batcher"})


def pass_over(_message: Message, fds: list[int]) -> None:
    """An Apply: of what clients are told, much concerns front ends only."""
    for fd in fds:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Place:
    """What a client has after it joined."""

    port: Port
    bell: Doorbell | GuestBell
    channel: Channel
    models: ModelTable
    request_timeout_s: float
    answer_timeout_s: float  # of the supervisor

    def apply(self, message: Message, fds: list[int], others: Apply = pass_over) -> None:
        """Take a message into force, and say so where that is wanted; `others` takes what not every client knows.

        Before one of REPLIES_FIRST, the replies that have come must be collected.
        """
        op = message["op"]
        if op == "segment":
            self.port.add_segment(message["owner"], SegmentView.attach(fds[0]))
        elif op in ("segment_gone", "segment_missing"):
            self.port.remove_segment(message["owner"])
        elif op == "batcher":
            self.port.resubmit()
        elif op in ("model", "model_removed"):
            self.models.apply(message)
        elif op == "ledger":
            self.channel.send(ledger_message(connections_open=connections(), **self.port.counts))
        else:
            others(message, fds)
        if "seq" in message:
            # What a lane has pushed by the table as it was is seen before this is: whoever hears that a reload is in
            # force here, and then has the batcher look at the rings, finds no request for the old version later. The
            # requests of other threads may have been looked up long before they are pushed; those are looked up again.
            self.port.flush()
            self.channel.acknowledge(message)


def take_place(kind: str, *, asks_for_segments: bool = False, **facts: Any) -> tuple[Place, Message, int]:
    """Join the supervisor as a client of the star: the place, the welcome, which is not acknowledged yet, and the
    counters' descriptor.

    Raises ShoalError where there is no room for one, OSError or EOFError where the supervisor is gone.
    """
    channel = control.join(kind, **facts)
    welcome, fds = _receive_welcome(channel)
    own, link, bell, batcher_bell, counters = fds
    port = Port(
        Segment.attach(own), SegmentView.attach(link), Doorbell(batcher_bell), welcome["max_in_flight"],
        welcome["correlation_key"], asks_for_segments=asks_for_segments,
    )  # fmt: skip
    return _place(port, Doorbell(bell), channel, welcome), welcome, counters


def visit(path: str) -> Place:
    """Join the server that listens there as a guest, a process that is not of it; returns when all models are known.

    Raises ShoalError where there is no room for one, OSError or EOFError where there is no server of this user's.
    """
    channel = control.visit(path)
    try:
        welcome, (own, link, bell_fd) = _receive_welcome(channel)
        bell = GuestBell(bell_fd)
        # Pages come as they are used: most guests use few.
        port = Port(
            Segment.attach(own, populate=False),
            SegmentView.attach(link),
            bell,
            welcome["max_in_flight"],
            welcome["correlation_key"],
            asks_for_segments=True,
        )
        place = _place(port, bell, channel, welcome)
        channel.acknowledge(welcome)
        message = welcome
        while message["op"] != "started":
            message, fds = channel.receive()
            place.apply(message, fds)
    except BaseException:
        channel.close()
        raise
    return place


def _receive_welcome(channel: Channel) -> tuple[Message, list[int]]:
    welcome, fds = channel.receive()
    if welcome["op"] == "failed":
        channel.close()
        raise errors.from_wire(welcome["wire"], welcome["sentence"])
    return welcome, fds


def _place(port: Port, bell: Doorbell | GuestBell, channel: Channel, welcome: Message) -> Place:
    models = ModelTable(namespacing=welcome["model_namespacing"])
    return Place(port, bell, channel, models, welcome["request_timeout_s"], welcome["answer_timeout_s"])

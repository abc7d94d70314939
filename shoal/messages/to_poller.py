"""What the supervisor asks the reader of model repositories (repository/main.py), and what comes back.

    PollerWelcomed first; then orders, which are executed one after the other and answered in that order:
    Poll ─► ModelFound, ModelFound, … Polled            LookAll, Look, Discard ─► ModelFound, … OrderDone
    each instead with OrderRefused where it fails       Forget, LogChanged: no answer

Nothing is acknowledged. `order` is the number that the supervisor gives an order.
"""

from collections.abc import Sequence
from typing import Any

from shoal.messages.message import Kinds, Message
from shoal.messages.shared import LogSettings


class PollerConnected(Message):
    """Sent by the process that reads repositories, first: it waits for PollerWelcomed."""


class PollerWelcomed(Message):
    """Sent by the supervisor, first: these are the repositories, and how they are read."""

    log: LogSettings
    repositories: list[tuple[str, str | None]]  # place, and of one in cloud storage the directory of its copy
    strict: bool  # --disable-auto-complete-config
    config_name: str
    namespacing: bool
    backend_directory: str


class Poll(Message):
    """Sent by the supervisor: all models are listed, and those of these names looked into."""

    order: int
    names: list[str] | None  # None: all


class LookAll(Message):
    """Sent by the supervisor: all models of a name are looked into, with what a load request brings along."""

    order: int
    name: str
    config: str | None = None
    directory: str | None = None  # of the request's files
    repository: str | None = None  # registered by the request


class Look(Message):
    """Sent by the supervisor: one model of a name is looked into, of several the one of the preferred namespace."""

    order: int
    name: str
    preferred: str


class Discard(Message):
    """Sent by the supervisor: a directory that was made for one load is removed."""

    order: int
    directory: str


class Forget(Message):
    """Sent by the supervisor: copies from cloud storage are removed but for these directories."""

    keep: list[str]


class ModelFound(Message):
    """Sent by the poller: a model that an order looked into (repository/found.py)."""

    order: int
    name: str
    directory: str
    config: dict[str, Any]
    labels: dict[str, Any]  # by output, the lines of its label file
    versions: Sequence[tuple[int, str, int]]  # number, directory, newest modification time
    others_ns: int
    wire: int  # of the ShoalError that says why the model cannot be loaded, and its sentence; 0: there is none
    sentence: str
    origin: str
    namespace: str
    fingerprint: str
    changed_ns: int
    is_given: bool


class Polled(Message):
    """Sent by the poller: a Poll is done; `problems` says of directories why they are no models."""

    order: int
    identifiers: Sequence[tuple[str, str]]  # name and namespace
    problems: Sequence[tuple[tuple[str, str], str]]


class OrderDone(Message):
    """Sent by the poller: an order that is no Poll is done; what it has found came before."""

    order: int


class OrderRefused(Message):
    """Sent by the poller: an order has failed, for the reason of a ShoalError."""

    order: int
    wire: int
    sentence: str


Order = Poll | LookAll | Look | Discard
POLLER_WELCOME = Kinds(PollerWelcomed)

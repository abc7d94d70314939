"""What the supervisor sends a client: a front end (frontend/front_end.py), a worker whose model calls others, a guest.

    ClientWelcomed or GuestWelcomed, or Refused, which ends it ─► segments and models that there are ─► ModelsKnown
    then all others, at any time

The welcome, ModelsKnown and what all front ends must know are acknowledged: a front end acknowledges what is in force
in its only loop, or under its lock. No process waits for a guest's acknowledgement, and for another client that runs
users' code only briefly. Log, traces and clients' regions concern front ends; another client passes over them.
"""

from typing import Any, TypeAlias, get_args

from shoal.messages import shared
from shoal.messages.message import Fd, Kinds, Message


class ClientWelcomed(Message):
    """A process of the server has a place in the star, and may submit requests once it gets ModelsKnown."""

    correlation_key: bytes  # of sequences that strings name (shoal/sequences.py)
    max_in_flight: int  # requests to one model
    model_namespacing: bool
    request_timeout_s: float
    answer_timeout_s: float  # for questions
    log: shared.LogSettings
    state: dict[str, Any]  # the options that front ends answer by: fields of ServerState
    segment: Fd  # its own, writable
    link: Fd  # written by the batcher
    bell: Fd  # its own
    batcher_bell: Fd  # the batcher's, of this client
    counters: Fd  # the table of counters, to read


class GuestWelcomed(Message):
    """A process that is not of the server has a place in the star, and may submit requests once it gets ModelsKnown."""

    correlation_key: bytes
    max_in_flight: int
    model_namespacing: bool
    request_timeout_s: float
    answer_timeout_s: float
    segment: Fd  # its own, writable
    link: Fd  # written by the batcher
    bell: Fd  # for both ways


class ModelChanged(Message):
    """A version of a model is in this state, or serves as before with other instances."""

    name: str
    namespace: str
    version: int  # NO_VERSION for a model that has failed before any was known
    model_id: int
    row: int  # of the table of counters
    state: str  # a word of Triton's repository index
    reason: str
    is_failed: bool  # all its instances died again and again
    is_polled: bool  # False: its configuration could not be read
    num_instances: int
    num_instances_up: int
    config: dict[str, Any] | None  # None while it is not final: as it was before
    groups: list[str]  # names of its instance groups, by number
    labels: dict[str, Any]  # by output, the lines of its label file
    load_seconds: float
    has_ready_check: bool
    is_cached: bool


class ModelForgotten(Message):
    """A version of a model is in no list any more."""

    name: str
    namespace: str
    version: int


class ModelsKnown(Message):
    """The client has been sent all models: it starts."""


class ServerStopping(Message):
    """The server takes no more requests, and ends when it has answered those it has."""


class QuestionAnswered(Message):
    """The answer to QuestionAsked: a result or, where `wire` is not 0, the ShoalError that refuses it."""

    question: int
    wire: int = 0
    sentence: str = ""
    result: Any = None


class TraceSettingsChanged(Message):
    """Requests are traced by these settings from now on."""

    settings: dict[str, dict[str, Any]]  # TraceSetting by model; "" is the one of all others
    outlet: Fd | None  # where traces go to the tracer, always the same; None: nothing is traced


class RegionRegistered(Message):
    """Clients of HTTP and gRPC may name a region of their shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int
    memory: Fd


class RegionUnregistered(Message):
    """A region of clients' shared memory may be named no more; all of them where the name is ""."""

    name: str


ToClient: TypeAlias = (
    shared.SegmentAnnounced
    | shared.SegmentGone
    | shared.SegmentMissing
    | shared.BatcherReplaced
    | shared.PayloadNews
    | ModelChanged
    | ModelForgotten
    | ModelsKnown
    | ServerStopping
    | QuestionAnswered
    | TraceSettingsChanged
    | RegionRegistered
    | RegionUnregistered
    | shared.LedgerWanted
    | shared.LogChanged
    | shared.Ping
)
TO_CLIENT: Kinds[ToClient] = Kinds(*get_args(ToClient))
CLIENT_WELCOME = Kinds[ClientWelcomed | shared.Refused](ClientWelcomed, shared.Refused)
GUEST_WELCOME = Kinds[GuestWelcomed | shared.Refused](GuestWelcomed, shared.Refused)

"""Messages that several kinds of processes receive, or send, with one meaning.

supervisor ── Ping, LogChanged, LedgerWanted, SegmentAnnounced, … ──► front ends, batcher, workers
any ── Acknowledged (of a message with a sequence number), LedgerCounted ──► supervisor
"""

from typing import Any, TypeAlias, TypedDict

from shoal.messages.message import Fd, Kinds, Message

#: A model's configuration: Triton's fields by their names, as of ModelConfig; free in form, checked by
#: shoal/model_config.
Config: TypeAlias = dict[str, Any]


class LogSettings(TypedDict, total=False):
    """The arguments of `shoal.log.configure`."""

    log_verbose: int
    log_info: bool
    log_warning: bool
    log_error: bool
    log_format: str


class TraceSettingFields(TypedDict):
    """The fields of a TraceSetting (tracer/settings.py)."""

    level: int
    rate: int
    count: int
    log_frequency: int
    file: str
    mode: str
    revision: int


class Acknowledged(Message):
    """Sent to the supervisor: the sender has applied the message with this sequence number."""

    seq: int


class Ping(Message):
    """Sent by the supervisor: its acknowledgement shows that the receiver's loop runs, and has applied all messages
    before."""


class LogChanged(Message):
    """Sent by the supervisor: settings of the log, in force from now on."""

    settings: LogSettings


class LedgerWanted(Message):
    """Sent by the supervisor: the receiver sends LedgerCounted before it acknowledges this."""


class LedgerCounted(Message):
    """Sent to the supervisor: how often the sender has acquired and released each resource (shoal/ledger.py)."""

    counts: dict[str, int]


class Refused(Message):
    """Sent by the supervisor to a client that gets no place, or by a worker whose model cannot be loaded: the error
    (`shoal.errors.from_wire`)."""

    wire: int
    sentence: str


class SegmentAnnounced(Message):
    """Sent by the supervisor to front ends and workers, and as the answer to SegmentWanted: the receiver maps the
    segment of this owner id, to read blocks in it."""

    owner: int
    segment: Fd
    guest: int = 0  # owner id of the guest that writes it; 0: a process of the server does


class SegmentMissing(Message):
    """Sent by the supervisor as the answer to SegmentWanted: no segment that the process may read has this owner id."""

    owner: int


class SegmentGone(Message):
    """Sent by the supervisor: the receiver unmaps the segment, which no record names any more."""

    owner: int


class BatcherReplaced(Message):
    """Sent by the supervisor to clients and workers: another batcher serves, and does not know their requests."""


class PoisonFound(Message):
    """Sent by the batcher, and by the supervisor to the batcher's successor: a request has ended so many instances that
    equal ones are refused."""

    model_id: int
    sample_low: int  # digests of the request's content (batcher/scheduling/suspects.py)
    sample_high: int
    digest_low: int
    digest_high: int
    num_deaths: int
    num_refusals: int
    refused_until_ns: int  # monotonic
    until_ns: int  # monotonic; then the request is no suspect any more


class SegmentWanted(Message):
    """Sent to the supervisor: a record names a segment that the sender does not know; SegmentAnnounced or
    SegmentMissing answers."""

    owner: int


class PayloadWanted(Message):
    """Sent to the supervisor: the sender needs a segment for one payload that its slab does not take; answered by
    PayloadGranted or PayloadRefused."""

    request: int  # the sender's own number of the request
    nbytes: int
    model_id: int = 0  # the model that the payload is for; 0 for a worker's result


class PayloadGranted(Message):
    """Sent by the supervisor: the segment for a payload; its writer maps it, and sends PayloadMapped."""

    request: int
    owner: int
    may_be_kept: bool  # kept for the next payload, once this one is released
    segment: Fd  # writable


class PayloadRefused(Message):
    """Sent by the supervisor: a payload gets no segment, because of this ShoalError."""

    request: int
    wire: int
    sentence: str


class PayloadMapped(Message):
    """Sent to the supervisor: the writer has mapped a payload's segment, which may now be sealed and announced."""

    owner: int


class PayloadReady(Message):
    """Sent by the supervisor: the readers of a payload's segment have mapped it, so records may name it."""

    owner: int


#: The answers to PayloadWanted, and the answer to PayloadMapped.
PayloadNews: TypeAlias = PayloadGranted | PayloadRefused | PayloadReady
PAYLOAD_NEWS: Kinds[PayloadNews] = Kinds(PayloadGranted, PayloadRefused, PayloadReady)


class PayloadReleased(Message):
    """Sent to the supervisor: the writer of a payload gives its segment back."""

    owner: int

"""Messages that several kinds of processes receive, or send, with one meaning.

supervisor ── Ping, LogChanged, LedgerWanted, SegmentAnnounced, … ──► front ends, batcher, workers
any ── Acknowledged (what has a sequence number is in force), LedgerCounted ──► supervisor
"""

from typing import Any, TypeAlias

from shoal.messages.message import Fd, Kinds, Message

#: The arguments of `shoal.log.configure`.
LogSettings = dict[str, Any]


class Acknowledged(Message):
    """Sent to the supervisor: what the message with this sequence number says is in force in the sender."""

    seq: int


class Ping(Message):
    """Sent by the supervisor: its acknowledgement says that the receiver's loop turns, and has applied all before."""


class LogChanged(Message):
    """Sent by the supervisor: the log has these settings from now on."""

    settings: LogSettings


class LedgerWanted(Message):
    """Sent by the supervisor: the receiver answers LedgerCounted before it acknowledges this."""


class LedgerCounted(Message):
    """Sent to the supervisor: what the sender has acquired and released, by name (shoal/ledger.py)."""

    counts: dict[str, int]


class Refused(Message):
    """Sent by the supervisor to a client that gets no place, or by a worker whose model cannot be loaded: the error
    that says why (`shoal.errors.from_wire`)."""

    wire: int
    sentence: str


class SegmentAnnounced(Message):
    """Sent by the supervisor to front ends and workers, and as the answer to SegmentWanted: the receiver maps this
    owner's segment, to read blocks in it."""

    owner: int
    segment: Fd
    guest: int = 0  # the owner id of the guest that writes it; 0: one of the server's own processes does


class SegmentMissing(Message):
    """Sent by the supervisor as the answer to SegmentWanted: no segment that the process may read has this owner id."""

    owner: int


class SegmentGone(Message):
    """Sent by the supervisor: the receiver unmaps the segment, which no record names any more."""

    owner: int


class BatcherReplaced(Message):
    """Sent by the supervisor to clients and workers: another batcher serves, which knows nothing of what is open."""


class SegmentWanted(Message):
    """Sent to the supervisor: a record names a segment that the sender does not know; SegmentAnnounced or
    SegmentMissing answers."""

    owner: int


class PayloadWanted(Message):
    """Sent to the supervisor: the sender asks for a segment for one payload that its slab does not take;
    PayloadGranted or PayloadRefused answers."""

    request: int  # a number of the sender's own
    nbytes: int
    model_id: int = 0  # the model that the payload is for; 0 where it is a worker's result


class PayloadGranted(Message):
    """Sent by the supervisor: here is the segment; the sender of PayloadWanted maps it, and says PayloadMapped."""

    request: int
    owner: int
    may_be_kept: bool  # for the next payload, once this one is of no use
    segment: Fd  # writable


class PayloadRefused(Message):
    """Sent by the supervisor: there is no segment for a payload, for the reason of a ShoalError."""

    request: int
    wire: int
    sentence: str


class PayloadMapped(Message):
    """Sent to the supervisor: the writer has mapped a payload's segment, which may now be sealed and announced."""

    owner: int


class PayloadReady(Message):
    """Sent by the supervisor: the readers of a payload's segment have mapped it, so records may name it."""

    owner: int


#: The answers to PayloadWanted, and what follows PayloadMapped.
PayloadNews: TypeAlias = PayloadGranted | PayloadRefused | PayloadReady
PAYLOAD_NEWS: Kinds[PayloadNews] = Kinds(PayloadGranted, PayloadRefused, PayloadReady)


class PayloadReleased(Message):
    """Sent to the supervisor: a payload's segment is of no more use to its writer."""

    owner: int

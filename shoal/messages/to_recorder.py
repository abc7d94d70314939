"""Messages to the recorder (recorder/main.py) from the supervisor, and from it to the supervisor.

RecorderConnected ─► RecorderWelcomed ─► RingAdded, one for each batcher, in order ─► RingDrained comes back
                                         LogChanged, BoundChanged at any time; RequestsLost comes back
"""

from collections.abc import Sequence

from shoal.messages.message import Fd, Kinds, Message
from shoal.messages.shared import LogSettings


class RecorderConnected(Message):
    """Sent by the recorder, first: it has its imports done, and waits for RecorderWelcomed."""


class RecorderWelcomed(Message):
    """Sent by the supervisor, first: where requests are recorded, and without which of their parts."""

    log: LogSettings
    folder: str
    max_bytes: int
    max_age_s: float
    redact: Sequence[str]


class RingAdded(Message):
    """Sent by the supervisor: a batcher's ring; the batchers before it are dead."""

    number: int
    segment: Fd  # written by the batcher; to read
    recorders: Fd  # written by the recorder


class BoundChanged(Message):
    """Sent by the supervisor: how many bytes the folder may have from now on."""

    max_bytes: int


class RingDrained(Message):
    """Sent to the supervisor: all that a dead batcher left in its ring has been taken."""

    number: int


class RequestsLost(Message):
    """Sent to the supervisor: this number of further requests could not be written to the disk."""

    number: int


RECORDER_WELCOME = Kinds(RecorderWelcomed)

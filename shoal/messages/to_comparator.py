"""Messages to the comparator (recorder/comparator.py) from the supervisor, and from it to the supervisor.

ComparatorConnected ─► ComparatorWelcomed ─► RingAdded, one for each batcher, in order ─► RingDrained comes back
                                             LogChanged, ComparisonsChanged at any time; AnswersCompared comes back
"""

from collections.abc import Sequence
from typing import Any

from shoal.messages.message import Kinds, Message
from shoal.messages.shared import LogSettings


class ComparatorConnected(Message):
    """Sent by the comparator, first: it has its imports done, and waits for ComparatorWelcomed."""


class ComparatorWelcomed(Message):
    """Sent by the supervisor, first: how answers are compared."""

    log: LogSettings
    rules: Sequence[Any]  # each a ShadowRule (shoal/shadow.py)


class ComparisonsChanged(Message):
    """Sent by the supervisor: how answers are compared from now on."""

    rules: Sequence[Any]


class AnswersCompared(Message):
    """Sent to the supervisor: the comparisons of a pair of versions since the last such message."""

    model: str
    primary: int
    shadow: int
    agreed: int
    disagreed: int
    failed: int
    primary_ns: int  # the time that the primary has taken to compute all compared answers
    shadow_ns: int  # the time that the shadow has taken to compute all compared answers
    examples: Sequence[Any]  # of disagreements, each as `recorder.disagreements.example` makes it
    dropped: int  # pairs not compared: an answer cannot be read, or a comparator has ended meanwhile


COMPARATOR_WELCOME = Kinds(ComparatorWelcomed)

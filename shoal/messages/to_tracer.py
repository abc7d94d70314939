"""What the tracer (tracer/main.py) gets from the supervisor and from front ends, and sends the supervisor.

    TracerConnected ─► TracerWelcomed ─► TracingChanged, LogChanged at any time;  TracesCollected comes back
    front ends ── TraceEnded, on a socket of their own; what it does not take is dropped ──► tracer

TracingChanged is acknowledged, once what came before it is written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.messages.message import Fd, Kinds, Message
from shoal.messages.shared import LogSettings


class TracerConnected(Message):
    """Sent by the tracer: it has its imports done, and waits for TracerWelcomed."""


class TracerWelcomed(Message):
    """Sent by the supervisor, first."""

    log: LogSettings
    first_number: int  # of its traces
    since_s: float  # when the server started, wall clock
    options: Mapping[str, str]  # of OpenTelemetry's exporter; none: nothing is exported
    resource: Mapping[str, str]
    traces: Fd  # where front ends' traces come out


class TracingChanged(Message):
    """Sent by the supervisor: what is written is written by these settings from now on."""

    settings: list[dict[str, Any]]  # TraceSetting


class TracesCollected(Message):
    """Sent to the supervisor: so many traces were counted under which setting."""

    counts: Sequence[tuple[int, int]]  # revision of the setting, number of traces


class TraceEnded(Message):
    """Sent by a front end: a request that was traced has been answered."""

    trace: Sequence[Any]  # Trace
    children: Sequence[Sequence[int]]  # what the batcher says of ensembles' steps and of calls: CHILD_TRACE records
    names: Sequence[tuple[int, str]]  # of the children's models, by their ids
    num_dropped: int  # before this one, which the socket did not take


TRACER_WELCOME = Kinds(TracerWelcomed)
FROM_FRONT_END = Kinds(TraceEnded)

"""Messages to the tracer (tracer/main.py) from the supervisor and front ends, and from it to the supervisor.

    TracerConnected ─► TracerWelcomed ─► TracingChanged, LogChanged at any time;  TracesCollected comes back
    front ends ── TraceEnded, on a socket of their own; what it does not take is dropped ──► tracer

TracingChanged is acknowledged once all earlier traces are written.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from shoal.messages.message import Fd, Kinds, Message
from shoal.messages.shared import LogSettings, TraceSettingFields


class TracerConnected(Message):
    """Sent by the tracer, first: it has its imports done, and waits for TracerWelcomed."""


class TracerWelcomed(Message):
    """Sent by the supervisor, first: the state with which the tracer starts."""

    log: LogSettings
    first_number: int  # number of its first trace
    since_s: float  # the server's start, wall clock
    options: Mapping[str, str]  # of OpenTelemetry's exporter; empty: no export
    resource: Mapping[str, str]
    traces: Fd  # the socket that delivers front ends' traces


class TracingChanged(Message):
    """Sent by the supervisor: the settings by which traces are written from now on."""

    settings: list[TraceSettingFields]


class TracesCollected(Message):
    """Sent to the supervisor: numbers of traces counted since the last such message, by setting."""

    counts: Sequence[tuple[int, int]]  # revision of the setting, number of traces


#: The fields of a Trace (tracer/trace.py): revision of its setting, whether it is counted, model, version, request id,
#: stamps, tensors, context, and no children. A tensor's are activity, name, datatype, shape and bytes.
TraceFields: TypeAlias = tuple[
    int,
    bool,
    str,
    int,
    str,
    Sequence[int],
    Sequence[tuple[str, str, str, Sequence[int], bytes]],
    dict[str, str],
    Sequence[Any],
]


class TraceEnded(Message):
    """Sent by a front end: the trace of a request that has been answered."""

    trace: TraceFields
    children: Sequence[Sequence[int]]  # the batcher's CHILD_TRACE records of ensembles' steps and of calls
    names: Sequence[tuple[int, str]]  # of the children's models: id and name
    num_dropped: int  # traces before this one that the socket did not take


TRACER_WELCOME = Kinds(TracerWelcomed)
FROM_FRONT_END = Kinds(TraceEnded)

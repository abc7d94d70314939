"""The tracer: collects the traces of all front ends and writes or exports them. `python -m shoal.tracer.main`.

    front ends ── traces, as they end ──► tracer ── files, OTLP
    supervisor ── settings ──► tracer ── how many were counted ──► supervisor

The process runs while requests are traced. No process waits for it: front ends drop traces for which it is too slow,
and say so with the next trace that gets through.
"""

import logging
import select
import socket
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal import log
from shoal.control import GONE, Channel
from shoal.messages import to_tracer
from shoal.messages.message import Kinds, Message, MessageError, on, table
from shoal.messages.shared import LogChanged
from shoal.process_start import join_supervisor
from shoal.tracer.collector import Collector
from shoal.tracer.settings import TraceSetting
from shoal.tracer.trace import Trace, TracedTensor, children

if TYPE_CHECKING:
    from shoal.tracer.spans import SpanExport

# Not __name__: run with -m, this module is __main__, and the log is configured for shoal.
_log = logging.getLogger("shoal.tracer.main")

#: Most traces, or bytes of large ones, that are read before they are written: few writes, but bounded memory.
MAX_TRACES, MAX_LARGE_BYTES = 256, 1 << 20
#: Assumed bytes of the text of a child's trace (ours: seven time points, and a head with names).
CHILD_NBYTES = 600
#: How many calls of `_collect` empty the socket: Linux's usual buffer holds 550 small messages, or one with large
#: tensors.
NUM_EMPTYING_PASSES = 4
#: Seconds between two lines about dropped traces.
DROPPED_S = 1.0


class Tracer:
    """The tracer's loop. `supervisor` is the control connection, `traces` the socket that front ends send to."""

    def __init__(self, supervisor: Channel, traces: Channel, collector: Collector) -> None:
        self._supervisor = supervisor
        self._traces = traces
        self._collector = collector
        self.handlers = table(
            on(to_tracer.TracingChanged, self._set), on(LogChanged, lambda message: log.configure(**message.settings))
        )
        # Changed as traces arrive.
        self._num_dropped = 0
        self._next_line_s = 0.0

    def run(self) -> None:
        """Collect traces until the supervisor closes the connection."""
        kinds, poller = Kinds(*self.handlers), select.epoll()
        poller.register(self._supervisor.fileno(), select.EPOLLIN)
        poller.register(self._traces.fileno(), select.EPOLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                self._collect()
                if self._supervisor.fileno() in ready:
                    # Traces that arrived before the settings do not belong to them.
                    for _ in range(NUM_EMPTYING_PASSES):
                        self._collect()
                    self._apply(*self._supervisor.receive(kinds))
        except GONE:
            self._log_dropped()
            self._collector.close()

    def _apply(self, message: Message, seq: int) -> None:
        self.handlers[type(message)](message)
        self._supervisor.acknowledge(seq)

    def _set(self, message: to_tracer.TracingChanged) -> None:
        self._collector.set([TraceSetting(**setting) for setting in message.settings])

    def _collect(self) -> None:
        """Read the traces that have arrived, up to a bound, and write them."""
        wall_offset_ns = time.time_ns() - time.monotonic_ns()
        num_traces = num_large_bytes = 0
        while num_traces < MAX_TRACES and num_large_bytes < MAX_LARGE_BYTES:
            try:
                message, _ = self._traces.receive(to_tracer.FROM_FRONT_END)
            except (BlockingIOError, EOFError):
                break
            except MessageError as error:
                _log.warning("a trace cannot be read: %s", error)
                break
            trace = _trace(message)
            self._collector.add(trace, wall_offset_ns)
            self._num_dropped += message.num_dropped
            num_traces += 1
            num_large_bytes += CHILD_NBYTES * len(message.children) + sum([len(each.data) for each in trace.tensors])
        counts = self._collector.write()
        if counts:
            self._supervisor.send(to_tracer.TracesCollected(list(counts.items())))
        if time.monotonic() >= self._next_line_s:
            self._log_dropped()

    def _log_dropped(self) -> None:
        if self._num_dropped:
            _log.warning("%d traces were dropped, which came faster than they are written", self._num_dropped)
            self._num_dropped = 0
            self._next_line_s = time.monotonic() + DROPPED_S


def _trace(message: to_tracer.TraceEnded) -> Trace:
    """A trace from a front end's message, with those of the ensemble's steps and models' calls that belong to it."""
    revision, is_counted, model, version, request_id, stamps, tensors, context, _ = message.trace
    found = [TracedTensor(*tensor) for tensor in tensors]
    trace = Trace(revision, is_counted, model, version, request_id, stamps, found, context)
    return trace._replace(children=children(trace, message.children, dict(message.names)))


def _make_export(options: Mapping[str, str], resource: Mapping[str, str]) -> "SpanExport | None":
    """The exporter of spans, if there are options for it; OpenTelemetry's log goes to Shoal's."""
    if not options:
        return None
    from shoal.tracer.spans import SpanExport

    logging.getLogger("opentelemetry").handlers = log.logger.handlers
    return SpanExport(options, resource)


def main() -> int:
    """Run the process; returns its exit status."""
    joined = join_supervisor("tracer", to_tracer.TracerConnected(), to_tracer.TRACER_WELCOME)
    if joined is None:
        return 0
    supervisor, welcome = joined
    channel = Channel(socket.socket(fileno=welcome.traces))
    channel.setblocking(False)
    export = _make_export(welcome.options, welcome.resource)
    with supervisor, channel:
        Tracer(supervisor, channel, Collector(welcome.first_number, welcome.since_s, export)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

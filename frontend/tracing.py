"""Traces in a front end: which requests are traced, what is recorded of them, and how traces are sent to the tracer, or
a request's times shown to a client that asks for them.

Without tracing `ServerState.tracing` is None, and the only check is whether a client asks for times. A trace begins
when its request has been submitted (refused requests are not traced) and ends when its response has been sent. Nothing
waits for the tracer: a trace that does not fit into the tracer's socket is dropped, and counted.
"""

import array
import errno
import fcntl
import os
import socket
import termios
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.control import MAX_INLINE_BYTES, Channel
from shoal.datatypes import BY_WIRE
from shoal.errors import ShoalError
from shoal.messages.to_client import TraceSettingsChanged
from shoal.messages.to_tracer import TraceEnded
from shoal.request import TensorRef, unpack_request, unpack_response
from shoal.shm.layout import T, unpack_span
from shoal.shm.port import Port, Reply, TracedTimes
from shoal.shm.ring import Record
from shoal.star.models import ModelEntry
from shoal.timing import Execution, Points, Timing, in_words, steps_of, timing, trace_id_of, wants_timing
from shoal.tracer.sampling import Sampler, is_context
from shoal.tracer.settings import GLOBAL, TraceSetting
from shoal.tracer.trace import (
    BACKEND_OUTPUT,
    COMPUTE_END,
    QUEUE_INPUT,
    QUEUE_START,
    RECV_END,
    RECV_START,
    REQUEST_END,
    REQUEST_START,
    SEND_END,
    SEND_START,
    STAMPS,
    Trace,
    TracedTensor,
    in_order,
)

if TYPE_CHECKING:
    from shoal.frontend.prepared import PreparedRequest

#: The most bytes that one child takes in a message to the tracer: the words KEY to IS_CALL of its CHILD_TRACE
#: record, as msgpack. A child is a request that was made for the traced one.
CHILD_NBYTES = 80
#: The positions of some words among those of a child.
_PARENT, _MODEL, _START, _END = [word - T.KEY for word in (T.PARENT, T.MODEL, T.START_NS, T.END_NS)]
#: Most bytes of a trace's tensors together; beyond that, tensors are traced without their elements (ours: elements are
#: copied, then made text).
MAX_TENSOR_BYTES = 1 << 20


class TraceSender:
    """The socket to the tracer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # Changed by send, in any thread: traces dropped since the last one that was sent.
        self._num_dropped = 0

    def send(self, trace: Trace, children: Sequence[Record], names: Mapping[int, str]) -> None:
        """Send a trace to the tracer, or drop the trace. `names` are models' names by their ids.

        `children` are sent as the port's records, from which the tracer makes traces: a thousand objects made here
        would delay other clients' requests.
        """
        if self._try(trace, children, names):
            self._num_dropped = 0
        else:
            self._num_dropped += 1

    def _try(self, trace: Trace, children: Sequence[Record], names: Mapping[int, str]) -> bool:
        nbytes = CHILD_NBYTES * len(children) + sum([len(tensor.data) for tensor in trace.tensors])
        named = [(model, names.get(model, "")) for model in {record[_MODEL] for record in children}]
        try:
            # A large message is sent as a file, which the socket's bound does not count, so the lane sends one at a
            # time.
            if nbytes > MAX_INLINE_BYTES // 2 and _num_unread(self._channel):
                return False
            self._channel.send(TraceEnded(trace, children, named, self._num_dropped))
        except OSError:  # the socket is full, or the tracer has ended
            return False
        return True

    def close(self) -> None:
        """Close the socket; traces that end later are dropped."""
        self._channel.close()


def _num_unread(channel: Channel) -> int:
    """Bytes in the socket that the tracer has not read yet. Raises OSError if the socket is closed."""
    found = array.array("i", [0])
    try:
        fcntl.ioctl(channel.fileno(), termios.TIOCOUTQ, found)
    except ValueError:  # the channel was closed by this process
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    return found[0]


class TracedRequest:
    """Collects the trace of one request on its way through this process."""

    __slots__ = ("_entry", "_has_tensors", "_names", "_outlet", "_stamps", "_tensors", "_trace", "is_shown", "times")

    def __init__(
        self, outlet: TraceSender | None, trace: Trace, entry: ModelEntry, names: Mapping[int, str],
        *, has_tensors: bool, is_shown: bool,
    ) -> None:  # fmt: skip
        self._outlet = outlet  # None: the trace's times are only shown to the client
        self._trace = trace  # stamps and tensors are added when the trace ends
        self._entry = entry
        self._names = names
        self._has_tensors = has_tensors
        #: Whether the response has the request's times for the client.
        self.is_shown = is_shown
        #: The request's times from the batcher.
        self.times = TracedTimes()
        # Changed by each method: the times of the request's events, and its tensors.
        self._stamps = [0] * len(STAMPS)
        self._tensors: list[TracedTensor] = []

    def received(self, start_ns: int, end_ns: int) -> None:
        self._stamps[RECV_START], self._stamps[RECV_END] = start_ns, end_ns

    def submitted(self, block: memoryview, span: int) -> None:
        """Record the time of submission, and the request's tensors from its block, whose header is at `span`."""
        self._stamps[REQUEST_START] = time.monotonic_ns()
        if self._has_tensors:
            offset, nbytes = unpack_span(span)
            request = unpack_request(block[offset : offset + nbytes], len(block))
            self._note(QUEUE_INPUT, request.inputs, block)

    def announce(self, port: Port, number: int) -> None:
        """Ask the batcher for the times of the request; called right after its submission."""
        self.times = port.trace(number, is_shown=self.is_shown, trace_id=in_words(trace_id_of(self._trace.context)))

    def replied(self, reply: Reply) -> None:
        """Record the times and the tensors of a reply."""
        self._stamps[QUEUE_START:REQUEST_END] = reply.times
        self._stamps[REQUEST_END] = time.monotonic_ns()
        if self._has_tensors and reply.block is not None and reply.header is not None and not reply.status:
            try:
                response = unpack_response(reply.header, len(reply.block))
            except ShoalError:
                return  # the client's response is this error
            self._note(BACKEND_OUTPUT, response.outputs, reply.block)

    def _note(self, activity: str, refs: tuple[TensorRef, ...], block: memoryview) -> None:
        room = MAX_TENSOR_BYTES - sum([len(tensor.data) for tensor in self._tensors])
        for name, datatype, shape, offset, nbytes in refs:
            data = bytes(block[offset : offset + nbytes]) if nbytes <= room else b""
            room -= len(data)
            self._tensors.append(TracedTensor(activity, name, BY_WIRE[datatype].name, shape, data))

    def sending(self) -> None:
        """Record that the response begins to be sent."""
        self._stamps[SEND_START] = time.monotonic_ns()

    def sent(self) -> None:
        """End the trace and send it: the response has been sent."""
        self._stamps[SEND_END] = time.monotonic_ns()
        self.end()

    def end(self) -> None:
        """Send the trace, if the request is traced, to the tracer. Called by `sent`, or for a response that cannot be
        sent."""
        if self._outlet is not None:
            trace = self._trace._replace(stamps=in_order(self._stamps), tensors=self._tensors)
            self._outlet.send(trace, self.times.children, self._names)

    def timing(self) -> Timing:
        """The phases of the request's time, up to `sending`."""
        stamps, times = self._stamps, self.times
        execution = Execution(*times.execution) if times.execution else None
        steps = [
            (self._names.get(words[_MODEL], ""), words[_START], words[_END])
            for words in times.children
            if not words[_PARENT]
        ]
        return timing(
            Points._make((*stamps[:REQUEST_START], *stamps[QUEUE_START : COMPUTE_END + 1], stamps[SEND_START])),
            execution,
            groups=self._entry.groups,
            version=str(self._trace.version),
            steps=steps_of(steps),
        )


class Tracing:
    """Decides which requests of this process are traced: a sampler for each setting that is on. A change of settings
    replaces the whole object."""

    def __init__(
        self, settings: Mapping[str, TraceSetting], outlet: TraceSender | None, names: Mapping[int, str],
        shown_share: float = 0.0,
    ) -> None:  # fmt: skip
        """`shown_share`: the share of requests whose times are shown to their clients unasked. With empty `settings` no
        request is traced."""
        self._samplers = {model: Sampler(each) if each.is_on else None for model, each in settings.items()}
        self.outlet = outlet
        self._names = names
        self._shown_share = shown_share
        self._num_due = 0.0  # requests whose times are due to be shown; changed by sample

    def sample(self, prepared: "PreparedRequest", headers: Mapping[str, str]) -> TracedRequest | None:
        """The trace of a request, or None if it is neither to be traced nor its times to be shown. Call once for each
        request; header names are in lower case."""
        entry = prepared.entry
        is_shown = wants_timing(headers) or self._is_due()
        sampler = self._samplers.get(entry.name, self._samplers.get(GLOBAL))
        is_counted = sampler is not None and sampler.hits()
        context = _context(headers) if is_shown or (sampler is not None and sampler.heeds_context) else {}
        is_traced = sampler is not None and (is_counted or (bool(context) and sampler.heeds_context))
        if not (is_traced or is_shown):
            return None
        revision = 0 if sampler is None else sampler.revision
        trace = Trace(revision, is_counted, entry.name, entry.version, prepared.id, (), (), context)
        return TracedRequest(
            self.outlet if is_traced else None, trace, entry, self._names,
            has_tensors=is_traced and sampler is not None and sampler.has_tensors, is_shown=is_shown,
        )  # fmt: skip

    def _is_due(self) -> bool:
        """Whether the times of this request are shown to a client that does not ask."""
        self._num_due += self._shown_share
        if self._num_due < 1.0:
            return False
        self._num_due -= 1.0
        return True


def or_untraced(tracing: Tracing | None, names: Mapping[int, str]) -> Tracing:
    """`tracing`, or without it a Tracing that only shows clients the times that they ask for. `names` are those of
    models, by their ids."""
    return tracing or Tracing({}, None, names)


def _context(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that name the client's span that the request belongs to (`traceparent`, `tracestate`); empty without
    a valid one."""
    if not is_context(headers.get("traceparent", "")):
        return {}
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}


def changed(
    before: Tracing | None, message: TraceSettingsChanged, names: Mapping[int, str], shown_share: float = 0.0
) -> Tracing | None:
    """A Tracing for new settings, or None if no request is traced and no times are shown unasked. A descriptor that
    comes with the settings is the socket to the tracer; later changes bring the same socket once more, and this
    descriptor is closed.

    `names` are models' names by their ids.
    """
    if message.outlet is None:
        if before is not None and before.outlet is not None:
            before.outlet.close()
        return Tracing({}, None, names, shown_share) if shown_share else None
    if before is not None and before.outlet is not None:
        os.close(message.outlet)
        outlet = before.outlet
    else:
        channel = Channel(socket.socket(fileno=message.outlet))
        channel.setblocking(False)
        outlet = TraceSender(channel)
    settings = {model: TraceSetting(**each) for model, each in message.settings.items()}
    return Tracing(settings, outlet, names, shown_share)

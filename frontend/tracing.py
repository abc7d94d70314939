"""Traces in a front end: which requests are traced, what is noted of them on their way, and how it leaves the process.

Without traces `ServerState.tracing` is None, and only that is checked. A trace begins when its request has been
submitted (refused requests are not traced) and ends when its response has been sent. The tracer is never waited for: a
trace that does not fit into its socket is dropped, and counted.
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
from shoal.shm.port import Reply
from shoal.shm.ring import Record
from shoal.tracer.sampling import Sampler, is_context
from shoal.tracer.settings import GLOBAL, TraceSetting
from shoal.tracer.trace import (
    BACKEND_OUTPUT,
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

#: What one child takes in a message (KEY to IS_CALL of layout.T as msgpack; ours).
CHILD_NBYTES = 80
_MODEL = T.MODEL - T.KEY  # among these words
#: Bytes of a trace's tensors together; further ones have no elements (ours: elements are copied, then made text).
MAX_TENSOR_BYTES = 1 << 20


class TraceSender:
    """The way to the tracer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # Changed by send, in any thread.
        self._num_dropped = 0

    def send(self, trace: Trace, children: Sequence[Record], names: Mapping[int, str]) -> None:
        """Send a trace to the tracer, or drop it. `names` are those of models, by their ids.

        `children` go as the port has them, and the tracer makes their traces: a thousand objects at once would keep
        this process from its other clients.
        """
        if self._try(trace, children, names):
            self._num_dropped = 0
        else:
            self._num_dropped += 1

    def _try(self, trace: Trace, children: Sequence[Record], names: Mapping[int, str]) -> bool:
        nbytes = CHILD_NBYTES * len(children) + sum([len(tensor.data) for tensor in trace.tensors])
        named = [(model, names.get(model, "")) for model in {record[_MODEL] for record in children}]
        try:
            # A large message is a file of its own, of which the socket's bound knows nothing: one at a time.
            if nbytes > MAX_INLINE_BYTES // 2 and _num_unread(self._channel):
                return False
            self._channel.send(TraceEnded(trace, children, named, self._num_dropped))
        except OSError:  # the socket is full, or tracing has ended
            return False
        return True

    def close(self) -> None:
        """Close the socket; traces that still end are dropped."""
        self._channel.close()


def _num_unread(channel: Channel) -> int:
    """Bytes in the socket that the tracer has not read yet. Raises OSError where it is closed."""
    found = array.array("i", [0])
    try:
        fcntl.ioctl(channel.fileno(), termios.TIOCOUTQ, found)
    except ValueError:  # Python has no descriptor to ask the kernel about
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    return found[0]


class TracedRequest:
    """A request that is traced, on its way through this process."""

    __slots__ = ("_has_tensors", "_names", "_outlet", "_stamps", "_tensors", "_trace", "children")

    def __init__(self, outlet: TraceSender, trace: Trace, names: Mapping[int, str], *, has_tensors: bool) -> None:
        self._outlet = outlet
        self._trace = trace  # as yet without stamps and tensors
        self._names = names
        self._has_tensors = has_tensors
        #: The requests made for this one, as the port has them (Port.trace).
        self.children: Sequence[Record] = ()
        # Changed by each method.
        self._stamps = [0] * len(STAMPS)
        self._tensors: list[TracedTensor] = []

    def received(self, start_ns: int, end_ns: int) -> None:
        """Note when the request was received."""
        self._stamps[RECV_START], self._stamps[RECV_END] = start_ns, end_ns

    def submitted(self, block: memoryview, span: int) -> None:
        """Note the request's block, with its header at `span`."""
        self._stamps[REQUEST_START] = time.monotonic_ns()
        if self._has_tensors:
            offset, nbytes = unpack_span(span)
            request = unpack_request(block[offset : offset + nbytes], len(block))
            self._note(QUEUE_INPUT, request.inputs, block)

    def replied(self, reply: Reply) -> None:
        """Note a reply."""
        self._stamps[QUEUE_START:REQUEST_END] = reply.times
        self._stamps[REQUEST_END] = time.monotonic_ns()
        if self._has_tensors and reply.block is not None and reply.header is not None and not reply.status:
            try:
                response = unpack_response(reply.header, len(reply.block))
            except ShoalError:
                return  # its client is told
            self._note(BACKEND_OUTPUT, response.outputs, reply.block)

    def _note(self, activity: str, refs: tuple[TensorRef, ...], block: memoryview) -> None:
        room = MAX_TENSOR_BYTES - sum([len(tensor.data) for tensor in self._tensors])
        for name, datatype, shape, offset, nbytes in refs:
            data = bytes(block[offset : offset + nbytes]) if nbytes <= room else b""
            room -= len(data)
            self._tensors.append(TracedTensor(activity, name, BY_WIRE[datatype].name, shape, data))

    def sending(self) -> None:
        """Note that the response begins to leave."""
        self._stamps[SEND_START] = time.monotonic_ns()

    def sent(self) -> None:
        """End the trace: the response has left."""
        self._stamps[SEND_END] = time.monotonic_ns()
        self.end()

    def end(self) -> None:
        """End the trace if the response cannot be sent. Called once, instead of `sent`."""
        trace = self._trace._replace(stamps=in_order(self._stamps), tensors=self._tensors)
        self._outlet.send(trace, self.children, self._names)


class Tracing:
    """What this process traces: a sampler for each setting that is on. Replaced as a whole when settings change."""

    def __init__(self, settings: Mapping[str, TraceSetting], outlet: TraceSender, names: Mapping[int, str]) -> None:
        self._samplers = {model: Sampler(each) if each.is_on else None for model, each in settings.items()}
        self.outlet = outlet
        self._names = names

    def sample(self, prepared: "PreparedRequest", headers: Mapping[str, str]) -> TracedRequest | None:
        """The trace of a request, where it is to be traced; asked once for each. Header names are in lower case."""
        entry = prepared.entry
        sampler = self._samplers.get(entry.name, self._samplers[GLOBAL])
        if sampler is None:
            return None
        is_counted = sampler.hits()
        context = _context(headers) if sampler.heeds_context else {}
        if not is_counted and not context:
            return None
        trace = Trace(sampler.revision, is_counted, entry.name, entry.version, prepared.id, (), (), context)
        return TracedRequest(self.outlet, trace, self._names, has_tensors=sampler.has_tensors)


def _context(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that name the span a request belongs to; none where they name none."""
    if not is_context(headers.get("traceparent", "")):
        return {}
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}


def changed(before: Tracing | None, message: TraceSettingsChanged, names: Mapping[int, str]) -> Tracing | None:
    """The tracing after new settings; a descriptor that comes with them is the socket to the tracer, always the same.

    `names` are those of models, by their ids.
    """
    if message.outlet is None:
        if before is not None:
            before.outlet.close()
        return None
    if before is not None:
        os.close(message.outlet)
        outlet = before.outlet
    else:
        channel = Channel(socket.socket(fileno=message.outlet))
        channel.setblocking(False)
        outlet = TraceSender(channel)
    settings = {model: TraceSetting(**each) for model, each in message.settings.items()}
    return Tracing(settings, outlet, names)

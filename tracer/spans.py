"""A trace as OpenTelemetry's spans, and their export over OTLP/HTTP. The only file that imports the SDK; in the tracer.

    InferRequest   HTTP_RECV_START … HTTP_SEND_END; the client's span, where it sent one, is its parent
    └── MODEL      REQUEST_START … REQUEST_END
        ├── compute    COMPUTE_START … COMPUTE_END; an ensemble has none
        └── MODEL      for each step of an ensemble, and each call that a model makes with `trace=`

Time points are the events of the span they lie in, as in Triton.
"""

from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shoal.tracer.trace import (
    COMPUTE_END,
    COMPUTE_START,
    QUEUE_START,
    REQUEST_END,
    REQUEST_START,
    STAMPS,
    Numbered,
    Trace,
)

_REQUEST = (REQUEST_START, QUEUE_START, REQUEST_END)
_COMPUTE = range(COMPUTE_START, COMPUTE_END + 1)
_HTTP = [point for point in range(len(STAMPS)) if point not in _REQUEST and point not in _COMPUTE]


class SpanExport:
    """The exporter of spans. `options` and `resource` are the command line's (TraceConfig)."""

    def __init__(self, options: Mapping[str, str], resource: Mapping[str, str]) -> None:
        processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=options.get("url")),
            max_queue_size=int(options["bsp_max_queue_size"]),
            schedule_delay_millis=int(options["bsp_schedule_delay"]),
            max_export_batch_size=int(options["bsp_max_export_batch_size"]),
        )
        # Which requests to trace was decided before: a client's context that says otherwise is overruled, as in Triton.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create(dict(resource)), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("triton-server")
        self._propagator = TraceContextTextMapPropagator()

    def add(self, traces: Sequence[Numbered], wall_offset_ns: int) -> None:
        """Export a trace, and its children after it; `wall_offset_ns` is the wall clock minus the monotonic one."""
        _, _, whole = traces[0]
        parent = self._propagator.extract(whole.context, Context())
        contexts = {0: self._span("InferRequest", _HTTP, parent, whole, wall_offset_ns, {})}
        for number, up, trace in traces:
            contexts[number] = self._add_model(number, up, trace, contexts[up], wall_offset_ns)

    def _add_model(self, number: int, up: int, trace: Trace, parent: Context, wall_offset_ns: int) -> Context:
        attributes: dict[str, str | int] = {
            "triton.model_name": trace.model,
            "triton.model_version": trace.version,
            "triton.trace_id": number,
            "triton.trace_parent_id": up,
        }
        if trace.request_id:
            attributes["triton.request_id"] = trace.request_id
        model = self._span(trace.model, _REQUEST, parent, trace, wall_offset_ns, attributes)
        if trace.stamps[COMPUTE_START]:
            self._span("compute", _COMPUTE, model, trace, wall_offset_ns, {})
        return model

    def _span(
        self,
        name: str,
        points: Sequence[int],
        parent: Context,
        trace: Trace,
        wall_offset_ns: int,
        attributes: Mapping[str, str | int],
    ) -> Context:
        """Make a span of these time points; returns the context in which it is the parent."""
        events = [(STAMPS[point], trace.stamps[point] + wall_offset_ns) for point in points if trace.stamps[point]]
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=events[0][1])
        for event, time_ns in events:
            span.add_event(event, timestamp=time_ns)
        span.end(events[-1][1])
        return set_span_in_context(span, parent)

    def close(self) -> None:
        """Send the spans that wait; how long that takes depends on their receiver."""
        self._provider.shutdown()

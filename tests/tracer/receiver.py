"""A receiver of OTLP over HTTP: reads the real protobuf, keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.listening import listening


class Span(NamedTuple):
    """A span as it was sent; ids in hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    events: list[tuple[str, int]]
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Receiver:
    """The spans that have come, and a way to wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: list[Span] = []
        self.url = ""

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for group in request.resource_spans:
                resource = _values(group.resource.attributes)
                for scope in group.scope_spans:
                    self._spans += [_span(span, resource) for span in scope.spans]
            self._changed.notify_all()

    def spans(self, count: int, timeout_s: float = 60.0) -> list[Span]:
        """The first so many; waits for them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._spans) >= count, timeout_s), self._spans
            return self._spans[:]


def _span(span: Any, resource: dict[str, Any]) -> Span:
    events = [(event.name, event.time_unix_nano) for event in span.events]
    assert span.kind == 2  # a server's
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        events,
        _values(span.attributes),
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            receiver.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name for it
            """Silent."""

    with listening(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        yield receiver

"""The transport of one request on the road that may be traced: notes the times of the request's events."""

import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from shoal.frontend.response import Response
from shoal.frontend.tracing import TracedRequest, Tracing
from shoal.timing import as_header

if TYPE_CHECKING:
    from shoal.frontend.prepared import PreparedRequest
    from shoal.frontend.road.transport import Executions, ModelResponse, StreamedResponse, Transport


class TracedTransport:
    """A Transport for one request. `begun_ns` is when the request's head had come; by now its body has come, too."""

    def __init__(self, transport: "Transport", tracing: Tracing, headers: Mapping[str, str], begun_ns: int) -> None:
        self._transport = transport
        self._tracing = tracing
        self._headers = headers
        self._received_ns = begun_ns, time.monotonic_ns()
        # Changed by infer and stream.
        self._trace: TracedRequest | None = None

    def infer(self, prepared: "PreparedRequest", trace: TracedRequest | None = None) -> "ModelResponse":
        """Run a prepared request, see Transport.infer; its trace begins here if it is to be traced."""
        return self._transport.infer(prepared, self._traced(prepared, trace))

    def stream(
        self, prepared: "PreparedRequest", trace: TracedRequest | None = None
    ) -> "Generator[StreamedResponse, None, None]":
        """Run a prepared request, see Transport.stream; its trace begins here if it is to be traced."""
        return self._transport.stream(prepared, self._traced(prepared, trace))

    def _traced(self, prepared: "PreparedRequest", trace: TracedRequest | None) -> TracedRequest | None:
        self._trace = trace or self._tracing.sample(prepared, self._headers)
        if self._trace is not None:
            self._trace.received(*self._received_ns)
        return self._trace

    def several(self) -> "AbstractContextManager[Executions]":
        """Run several requests, see Transport.several; they are not traced."""
        return self._transport.several()

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        return self._transport.ask(verb, arguments, timeout_s)

    def ending_trace(self, response: Response) -> Response:
        """The response with a `close` that also ends the trace; the trace notes that the response begins to be sent."""
        trace, close = self._trace, response.close
        if trace is None:
            return response

        def sent() -> None:
            if close is not None:
                close()
            trace.sent()

        trace.sending()
        headers = response.headers
        if trace.is_shown:
            headers = (*headers, ("Server-Timing", as_header(trace.timing())))
        return response._replace(headers=headers, close=sent)

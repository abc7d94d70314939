"""The road's way into shared memory for one request that may be traced: notes what the road's own does not see."""

import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from shoal.frontend.response import Response
from shoal.frontend.tracing import TracedRequest, Tracing

if TYPE_CHECKING:
    from shoal.frontend.prepared import PreparedRequest
    from shoal.frontend.road.transport import ModelResponse, StreamedResponse, Transport


class TracedTransport:
    """A Transport. `begun_ns` is when the request's head had come; its body has by now."""

    def __init__(self, transport: "Transport", tracing: Tracing, headers: Mapping[str, str], begun_ns: int) -> None:
        self._transport = transport
        self._tracing = tracing
        self._headers = headers
        self._received_ns = begun_ns, time.monotonic_ns()
        # Changed by infer and stream.
        self._trace: TracedRequest | None = None

    def infer(self, prepared: "PreparedRequest", trace: TracedRequest | None = None) -> "ModelResponse":
        """Like the transport's; the trace is this request's."""
        return self._transport.infer(prepared, self._traced(prepared, trace))

    def stream(
        self, prepared: "PreparedRequest", trace: TracedRequest | None = None
    ) -> "Generator[StreamedResponse, None, None]":
        """Like the transport's; the trace is this request's."""
        return self._transport.stream(prepared, self._traced(prepared, trace))

    def _traced(self, prepared: "PreparedRequest", trace: TracedRequest | None) -> TracedRequest | None:
        self._trace = trace or self._tracing.sample(prepared, self._headers)
        if self._trace is not None:
            self._trace.received(*self._received_ns)
        return self._trace

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor, see Transport."""
        return self._transport.ask(verb, arguments, timeout_s)

    def see_off(self, response: Response) -> Response:
        """The same response, except that its `close` also ends the trace."""
        trace, close = self._trace, response.close
        if trace is None:
            return response

        def sent() -> None:
            if close is not None:
                close()
            trace.sent()

        trace.sending()
        return response._replace(close=sent)

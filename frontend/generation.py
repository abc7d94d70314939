"""The responses of a model to one request as one response over HTTP: whole, or a stream of server-sent events.

A `Rendering` decides what the model's responses become: flat JSON, or OpenAI's objects. A lane calls it when replies
come (http/generations.py), the road in a thread that waits for replies (`respond`). Pure but for the transport that
`respond` is given. Front-end processes.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.errors import ShoalError
from shoal.frontend.call import Handler, HandlerCall
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.recorded_headers import as_answered
from shoal.frontend.response import Headers, Response
from shoal.reasons import ModelGoneError
from shoal.request import InferResponse
from shoal.star.models import ModelEntry

if TYPE_CHECKING:
    from shoal.frontend.road.transport import StreamedResponse, Transport

#: The head of a stream of events.
EVENTS: Headers = (("Content-Type", "text/event-stream; charset=utf-8"),)


class Failure(NamedTuple):
    """The bytes that a stream sends for an error."""

    status: int  # status and headers count only if nothing has been sent yet
    headers: Headers
    data: bytes
    is_over: bool  # whether the stream ends with this error


class Rendering(Protocol):
    """Turns the responses to one request into the text of one response over HTTP."""

    prepared: PreparedRequest
    is_stream: bool
    headers: Headers  # the headers of a response that is a stream

    def add(self, response: InferResponse, block: memoryview) -> bytes:
        """Handle the model's next response; returns the bytes that a stream sends for it. The caller keeps the block.
        Raises ShoalError for a response that cannot be rendered."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the response is complete before the model's last response; the caller then cancels the model's
        request."""
        ...

    def end(self) -> bytes:
        """The bytes that end a stream, to be sent behind the model's last response."""
        ...

    def body(self) -> Response:
        """The whole response, if it is no stream, after the model's last response. Raises ShoalError."""
        ...

    def failed(self, error: ShoalError, *, has_begun: bool) -> Failure:
        """The bytes that a stream sends for an error; `has_begun`: the response's head has been sent."""
        ...

    def refusal(self, error: ShoalError) -> Response:
        """The whole response for an error, if nothing has been sent."""
        ...


class Plan(NamedTuple):
    """A request that a Rendering answers, before its model is looked up: the model's name, and the function that
    prepares the request for the model."""

    name: str
    version: str | None
    prepare: Callable[[ModelEntry], Rendering]  # raises ShoalError where the request does not fit the model


#: A function that makes the plan of a request. Never waits; raises ShoalError.
Planner = Callable[[HandlerCall], Plan]
#: The planners of handlers whose requests a lane submits by itself, without calling the handler.
PLANNERS: dict[Handler, Planner] = {}


def event(text: bytes) -> bytes:
    """A server-sent event with this JSON."""
    return b"data: " + text + b"\n\n"


def respond(rendering: Rendering, transport: "Transport") -> Response:
    """The response to a prepared request, on the road. Closing a stream early cancels the request. Raises ShoalError
    for a failure before the model's first response, and for any error of a response that is no stream."""
    if rendering.is_stream:
        return _stream(rendering, transport)
    with closing(transport.stream(rendering.prepared)) as parts:
        for part in parts:
            _take(rendering, part)
            if rendering.is_complete:
                break
    return rendering.body()


def _stream(rendering: Rendering, transport: "Transport") -> Response:
    parts = transport.stream(rendering.prepared)
    try:
        part = next(parts)
        try:
            first = Failure(200, rendering.headers, _take(rendering, part), is_over=False)
        except ModelGoneError:
            raise
        except ShoalError as error:
            first = rendering.failed(error, has_begun=False)
    except BaseException:
        parts.close()
        raise
    return Response(first.status, first.headers, close=parts.close, stream=_events(rendering, first, parts))


def _events(rendering: Rendering, first: Failure, parts: "Iterator[StreamedResponse]") -> Iterator[bytes]:
    data, is_over = first.data, first.is_over
    while True:
        if data:
            yield data
        if is_over:
            return
        try:
            part = None if rendering.is_complete else next(parts, None)
            if part is not None:
                data = _take(rendering, part)
                continue
            data, is_over = rendering.end(), True
        except ShoalError as error:  # the status has been sent
            failure = rendering.failed(error, has_begun=True)
            data, is_over = failure.data, failure.is_over


def _take(rendering: Rendering, part: "StreamedResponse") -> bytes:
    """The bytes that a stream sends for one reply; b"" for an end without a response. Raises the model's error, or the
    reason why its response cannot be rendered."""
    if part.error is not None:
        raise part.error
    answer = part.answer
    if answer is None:
        return b""
    rendering.prepared = as_answered(rendering.prepared, answer.other_version)
    try:
        return rendering.add(answer.response, answer.block)
    finally:
        answer.release()

"""A prediction that its handler answers in parts (send_intermediate_predict_response): each part is sent as it comes,
as a chunk of the body.

Status and headers are those of the first part. A response of one part is not a stream: it has a Content-Length. An
error before the first part is answered like that of any prediction; a later one ends the connection within the body, so
that no client takes the parts that it has received for the whole. Runs on the road.
"""

import errno
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from shoal.errors import InternalError, ShoalError
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import Headers, Response
from shoal.frontend.torchserve.predictions import answered, response_of

if TYPE_CHECKING:
    from shoal.frontend.road.transport import ModelResponse, StreamedResponse, Transport


def stream(prepared: PreparedRequest, transport: "Transport", headers: Headers) -> Response:
    """The response of a model that may answer several times; `headers` are added to it. Closing it early cancels the
    request. Raises ShoalError for an error in front of all parts."""
    parts = transport.stream(prepared)
    try:
        part = next(parts)
        if part.error is not None:
            raise part.error
        if part.answer is None:
            raise InternalError("the model ended its response without a part of it")
        response = _response(part.answer, headers)
        if part.is_final:
            return part.answer.send(response)
        first = _body(response, part.answer)
    except BaseException:
        parts.close()
        raise
    return response._replace(chunks=(), close=parts.close, stream=_pieces(first, parts))


def _response(answer: "ModelResponse", headers: Headers) -> Response:
    try:
        response = response_of(answered(answer.response, answer.block))
    except BaseException:
        answer.release()
        raise
    return response._replace(headers=(*headers, *response.headers))


def _body(response: Response, answer: "ModelResponse") -> bytes:
    """The body of a part, copied; the worker's block is released."""
    try:
        return b"".join(response.chunks)
    finally:
        answer.release()


def _pieces(first: bytes, parts: "Generator[StreamedResponse, None, None]") -> Iterator[bytes]:
    yield first
    try:
        for part in parts:
            if part.error is not None:
                raise part.error
            if part.answer is not None:
                yield _body(_response(part.answer, ()), part.answer)
    except ShoalError as error:
        # The status has gone. gunicorn closes the connection without a last chunk, and does not log this exception.
        raise ConnectionResetError(errno.ECONNRESET, str(error)) from None

"""`/v2/models/M[/versions/V]/generate` and `…/generate_stream`: flat JSON in, flat JSON out. Front-end processes.

    {"text_input": "hello", "temperature": 0.5}  →  {"model_name": "m", "model_version": "1", "text_output": "hi"}

A key that is an input's name is that tensor, a scalar or a flat list, of which the shape is worked out; any other is a
request parameter. The object `parameters` is flattened. `generate` wants exactly one response of the model;
`generate_stream` sends each as an event of its stream, as it comes.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from math import prod
from typing import TYPE_CHECKING, Any

import orjson

from shoal.datatypes import BY_WIRE
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.frontend import read_json as door
from shoal.frontend.header_forwarding import Forwarded, check_forwarded
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import JSON_CONTENT, Headers, Response, error_response
from shoal.frontend.v2.infer import parse_id, parse_parameter
from shoal.frontend.v2.json_tensors import decode_data, encode_text
from shoal.model_config.signature import Signature, TensorSpec
from shoal.reasons import ModelGoneError
from shoal.request import InferResponse, Parameters
from shoal.star.models import ModelEntry, client_shape
from shoal.star.validation import ParsedInput, log_prefix, validate

if TYPE_CHECKING:
    from shoal.frontend.road.transport import StreamedResponse, Transport

_NESTED = "parameters"
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
EVENTS: Headers = (("Content-Type", "text/event-stream; charset=utf-8"),)


def generate(prepared: PreparedRequest, transport: "Transport") -> Response:
    """Run a prepared request and return its only response as JSON. Raises ShoalError; InternalError if there is not
    exactly one response."""
    with closing(transport.stream(prepared)) as parts:
        texts: list[bytes] = []
        for part in parts:
            texts += _text(prepared, part)
            if len(texts) > 1:
                break
    if len(texts) != 1:
        raise InternalError(NOT_ONE)
    return Response(200, JSON_CONTENT, tuple(texts))


def generate_stream(prepared: PreparedRequest, transport: "Transport") -> Response:
    """Run a prepared request and send its responses as server-sent events. If the first one is an error, it sets the
    status.

    Errors before any response are raised. Closing the response early cancels the request.
    """
    parts = transport.stream(prepared)
    status, headers = 200, EVENTS
    try:
        part = next(parts)
        try:
            first = _text(prepared, part)
        except ModelGoneError:
            raise
        except ShoalError as error:
            status, headers, text = first_error(error)
            first = [text]
    except BaseException:
        parts.close()
        raise
    return Response(status, headers, close=parts.close, stream=_events(prepared, first, parts))


def _events(prepared: PreparedRequest, first: Sequence[bytes], parts: "Iterator[StreamedResponse]") -> Iterator[bytes]:
    texts = first
    while True:
        for text in texts:
            yield event(text)
        try:
            texts = _text(prepared, next(parts))
        except StopIteration:
            return
        except ShoalError as error:  # the status has been sent
            texts = [error_text(error)]


def event(text: bytes) -> bytes:
    """A server-sent event with this JSON."""
    return b"data: " + text + b"\n\n"


def error_text(error: ShoalError) -> bytes:
    """The JSON of an event for an error."""
    return bytes(error_response(error).chunks[0])


def first_error(error: ShoalError) -> tuple[int, Headers, bytes]:
    """Status and headers of a stream that begins with an error, and the JSON of its first event."""
    response = error_response(error)
    return response.status, EVENTS + response.headers[len(JSON_CONTENT) :], bytes(response.chunks[0])


def _text(prepared: PreparedRequest, part: "StreamedResponse") -> Sequence[bytes]:
    """A model's response as JSON, in a list; an empty list for a mere end. Raises the model's error, or the reason
    why it cannot be JSON."""
    if part.error is not None:
        raise part.error
    answer = part.answer
    if answer is None:
        return ()
    try:
        return (flatten(prepared, answer.response, answer.block),)
    finally:
        answer.release()


# ---------------------------------------------------------------------------------------------------------------
# The request


def prepare(
    entry: ModelEntry, headers: Mapping[str, str], body: memoryview, max_input_size: int, forwarded: Forwarded
) -> PreparedRequest:
    """Parses and validates the body; `headers` have lower-case keys. Raises ShoalErrors with Triton's sentences."""
    if headers.get("content-encoding", "") not in ("", "identity"):
        raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")
    request = door.read_json(body, max_input_size)
    id_ = parse_id(request)
    mapping = _Mapping(entry, id_, max_input_size)
    mapping.take(request)
    _refuse_repeated(door.repeated_key(body, mapping.num_members), entry.signature, id_)
    check_forwarded(forwarded)
    inputs, rows, shape_key = validate(entry.signature, id_, list(mapping.inputs.values()), ())
    parameters = {**mapping.parameters, **forwarded}
    return PreparedRequest(entry, id_, inputs, (), False, parameters, rows, shape_key, 0, 0)


def _refuse_repeated(key: str | None, signature: Signature, id_: str) -> None:
    """Raises InvalidArgumentError for a key that the request has twice, an input's in Triton's words."""
    if key is not None:
        role = "input" if key in signature.inputs else "parameter"
        raise InvalidArgumentError(f"{log_prefix(id_)}{role} '{key}' already exists in request")


class _Mapping:
    """Turns the members of one request into inputs and parameters."""

    def __init__(self, entry: ModelEntry, id_: str, max_input_size: int) -> None:
        self._signature = entry.signature
        self._id = id_
        self._max_input_size = max_input_size
        # Changed by take.
        self.inputs: dict[str, ParsedInput] = {}
        self.parameters: Parameters = {}
        self.num_members = 0  # of the request and of its object `parameters` together
        self._nbytes = 0

    def take(self, members: Any, *, is_nested: bool = False) -> None:
        """Map all members of an object, in their order. Raises InternalError."""
        if type(members) is not dict:
            raise InternalError("attempt to get members for non-object")
        self.num_members += len(members)
        for key, value in members.items():
            if key == _NESTED and not is_nested:
                self._take_nested(value)
            elif key in self._signature.inputs:
                self._take_input(key, value)
            elif key != "id" or is_nested:
                self.parameters[key] = parse_parameter(key, value)

    def _take_nested(self, members: Any) -> None:
        if _NESTED in self._signature.inputs:
            raise InvalidArgumentError(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if type(members) is not dict:
            raise InternalError(f"Expected JSON object for keyword: '{_NESTED}': {door.wrong_type('object')}")
        try:
            self.take(members, is_nested=True)
        except ShoalError as error:
            raise type(error)(f"Converting keyword: '{_NESTED}': {error}") from None

    def _take_input(self, name: str, value: Any) -> None:
        if name in self.inputs:
            raise InvalidArgumentError(f"{log_prefix(self._id)}input '{name}' already exists in request")
        spec = self._signature.inputs[name]
        elements = value if type(value) is list else [value]
        shape = fitted(self._dims(spec), len(elements))
        if shape is None:
            raise InvalidArgumentError(f"The schema can not convert input '{name}' to tensor with proper shape")
        # No limit for one tensor: it is the sum of all that is limited.
        data, num_strings = decode_data(name, spec.datatype, len(elements), elements, sys.maxsize)
        self._nbytes += len(data)
        if self._nbytes > self._max_input_size:
            raise InvalidArgumentError(
                f"request size of {self._nbytes} bytes with input '{name}' of size {len(data)} bytes exceeds the "
                f"maximum allowed input size of {self._max_input_size}. "
                "Use --http-max-input-size to increase the limit."
            )
        self.inputs[name] = ParsedInput(name, spec.datatype, shape, data, num_strings)

    def _dims(self, spec: TensorSpec) -> tuple[int, ...]:
        return (-1, *spec.dims) if self._signature.max_batch_size > 0 else spec.dims


def fitted(dims: Sequence[int], num_elements: int) -> tuple[int, ...] | None:
    """The shape with these dims that has `num_elements` elements; None if there is none.

    The innermost -1 becomes the number that the fixed sizes leave, any other -1 becomes 1.
    """
    fixed = prod([dim for dim in dims if dim != -1])
    if not fixed or num_elements % fixed:
        return None
    left = num_elements // fixed
    shape: list[int] = []
    for dim in reversed(dims):
        if dim == -1:
            dim, left = left, 1
        shape.append(dim)
    return tuple(reversed(shape)) if left == 1 else None


# ---------------------------------------------------------------------------------------------------------------
# The response


def flatten(prepared: PreparedRequest, response: InferResponse, block: memoryview) -> bytes:
    """A response as one flat object, its keys in order as in Triton; a tensor of one element is a scalar."""
    members: dict[str, Any] = {}
    for ref in response.outputs:
        num_elements = prod(client_shape(prepared.entry, ref))
        view = block[ref.offset : ref.offset + ref.nbytes]
        text = encode_text(ref.name, BY_WIRE[ref.datatype], num_elements, view)
        members[ref.name] = orjson.Fragment(text[1:-1] if num_elements == 1 else text)
    members.update(response.parameters)
    members.update(model_name=prepared.entry.name, model_version=str(prepared.entry.version))
    if prepared.id:
        members["id"] = prepared.id
    return orjson.dumps(members, option=orjson.OPT_SORT_KEYS)

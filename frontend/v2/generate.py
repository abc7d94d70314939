"""`/v2/models/M[/versions/V]/generate` and `…/generate_stream`: flat JSON in, flat JSON out. Front-end processes.

    {"text_input": "hello", "temperature": 0.5}  →  {"model_name": "m", "model_version": "1", "text_output": "hi"}

A key that is an input's name holds that tensor's data, a scalar or a flat list, from which the shape is worked out; any
other key but `id` is a request parameter. The object `parameters` is flattened. `generate` requires exactly one
response of the model; `generate_stream` sends each response as an event of a stream, as the response comes.
"""

import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import orjson

from shoal.datatypes import BY_WIRE
from shoal.deterministic import alone_flag
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.frontend import read_json as door
from shoal.frontend.call import HandlerCall
from shoal.frontend.generation import EVENTS, Failure, Plan, Planner, event
from shoal.frontend.header_forwarding import Forwarded, check_forwarded
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import JSON_CONTENT, Response, error_response
from shoal.frontend.v2.compression import refuse_encoding
from shoal.frontend.v2.infer import parse_id, parse_parameter
from shoal.frontend.v2.json_tensors import decode_data, encode_text
from shoal.model_config.signature import Signature
from shoal.request import InferResponse, Parameters
from shoal.star.models import ModelEntry, client_shape
from shoal.star.validation import ParsedInput, log_prefix, validate

_NESTED = "parameters"
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class _Flat:
    """The common part of FlatOnce and FlatStream: each response of the model becomes one flat object."""

    headers = EVENTS
    is_complete = False

    def __init__(self, prepared: PreparedRequest) -> None:
        self.prepared = prepared

    def end(self) -> bytes:
        return b""

    def refusal(self, error: ShoalError) -> Response:
        return error_response(error)

    def failed(self, error: ShoalError, *, has_begun: bool) -> Failure:
        """Implements `Rendering.failed`: the error is an event, and also the status if nothing has been sent; further
        events may follow."""
        response = error_response(error)
        headers = EVENTS if has_begun else EVENTS + response.headers[len(JSON_CONTENT) :]
        return Failure(response.status, headers, event(bytes(response.chunks[0])), is_over=False)


class FlatOnce(_Flat):
    """The Rendering of `generate`: the model's only response."""

    is_stream = False

    def __init__(self, prepared: PreparedRequest) -> None:
        super().__init__(prepared)
        self._text: bytes | None = None  # changed by add

    def add(self, response: InferResponse, block: memoryview) -> bytes:
        """Implements `Rendering.add`. Raises InternalError for a second response."""
        if self._text is not None:
            raise InternalError(NOT_ONE)
        self._text = flatten(self.prepared, response, block)
        return b""

    def body(self) -> Response:
        """Implements `Rendering.body`. Raises InternalError if there was no response."""
        if self._text is None:
            raise InternalError(NOT_ONE)
        return Response(200, JSON_CONTENT, (self._text,))


class FlatStream(_Flat):
    """The Rendering of `generate_stream`: each response is an event."""

    is_stream = True

    def add(self, response: InferResponse, block: memoryview) -> bytes:
        return event(flatten(self.prepared, response, block))

    def body(self) -> Response:
        raise AssertionError("a stream has no body")


def planner(form: type[FlatOnce] | type[FlatStream]) -> Planner:
    """The planner of `generate` or `generate_stream`."""

    def plan(call: HandlerCall) -> Plan:
        limit = call.state.http_max_input_size
        return Plan(
            call.name,
            call.version,
            lambda entry: form(prepare(entry, call.headers, call.body, limit, call.forwarded)),
        )

    return plan


# ---------------------------------------------------------------------------------------------------------------
# The request


def prepare(
    entry: ModelEntry, headers: Mapping[str, str], body: memoryview, max_input_size: int, forwarded: Forwarded
) -> PreparedRequest:
    """Parse and validate the body; `headers` have lower-case keys. Raises ShoalErrors with Triton's sentences."""
    refuse_encoding(headers)
    request = door.read_json(body, max_input_size)
    id_ = parse_id(request)
    mapping = _Mapping(entry, id_, max_input_size)
    mapping.take(request)
    _refuse_repeated(door.repeated_key(body, mapping.num_members), entry.signature, id_)
    return mapping.prepared(forwarded)


def prepare_members(
    entry: ModelEntry, id_: str, members: Mapping[str, Any], max_input_size: int, forwarded: Forwarded
) -> PreparedRequest:
    """The request with these members, each an input or a parameter; the names `id` and `parameters` have no meaning
    here. Raises ShoalErrors with Triton's sentences."""
    mapping = _Mapping(entry, id_, max_input_size)
    mapping.take(members, is_nested=True)
    return mapping.prepared(forwarded)


def _refuse_repeated(key: str | None, signature: Signature, id_: str) -> None:
    """Raise InvalidArgumentError if there is a key that the request has twice; for an input's name in Triton's
    words."""
    if key is not None:
        role = "input" if key in signature.inputs else "parameter"
        raise InvalidArgumentError(f"{log_prefix(id_)}{role} '{key}' already exists in request")


class _Mapping:
    """Turns the members of one request into inputs and parameters."""

    def __init__(self, entry: ModelEntry, id_: str, max_input_size: int) -> None:
        self._entry = entry
        self._signature = entry.signature
        self._id = id_
        self._max_input_size = max_input_size
        # All of these are changed by take.
        self.inputs: dict[str, ParsedInput] = {}
        self.parameters: Parameters = {}
        self.num_members = 0  # members of the request and of its object `parameters` together
        self._nbytes = 0

    def take(self, members: Any, *, is_nested: bool = False) -> None:
        """Map all members of an object, in their order. Raises ShoalErrors with Triton's sentences."""
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

    def prepared(self, forwarded: Forwarded) -> PreparedRequest:
        """The validated request, with header fields among its parameters. Raises InvalidArgumentError."""
        check_forwarded(forwarded)
        inputs, rows, shape_key = validate(self._signature, self._id, list(self.inputs.values()), ())
        parameters = {**self.parameters, **forwarded}
        flags = alone_flag(parameters)
        return PreparedRequest(self._entry, self._id, inputs, (), False, parameters, rows, shape_key, 0, 0, flags=flags)

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
        shape = fitted(self._signature.full_dims(spec), len(elements))
        if shape is None:
            raise InvalidArgumentError(f"The schema can not convert input '{name}' to tensor with proper shape")
        # No limit for one tensor: the sum of all tensors is limited below.
        data, num_strings = decode_data(name, spec.datatype, len(elements), elements, sys.maxsize)
        self._nbytes += len(data)
        if self._nbytes > self._max_input_size:
            raise InvalidArgumentError(
                f"request size of {self._nbytes} bytes with input '{name}' of size {len(data)} bytes exceeds the "
                f"maximum allowed input size of {self._max_input_size}. "
                "Use --http-max-input-size to increase the limit."
            )
        self.inputs[name] = ParsedInput(name, spec.datatype, shape, data, num_strings)


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
    """A response as one flat JSON object with sorted keys, as in Triton; a tensor of one element is a scalar."""
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

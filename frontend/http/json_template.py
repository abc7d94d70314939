"""JSON requests that differ in their numbers only: their other bytes are recognised, the numbers are decoded.

A body is split at its flat arrays of numbers, `"data": [1, 2, 3]`. The other bytes, the skeleton, repeat from request
to request; the result of parsing and validating them is kept (a JsonTemplate). The arrays are decoded as in any
request, by json_tensors; a request with any irregularity is parsed in full, so that it is refused with the right
sentence. Responses are put together in this way, too. Measured per request of 16 floats: 14 µs instead of 28 for
parsing, validating, placing and rendering anew. Pure.
"""

import re
from array import array
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson

from shoal.datatypes import BY_WIRE, BYTES, Datatype
from shoal.errors import ShoalError
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.v2.json_tensors import decode_data, encode_text, flat_array
from shoal.request import InferResponse, TensorRef, around_id, split_header
from shoal.shm.layout import pack_span
from shoal.star.outgoing import aligned

#: Most bytes of a body that is split: for longer ones parsing costs little beside the numbers.
MAX_BODY_BYTES = 16 * 1024
_MAX_SKELETON_BYTES = 4096

# No string, object or nested array inside, so an array that matches is the value of a key "data" and nothing else.
_ARRAY = re.compile(rb'"data"\s*:\s*\[([^\[\]{}"\\]*)\]')

Skeleton = tuple[bytes, ...]


class JsonInput(NamedTuple):
    """The place and type of one input's numbers."""

    name: str
    datatype: Datatype
    num_elements: int
    offset: int
    typecode: str | None  # of an array of such elements, if C's conversion is all that they need
    types: frozenset[type]  # Python types that the numbers may have


@dataclass(frozen=True, slots=True)
class JsonTemplate:
    """A request whose skeleton is known."""

    prepared: PreparedRequest
    inputs: tuple[JsonInput, ...]
    header_offset: int
    header: bytes  # the packed InferRequest, without its cut-out options (request_options.py)
    layout: bytes  # the first part of the header
    around_id: tuple[bytes, bytes]  # the header, in front of the id and behind it
    span: int
    responses: dict[bytes, "JsonResponse"]  # by the worker's packed InferResponse


@dataclass(frozen=True, slots=True)
class JsonResponse:
    """A response whose skeleton is known, and the places of its numbers in the worker's block."""

    skeleton: Skeleton
    outputs: tuple[TensorRef, ...]
    end: int  # end of the last output


def split(body: bytes) -> tuple[Skeleton, list[bytes]]:
    """The skeleton of a body, and the texts of its arrays."""
    parts = _ARRAY.split(body)
    return tuple(parts[::2]), parts[1::2]


def make_template(prepared: PreparedRequest, skeleton: Skeleton, arrays: list[bytes]) -> JsonTemplate | None:
    """The template of a request that has been prepared in full; None if it has none."""
    if prepared.has_regions or len(arrays) != len(prepared.inputs) or sum(map(len, skeleton)) > _MAX_SKELETON_BYTES:
        return None
    # No array may stand under a key that only looks like "data", and no tensor anywhere else.
    if any(b"\\" in part or b'"data"' in part for part in skeleton):
        return None
    inputs, refs, offset = [], [], 0
    for name, datatype, shape, data in prepared.inputs:
        if datatype is BYTES:
            return None
        num_elements = len(data) // datatype.itemsize
        inputs.append(JsonInput(name, datatype, num_elements, offset, *flat_array(datatype)))
        refs.append(TensorRef(name, datatype.wire, shape, offset, len(data)))
        offset += aligned(len(data))
    header = prepared.pack_header(refs)
    kept = replace(prepared, inputs=())
    layout, _ = split_header(header)
    span = pack_span(offset, len(header))
    template = JsonTemplate(kept, tuple(inputs), offset, header, layout, around_id(header), span, {})
    # The full parse has just read these arrays: the short one must agree.
    if decode(template, arrays, offset or 1) != [data for _, _, _, data in prepared.inputs]:
        return None
    return template


def decode(template: JsonTemplate, arrays: list[bytes], max_input_size: int) -> list[bytes | memoryview] | None:
    """The tensors of a request of that template; None if the full parse must find the error in them."""
    tensors: list[bytes | memoryview] = []
    try:
        for (name, datatype, num_elements, _, typecode, types), text in zip(template.inputs, arrays, strict=True):
            numbers = orjson.loads(b"[%b]" % text)
            if typecode and len(numbers) == num_elements and types.issuperset(map(type, numbers)):
                tensors.append(array(typecode, numbers).tobytes())
            else:
                tensors.append(decode_data(name, datatype, num_elements, numbers, max_input_size)[0])
    except (ShoalError, OverflowError, orjson.JSONDecodeError):
        return None
    return tensors


def make_response(prepared: PreparedRequest, response: InferResponse, rendered: bytes) -> JsonResponse | None:
    """The template of a response that has been rendered in full; None if a part of it is not numbers."""
    wanted = {output.name for output in prepared.outputs}
    outputs = tuple(ref for ref in response.outputs if not wanted or ref.name in wanted)
    skeleton, arrays = split(rendered)
    if len(arrays) != len(outputs) or any(BY_WIRE[ref.datatype] is BYTES for ref in outputs):
        return None
    return JsonResponse(skeleton, outputs, max([ref.offset + ref.nbytes for ref in outputs], default=0))


def fill(known: JsonResponse, block: memoryview) -> bytes | None:
    """The body of a response, with numbers from the worker's block; None if it must be rendered in full, which
    refuses it."""
    pieces = [known.skeleton[0]]
    try:
        for ref, text in zip(known.outputs, known.skeleton[1:], strict=True):
            name, wire, _, offset, nbytes = ref
            datatype = BY_WIRE[wire]
            view = block[offset : offset + nbytes]
            pieces += [b'"data":', encode_text(name, datatype, nbytes // datatype.itemsize, view), text]
    except ShoalError:
        return None
    return b"".join(pieces)

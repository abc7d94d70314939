"""ModelInfer and ModelStreamInfer: a message becomes a validated request, a model's answer a message.

gRPC's counterpart of frontend/v2/infer.py. The order of checks is Triton's: parameters, inputs and outputs by name, the
inputs' data, the outputs' parameters, core validation. Functions here do not wait and keep no state, and no raw tensor
is copied: an input is a view of the message, an output a view of the worker's block. gRPC front ends.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from shoal.datatypes import (
    BOOL,
    BY_NAME,
    BYTES,
    FP32,
    FP64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    Datatype,
    encode_bytes_tensor,
)
from shoal.deterministic import alone_flag
from shoal.errors import InvalidArgumentError, ShoalError, UnsupportedError
from shoal.frontend.grpc import wire
from shoal.frontend.grpc.messages import service
from shoal.frontend.header_forwarding import NOTHING, Forwarded
from shoal.frontend.prepared import (
    SEQUENCE_END,
    SEQUENCE_START,
    PreparedRequest,
    RequestedOutput,
    RequestSettings,
    answered,
    checked_id,
    named_twice,
    validated,
)
from shoal.frontend.regions import NO_REGIONS, Regions
from shoal.frontend.state import ServerState
from shoal.request import InferResponse, Parameters
from shoal.star.models import ModelEntry
from shoal.star.validation import ParsedInput

_EMPTY_FINAL = "triton_enable_empty_final_response"
_MAX_UINT64 = 2**64 - 1
_NO_SETTINGS = RequestSettings({}, binary_data_output=True)
_FLAGS = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}

#: Fields of InferTensorContents: the typecode of an array of their elements, and their allowed datatypes. The last of
#: these datatypes is the one that the error for a wrong datatype names.
_CONTENTS: tuple[tuple[str, str, tuple[Datatype, ...]], ...] = (
    ("bool_contents", "?", (BOOL,)),
    ("int_contents", "i", (INT8, INT16, INT32)),
    ("int64_contents", "q", (INT64,)),
    ("uint_contents", "I", (UINT8, UINT16, UINT32)),
    ("uint64_contents", "Q", (UINT64,)),
    ("fp32_contents", "f", (FP32,)),
    ("fp64_contents", "d", (FP64,)),
    ("bytes_contents", "", (BYTES,)),
)


def parse(message: bytes | memoryview) -> tuple[Any, list[memoryview]]:
    """A ModelInferRequest without its raw_input_contents, and these as views of `message`.

    Raises InternalError for bytes that are no such message.
    """
    split = wire.split(message)
    return parse_skeleton(split), raws_of(message, split)


def parse_skeleton(split: wire.Split) -> Any:
    """The ModelInferRequest of a split message, without its raw_input_contents. Raises InternalError if the message is
    malformed."""
    try:
        request = service.ModelInferRequest.FromString(split.skeleton)
    except DecodeError as error:
        raise wire.malformed() from error
    request.id = split.id
    return request


def raws_of(message: bytes | memoryview, split: wire.Split) -> list[memoryview]:
    """The raw tensors of a split message, as views of it."""
    view = memoryview(message)
    return [view[start : start + nbytes] for start, nbytes in zip(split.offsets, split.lengths, strict=True)]


def find_model(state: ServerState, request: Any, *, is_stream: bool) -> ModelEntry:
    """The model that a ModelInferRequest is for. Raises ShoalError if there is no such model, or if it is decoupled and
    the call is not a stream."""
    entry = state.models.lookup(request.model_name, request.model_version)
    if entry.is_decoupled and not is_stream:
        raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
    return entry


def prepare(
    entry: ModelEntry,
    request: Any,
    raws: Sequence[memoryview],
    forwarded: Forwarded = NOTHING,
    regions: Regions = NO_REGIONS,
) -> PreparedRequest:
    """The validated form of a ModelInferRequest whose raw_input_contents are `raws`. Raises ShoalErrors with
    Triton's sentences."""
    id_ = checked_id(request.id)
    settings = _parse_settings(request.parameters) if request.parameters else _NO_SETTINGS
    inputs, outputs = list(request.inputs), list(request.outputs)  # upb makes new objects at each access
    _check_names(id_, "input", [each.name for each in inputs])
    _check_names(id_, "output", [each.name for each in outputs])
    model, unread = request.model_name, iter(raws)
    parsed = [_parse_input(model, each, unread, regions, has_raws=bool(raws)) for each in inputs]
    requested = tuple([_requested(each, regions) for each in outputs])
    return validated(entry, id_, parsed, requested, settings, forwarded)


# ---------------------------------------------------------------------------------------------------------------
# Parsing


def _check_names(id_: str, kind: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise named_twice(id_, kind, name)
        seen.add(name)


def _parse_settings(parameters: Mapping[str, Any]) -> RequestSettings:
    found: dict[str, Any] = {}
    own: Parameters = {}
    flags = 0
    for key, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if key == "sequence_id":
            if kind == "string_param":
                found["correlation_id"] = value.string_param
            else:
                found["correlation_id"] = _int64(value, kind, key, "int64_param or string_param") & _MAX_UINT64
        elif key in _FLAGS:
            flags |= _FLAGS[key] if _bool(value, kind, key) else 0
        elif key == "priority":
            found["priority"] = _priority(value, kind)
        elif key == "timeout":
            found["timeout_us"] = _int64(value, kind, key, "int64_param") & _MAX_UINT64
        elif key == _EMPTY_FINAL:
            found["wants_empty_final"] = _bool(value, kind, key)
        elif key.startswith("triton_"):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {_EMPTY_FINAL}"
            )
        elif kind in ("int64_param", "bool_param", "string_param", "double_param"):
            own[key] = getattr(value, kind)
        else:
            raise _wrong_type(key, "int64_param, bool_param, or string_param")
    return RequestSettings(own, binary_data_output=True, flags=flags | alone_flag(own), **found)


def _bool(value: Any, kind: str | None, key: str) -> bool:
    if kind != "bool_param":
        raise _wrong_type(key, "bool_param")
    return bool(value.bool_param)


def _int64(value: Any, kind: str | None, key: str, expected: str) -> int:
    if kind != "int64_param":
        raise _wrong_type(key, expected)
    return int(value.int64_param)


def _priority(value: Any, kind: str | None) -> int:
    if kind == "uint64_param":
        return int(value.uint64_param)
    priority = _int64(value, kind, "priority", "int64_param or uint64_param")
    if priority < 0:
        raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
    return priority


def _wrong_type(key: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"invalid value type for '{key}' parameter, expected {expected}.")


def _parse_input(
    model: str, tensor: Any, unread: Iterator[memoryview], regions: Regions, *, has_raws: bool
) -> ParsedInput:
    """One parsed input. `unread` are the raw tensors that no earlier input took."""
    name, datatype, shape = tensor.name, BY_NAME.get(tensor.datatype), tuple(tensor.shape)
    has_contents = tensor.HasField("contents")
    if tensor.parameters and _names_region(tensor):
        if has_contents:
            raise InvalidArgumentError(
                f"unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            )
        return ParsedInput(name, datatype, shape, regions.tensor(datatype, *_region(tensor)), -1)
    if has_contents:
        if has_raws:
            raise InvalidArgumentError(
                f"contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )
        data, num_strings = _decode_contents(model, name, datatype, tensor.contents)
        return ParsedInput(name, datatype, shape, memoryview(data), num_strings)
    raw = next(unread, None)
    if raw is None:
        raise InvalidArgumentError(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
    return ParsedInput(name, datatype, shape, raw, -1)


def _decode_contents(model: str, name: str, datatype: Datatype | None, contents: Any) -> tuple[bytes, int]:
    """The bytes of an input that was sent element by element, and the number of its elements if it is BYTES, else
    -1."""
    data, num_strings = b"", -1
    where = f"unexpected explicit tensor data for input tensor '{name}' for model '{model}'"
    for field, typecode, datatypes in _CONTENTS:
        elements = getattr(contents, field)
        if not elements:
            continue
        if data:
            raise InvalidArgumentError(f"{where}, binary data was already supplied.")
        if datatype not in datatypes:
            came = "<invalid>" if datatype is None else datatype.name
            raise InvalidArgumentError(f"{where} of type '{datatypes[-1].name}', expected datatype '{came}'")
        if datatype is BYTES:
            data, num_strings = encode_bytes_tensor(elements), len(elements)
        elif datatype is BOOL:
            data = bytes(elements)
        elif len(datatypes) == 1 or datatype is datatypes[-1]:
            data = array(typecode, elements).tobytes()
        else:  # elements that do not fit are cut to their lowest bits, as in C
            data = np.array(elements, typecode).astype(datatype.dtype).tobytes()
    return data, num_strings


def _names_region(tensor: Any) -> bool:
    """Whether an input or output lies in a client's shared memory region, according to its parameters."""
    name, parameters = tensor.name, tensor.parameters
    has_region = "shared_memory_region" in parameters
    for key, expected in _REGION_PARAMETERS:
        if key not in parameters:
            continue
        if not has_region:
            raise InvalidArgumentError(
                f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{name}'"
            )
        if parameters[key].WhichOneof("parameter_choice") != expected:
            raise InvalidArgumentError(
                f"invalid value type for '{key}' parameter for tensor '{name}', expected {expected}."
            )
    if has_region and "shared_memory_byte_size" not in parameters:
        raise InvalidArgumentError(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{name}'"
        )
    return has_region


_REGION_PARAMETERS = (
    ("shared_memory_region", "string_param"),
    ("shared_memory_offset", "int64_param"),
    ("shared_memory_byte_size", "int64_param"),
)


def _region(tensor: Any) -> tuple[str, int, int]:
    """The name of a region, and offset and size of the part in it (bytes). Negative numbers are read as large unsigned
    ones, as in Triton."""
    parameters = tensor.parameters
    offset = parameters["shared_memory_offset"].int64_param if "shared_memory_offset" in parameters else 0
    nbytes = parameters["shared_memory_byte_size"].int64_param
    return parameters["shared_memory_region"].string_param, offset & _MAX_UINT64, nbytes & _MAX_UINT64


def _requested(output: Any, regions: Regions) -> RequestedOutput:
    parameters = output.parameters
    if not parameters:
        return RequestedOutput(output.name, True, 0)
    has_region, count = _names_region(output), 0
    if "classification" in parameters:
        if parameters["classification"].WhichOneof("parameter_choice") != "int64_param":
            raise InvalidArgumentError("invalid value type for 'classification' parameter, expected int64_param")
        count = int(parameters["classification"].int64_param)
        if count <= 0:
            raise InvalidArgumentError("invalid value for 'classification' parameter, expected >= 0")
        if has_region:
            raise InvalidArgumentError("output can't set both 'shared_memory_region' and 'classification'")
    return RequestedOutput(output.name, True, count, regions.slice(*_region(output)) if has_region else None)


# ---------------------------------------------------------------------------------------------------------------
# The response


def render(
    prepared: PreparedRequest, response: InferResponse, block: memoryview, *, final: bool | None = None
) -> wire.Chunks:
    """A ModelInferResponse in pieces or, if `final` is given, a ModelStreamInferResponse that says whether this
    response is the request's last.

    Tensors are views of `block`, which must stay unchanged until the message has been sent. Raises ShoalErrors.
    """
    around, raws = render_envelope(prepared, response, block, final)
    return wire.assemble(around, prepared.id, raws, is_streamed=final is not None)


def render_envelope(
    prepared: PreparedRequest, response: InferResponse, block: memoryview, final: bool | None
) -> tuple[wire.Envelope, list[memoryview]]:
    """The bytes around a response's tensors, and the tensors as views of `block`; arguments as in `render`. Raises
    InvalidArgumentError if the response is too large."""
    # An output in a region has an empty tensor, as in Triton.
    outputs = [
        wire.OutputTensor(name, datatype.name, shape, b"" if data is None else data)
        for name, datatype, shape, data, _ in answered(prepared, response, block)
    ]
    parameters = response.parameters if final is None else {**response.parameters, wire.FINAL: final}
    around = wire.envelope(prepared.entry.name, str(prepared.entry.version), parameters, outputs)
    nbytes = around.nbytes + len(prepared.id)
    if nbytes > wire.MAX_MESSAGE_NBYTES:
        raise InvalidArgumentError(
            f"Response has byte size {nbytes} which exceeds gRPC's byte size limit {wire.MAX_MESSAGE_NBYTES}."
        )
    return around, [memoryview(output.data) for output in outputs]


def empty_final(prepared: PreparedRequest) -> bytes:
    """The ModelStreamInferResponse that only reports that a request has had its last response."""
    entry = prepared.entry
    around = wire.envelope(entry.name, str(entry.version), {wire.FINAL: True}, ())
    return b"".join(wire.assemble(around, prepared.id, (), is_streamed=True))


def stream_error(sentence: str, message: bytes | memoryview) -> bytes:
    """The ModelStreamInferResponse with the error of the request in `message`, which may be malformed."""
    try:
        request = parse_skeleton(wire.split(message))
    except ShoalError:
        return wire.stream_error(sentence, "", "", "")
    return wire.stream_error(sentence, request.id, request.model_name, request.model_version)

"""`/v2/models/M[/versions/V]/infer`: turns a body into a validated request, and a model's answer into a response.

Behind the JSON, whose size is in the header Inference-Header-Content-Length, come binary tensors in the order of
`inputs`, little-endian, dense, with nothing between.

The order of checks is Triton's: header length, JSON, id, parameters, inputs, outputs, and then the checks of Triton's
core. Nothing here waits or keeps state: a request's binary tensor is a view of the body until `write_block` copies it
into shared memory, a response's binary tensor is a view of the worker's block. Front-end processes.
"""

from collections.abc import Mapping
from math import isfinite, prod
from typing import Any

import orjson

from shoal.datatypes import BY_NAME, BYTES, encode_bytes_tensor
from shoal.deterministic import alone_flag
from shoal.errors import InternalError, InvalidArgumentError
from shoal.frontend import read_json as door
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
from shoal.frontend.read_json import read_json
from shoal.frontend.regions import NO_REGIONS, Regions
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.v2.json_tensors import checked_num_elements, decode_data, encode_data
from shoal.memo import memoized
from shoal.model_config.signature import Signature, TensorSpec
from shoal.request import InferResponse, Parameters
from shoal.star.models import ModelEntry
from shoal.star.validation import ParsedInput, log_prefix

HEADER = "Inference-Header-Content-Length"


def parse_header_length(text: str, content_length: int) -> int:
    """The value of Inference-Header-Content-Length: how many bytes of the (decompressed) body are JSON; 0 means a raw
    request. Raises InvalidArgumentError."""
    digits = text.strip()
    # Checked first, as int() accepts "+5", "1_000" and digits of other alphabets; it raises for thousands of digits.
    if not digits.removeprefix("-").isdecimal() or not digits.isascii():
        raise InvalidArgumentError(f"Unable to parse {HEADER}, got: {text}")
    if len(digits) > 20 or not 0 <= int(digits) <= content_length:
        raise InvalidArgumentError(f"inference header size should be in range (0, {content_length}), got: {text}")
    return int(digits)


def take(tail: memoryview, offset: int, nbytes: int, name: str, model: str) -> memoryview:
    """The `nbytes` bytes at `offset` behind the JSON, for input `name`. Raises InvalidArgumentError if there are
    fewer."""
    missing = offset + nbytes - len(tail)
    if missing > 0:
        raise InvalidArgumentError(
            f"unexpected size for input '{name}', expecting {missing} additional bytes for model '{model}'"
        )
    return tail[offset : offset + nbytes]


_NO_SETTINGS = RequestSettings({})
#: The three members by which an input or its `parameters` gives its data.
_JSON, _BINARY, _REGION = "data", "binary_data_size", "shared_memory_region"
_REGION_PART = ("shared_memory_offset", "shared_memory_byte_size")


def prepare(
    entry: ModelEntry,
    headers: Mapping[str, str],
    body: memoryview,
    max_input_size: int,
    forwarded: Forwarded = NOTHING,
    regions: Regions = NO_REGIONS,
) -> PreparedRequest:
    """Parse and validate the body of an infer request; `headers` have lower-case keys.

    Inputs that were sent in binary are views of `body`; inputs in one of the `regions` are not read. Raises ShoalErrors
    with Triton's sentences.
    """
    text = headers.get("inference-header-content-length")
    header_length = len(body) if text is None else parse_header_length(text, len(body))
    if text is not None and header_length == 0:
        raw = parse_raw_request(entry.signature, body, max_input_size)
        return validated(entry, "", [raw], (), RequestSettings({}, binary_data_output=True), forwarded)
    request = read_json(body[:header_length], max_input_size)
    id_ = parse_id(request)
    settings = parse_settings(request["parameters"]) if door.has(request, "parameters") else _NO_SETTINGS
    tail = None if text is None else body[header_length:]
    inputs = _parse_inputs(entry.name, id_, door.member(request, "inputs"), tail, max_input_size, regions)
    outputs = _parse_outputs(id_, request["outputs"], regions) if "outputs" in request else ()
    return validated(entry, id_, inputs, outputs, settings, forwarded)


# ---------------------------------------------------------------------------------------------------------------
# Parsing


def parse_id(request: Any) -> str:
    """The request's id, or ""."""
    return checked_id(door.as_string(request["id"], "id")) if door.has(request, "id") else ""


def parse_settings(members: Any) -> RequestSettings:
    """The settings in the request's `parameters`. Raises ShoalErrors with Triton's sentences."""
    if type(members) is not dict:
        raise InternalError("failed to get request params.: attempt to get members for non-object")
    found: dict[str, Any] = {}
    parameters: Parameters = {}
    flags = 0
    for key, value in members.items():
        if key in ("priority", "timeout"):
            found[_FIELDS[key]] = door.as_uint(value, key)
        elif key == "binary_data_output":
            found[key] = door.as_bool(value, key)
        elif key == "sequence_id":
            is_uint = type(value) is int and 0 <= value <= door.MAX_UINT64
            found["correlation_id"] = value if is_uint else door.as_string(value, key)
        elif key == "sequence_start":
            flags |= SEQUENCE_START if door.as_bool(value, key) else 0
        elif key == "sequence_end":
            flags |= SEQUENCE_END if door.as_bool(value, key) else 0
        elif key.startswith("triton_"):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            parameters[key] = parse_parameter(key, value)
    return RequestSettings(parameters, flags=flags | alone_flag(parameters), **found)


_FIELDS = {"priority": "priority", "timeout": "timeout_us"}


def parse_parameter(key: str, value: Any) -> str | int | float | bool:
    """The value of a parameter for the model. An integer beyond int64 becomes a double, as in Triton. Raises
    InvalidArgumentError."""
    if type(value) is int:
        return value if ~door.MAX_INT64 <= value <= door.MAX_INT64 else float(value)
    if type(value) in (str, bool) or (type(value) is float and isfinite(value)):
        return value  # type: ignore[no-any-return]  # one of the three, as just seen
    raise InvalidArgumentError(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _parse_inputs(
    model: str, id_: str, members: Any, tail: memoryview | None, max_input_size: int, regions: Regions
) -> list[ParsedInput]:
    """The inputs. `tail` are the body's bytes behind the JSON; None if no header says how long the JSON is. Raises
    ShoalError."""
    inputs: list[ParsedInput] = []
    names: set[str] = set()
    offset = 0
    for each in door.as_list(members, "inputs"):
        parameters = door.find(each, "parameters")
        source = _source(each, parameters)
        name = door.as_string(door.member(each, "name"), "name")
        datatype = BY_NAME.get(door.as_string(door.member(each, "datatype"), "datatype"))
        shape = _parse_shape(name, door.member(each, "shape"))
        if name in names:
            raise named_twice(id_, "input", name)
        names.add(name)
        num_elements = checked_num_elements(name, shape, 0 if datatype is None else datatype.itemsize)
        if source == _REGION:
            data = regions.tensor(datatype, *_parse_region(parameters))
            inputs.append(ParsedInput(name, datatype, shape, data, -1))
        elif source == _BINARY:
            nbytes = door.as_uint(parameters["binary_data_size"], "binary_data_size")
            if nbytes and tail is None:
                raise InvalidArgumentError(
                    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when "
                    "passing inputs in binary data format"
                )
            view = memoryview(b"") if tail is None else take(tail, offset, nbytes, name, model)
            inputs.append(ParsedInput(name, datatype, shape, view, -1))
            offset += nbytes
        else:
            found = door.as_list(each["data"], "data")
            # To Triton, a shape without dimensions has no elements; Triton's core refuses the shape later.
            view, count = decode_data(name, datatype, num_elements if shape else 0, found, max_input_size)
            inputs.append(ParsedInput(name, datatype, shape, view, count))
    if tail is not None and offset != len(tail):
        raise InvalidArgumentError(f"unexpected additional input data for model '{model}'")
    return inputs


def _source(each: Any, parameters: Any) -> str:
    """Which of _JSON, _BINARY and _REGION gives an input's data. Raises InvalidArgumentError unless exactly one
    does."""
    has_data = door.has(each, _JSON)
    has_binary, has_region = door.has(parameters, _BINARY), door.has(parameters, _REGION)
    if has_data + has_binary + has_region == 1:
        return _JSON if has_data else _BINARY if has_binary else _REGION
    found = "set" + " 'data'" * has_data + " 'binary_data_size'" * has_binary + " 'shared_memory_region'" * has_region
    raise InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {'no field is set' if found == 'set' else found}"
    )


def _parse_region(parameters: Any) -> tuple[str, int, int]:
    """The name of a region, and the offset and size of a tensor's part of it, in bytes."""
    offset, nbytes = [door.as_uint(parameters.get(key, 0), key) for key in _REGION_PART]
    return door.as_string(parameters[_REGION], _REGION), offset, nbytes


def _parse_shape(name: str, members: Any) -> tuple[int, ...]:
    dims = door.as_list(members, "shape")
    for dim in dims:
        if type(dim) is int and dim < 0:
            # Triton's JSON layer answers 500 here; since the mistake is the client's, this server answers 400.
            shape = ",".join(map(str, dims))
            raise InvalidArgumentError(
                f"invalid shape for input '{name}': shape [{shape}] contains one or more invalid dimensions"
            )
        door.as_uint(dim, "shape")
    return tuple(dims)


def _parse_outputs(id_: str, members: Any, regions: Regions) -> tuple[RequestedOutput, ...]:
    outputs: dict[str, RequestedOutput] = {}
    for each in door.as_list(members, "outputs"):
        parameters = door.find(each, "parameters")
        has_region = door.has(parameters, "shared_memory_region")
        if has_region and door.has(parameters, "classification"):
            raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'classification'")
        binary = door.has(parameters, "binary_data") and door.as_bool(parameters["binary_data"], "binary_data")
        if has_region and binary:
            raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'binary_data'")
        name = door.as_string(door.member(each, "name"), "name")
        if name in outputs:
            raise named_twice(id_, "output", name)
        classification = 0
        if door.has(parameters, "classification"):
            classification = _parse_classification(parameters["classification"])
        region = regions.slice(*_parse_region(parameters)) if has_region else None
        outputs[name] = RequestedOutput(name, binary, classification, region)
    return tuple(outputs.values())


def _parse_classification(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= door.MAX_UINT64:
        raise InternalError(f"Unable to set 'classification': {door.wrong_type('unsigned-integer')}")
    return value


# ---------------------------------------------------------------------------------------------------------------
# The response


def render(prepared: PreparedRequest, response: InferResponse, block: memoryview) -> Response:
    """The response. Each binary tensor in it is a chunk and a view of `block`, which must not be released until the
    response has been sent."""
    outputs: list[dict[str, Any]] = []
    chunks: list[bytes | memoryview] = []
    for name, datatype, shape, view, binary in answered(prepared, response, block):
        output: dict[str, Any] = {"name": name, "datatype": datatype.name, "shape": shape}
        if view is None:
            pass  # the output is in the client's region
        elif not binary:
            output["data"] = encode_data(name, datatype, prod(shape), view)
        else:
            output["parameters"] = {"binary_data_size": len(view)}
            if view:
                chunks.append(view)
        outputs.append(output)
    text = _head(prepared, response.parameters) + orjson.dumps(outputs) + b"}"
    if not chunks:
        return Response(200, JSON_CONTENT, (text,))
    headers = (("Content-Type", "application/octet-stream"), (HEADER, str(len(text))))
    return Response(200, headers, (text, *chunks))


def _head(prepared: PreparedRequest, parameters: Parameters) -> bytes:
    """The response's JSON, up to the value of `outputs`."""
    model = _model_members(prepared.entry.name, prepared.entry.version)
    id_ = b'"id":' + orjson.dumps(prepared.id) + b"," if prepared.id else b""
    more = b'"parameters":' + orjson.dumps(parameters) + b"," if parameters else b""
    return b"{" + id_ + model + more + b'"outputs":'


@memoized("model_members", 1024)
def _model_members(name: str, version: int) -> bytes:
    return orjson.dumps({"model_name": name, "model_version": str(version)})[1:-1] + b","


def parse_raw_request(signature: Signature, body: memoryview, max_input_size: int) -> ParsedInput:
    """The model's only input, from a body that is nothing but the input's data (`Inference-Header-Content-Length: 0`).
    Raises InvalidArgumentError.

    Name, datatype and shape follow from the model's configuration. The input is not validated yet; validation finds a
    body that is not a whole number of elements.
    """
    if len(body) > max_input_size:
        raise InvalidArgumentError(
            f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of "
            f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    prefix = log_prefix("")  # a raw request has no id
    if len(signature.inputs) != 1:
        raise InvalidArgumentError(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} "
            f"inputs in '{signature.name}' model configuration"
        )
    (spec,) = signature.inputs.values()
    if spec.dims.count(-1) > 1:
        raise InvalidArgumentError(
            f"{prefix}The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    batch = (1,) if signature.max_batch_size > 0 else ()
    if spec.datatype is not BYTES:
        return ParsedInput(spec.name, spec.datatype, batch + _solved(spec, len(body)), body, -1)
    if prod(spec.dims) != 1 or -1 in spec.dims:
        raise InvalidArgumentError(
            f"{prefix}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
        )
    return ParsedInput(spec.name, spec.datatype, batch + spec.dims, memoryview(encode_bytes_tensor([bytes(body)])), 1)


def _solved(spec: TensorSpec, nbytes: int) -> tuple[int, ...]:
    """The dims, with -1 replaced by the number that follows from the body's size."""
    fixed = prod(dim for dim in spec.dims if dim != -1) * spec.datatype.itemsize
    return tuple(dim if dim != -1 else nbytes // fixed for dim in spec.dims)

"""`/v2/models/M[/versions/V]/infer`: a body into a validated request, a model's answer into a response.

The order of checks is Triton's: header length, JSON, id, parameters, inputs, outputs, core validation. Nothing here
waits or keeps anything: a binary tensor is a view of the body until `write_block` copies it into shared memory, and a
view of the worker's block on its way out. Front-end processes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, prod
from typing import Any, NamedTuple

import orjson

from shoal.client import outgoing
from shoal.client.models import ModelEntry, client_shape
from shoal.client.validation import ParsedInput, PreparedInput, log_prefix, validate
from shoal.datatypes import BY_NAME, BY_WIRE, BYTES, Datatype
from shoal.errors import InternalError, InvalidArgumentError
from shoal.frontend import read_json as door
from shoal.frontend.header_forwarding import NOTHING, Forwarded, check_forwarded
from shoal.frontend.read_json import read_json
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.v2.binary_data import HEADER, parse_header_length, take
from shoal.frontend.v2.classification import classify
from shoal.frontend.v2.json_tensors import checked_num_elements, decode_data, encode_data
from shoal.frontend.v2.raw_request import parse_raw_request
from shoal.frontend.v2.shared_memory import client_shm_disabled
from shoal.request import InferRequest, InferResponse, Parameters, TensorRef, pack_request
from shoal.shm.layout import pack_span

_MAX_HEADER_LENGTH = 2**31 - 1
_MAX_ID_LENGTH = 1024  # ours: it stands in every sentence and log line about the request
SEQUENCE_START, SEQUENCE_END = 1, 2  # Triton's request flags


class RequestedOutput(NamedTuple):
    """One entry of the request's `outputs`."""

    name: str
    binary: bool
    classification: int  # how many classes are wanted in place of the values; 0 = the values


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that may be queued. `outputs` is empty where all are wanted, all as `binary_data_output` says."""

    entry: ModelEntry
    id: str
    inputs: tuple[PreparedInput, ...]
    outputs: tuple[RequestedOutput, ...]
    binary_data_output: bool
    parameters: Parameters
    rows: int
    shape_key: int
    priority: int
    timeout_us: int
    correlation_id: int | str = 0  # 0 and "" = no sequence
    flags: int = 0  # SEQUENCE_START | SEQUENCE_END

    def pack_header(self, inputs: Iterable[TensorRef]) -> bytes:
        """The header of its block, in which the inputs lie so."""
        requested = tuple([output.name for output in self.outputs])
        sequence = self.correlation_id, self.flags
        return pack_request(InferRequest(self.id, tuple(inputs), requested, self.parameters, sequence))


class _Settings(NamedTuple):
    """What the request's `parameters` come to."""

    binary_data_output: bool = False
    parameters: Parameters | None = None
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0


_NO_SETTINGS = _Settings()


def prepare(
    entry: ModelEntry,
    headers: Mapping[str, str],
    body: memoryview,
    max_input_size: int,
    forwarded: Forwarded = NOTHING,
) -> PreparedRequest:
    """Parses and validates the body of an infer request; `headers` have lower-case keys.

    The inputs are views of `body` where they were sent in binary. Raises ShoalErrors with Triton's sentences.
    """
    text = headers.get("inference-header-content-length")
    header_length = len(body) if text is None else parse_header_length(text, len(body))
    if text is not None and header_length == 0:
        raw = parse_raw_request(entry.signature, body, max_input_size)
        return _validated(entry, "", [raw], (), _Settings(binary_data_output=True), forwarded)
    request = read_json(body[:header_length], max_input_size)
    id_ = parse_id(request)
    settings = _parse_settings(request["parameters"]) if door.has(request, "parameters") else _NO_SETTINGS
    tail = None if text is None else body[header_length:]
    inputs = _parse_inputs(entry.name, id_, door.member(request, "inputs"), tail, max_input_size)
    outputs = _parse_outputs(id_, request["outputs"]) if "outputs" in request else ()
    return _validated(entry, id_, inputs, outputs, settings, forwarded)


def _validated(
    entry: ModelEntry,
    id_: str,
    inputs: list[ParsedInput],
    outputs: tuple[RequestedOutput, ...],
    settings: _Settings,
    forwarded: Forwarded,
) -> PreparedRequest:
    check_forwarded(forwarded)
    valid, rows, shape_key = validate(entry.signature, id_, inputs, [output.name for output in outputs])
    bdo, own, priority, timeout_us, correlation_id, flags = settings
    parameters = {**(own or {}), **forwarded}
    return PreparedRequest(
        entry, id_, valid, outputs, bdo, parameters, rows, shape_key, priority, timeout_us, correlation_id, flags
    )


# ---------------------------------------------------------------------------------------------------------------
# Parsing


def parse_id(request: Any) -> str:
    """The request's id, or ""."""
    id_ = door.as_string(request["id"], "id") if door.has(request, "id") else ""
    if len(id_) > _MAX_ID_LENGTH:
        raise InvalidArgumentError(
            f"the request's 'id' has {len(id_)} characters, more than the maximum of {_MAX_ID_LENGTH}; "
            "send what is longer as a request parameter"
        )
    return id_


def _parse_settings(members: Any) -> _Settings:
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
    return _Settings(parameters=parameters, flags=flags, **found)


_FIELDS = {"priority": "priority", "timeout": "timeout_us"}


def parse_parameter(key: str, value: Any) -> str | int | float | bool:
    """A parameter for the model. An integer beyond int64 becomes a double, as in Triton."""
    if type(value) is int:
        return value if ~door.MAX_INT64 <= value <= door.MAX_INT64 else float(value)
    if type(value) in (str, bool) or (type(value) is float and isfinite(value)):
        return value  # type: ignore[no-any-return]  # one of the three, as just seen
    raise InvalidArgumentError(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _parse_inputs(
    model: str, id_: str, members: Any, tail: memoryview | None, max_input_size: int
) -> list[ParsedInput]:
    """`tail` is what follows the JSON; None where no header said how long the JSON is."""
    inputs: list[ParsedInput] = []
    names: set[str] = set()
    offset = 0
    for each in door.as_list(members, "inputs"):
        parameters = door.find(each, "parameters")
        is_binary = _check_one_source(each, parameters)
        name = door.as_string(door.member(each, "name"), "name")
        datatype = BY_NAME.get(door.as_string(door.member(each, "datatype"), "datatype"))
        shape = _parse_shape(name, door.member(each, "shape"))
        if name in names:
            raise InvalidArgumentError(f"{log_prefix(id_)}input '{name}' already exists in request")
        names.add(name)
        num_elements = checked_num_elements(name, shape, 0 if datatype is None else datatype.itemsize)
        if is_binary:
            nbytes = door.as_uint(parameters["binary_data_size"], "binary_data_size")
            if nbytes and tail is None:
                raise InvalidArgumentError(
                    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when "
                    "passing inputs in binary data format"
                )
            data = memoryview(b"") if tail is None else take(tail, offset, nbytes, name, model)
            inputs.append(ParsedInput(name, datatype, shape, data, -1))
            offset += nbytes
        else:
            data, count = decode_data(name, datatype, num_elements, door.as_list(each["data"], "data"), max_input_size)
            inputs.append(ParsedInput(name, datatype, shape, data, count))
    if tail is not None and offset != len(tail):
        raise InvalidArgumentError(f"unexpected additional input data for model '{model}'")
    return inputs


def _check_one_source(each: Any, parameters: Any) -> bool:
    """True for binary data, False for JSON data; client shared memory is refused."""
    has_data = door.has(each, "data")
    if type(parameters) is not dict:
        if has_data:
            return False
        parameters = {}
    has_binary = "binary_data_size" in parameters
    has_region = "shared_memory_region" in parameters
    if has_data + has_binary + has_region == 1 and not has_region:
        return has_binary
    if has_region and not has_data and not has_binary:
        raise client_shm_disabled()
    found = "set" + " 'data'" * has_data + " 'binary_data_size'" * has_binary + " 'shared_memory_region'" * has_region
    raise InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {'no field is set' if found == 'set' else found}"
    )


def _parse_shape(name: str, members: Any) -> tuple[int, ...]:
    dims = door.as_list(members, "shape")
    for dim in dims:
        if type(dim) is int and dim < 0:
            # Triton's JSON layer answers 500 here; it is the client's mistake, and ours is 400.
            shape = ",".join(map(str, dims))
            raise InvalidArgumentError(
                f"invalid shape for input '{name}': shape [{shape}] contains one or more invalid dimensions"
            )
        door.as_uint(dim, "shape")
    return tuple(dims)


def _parse_outputs(id_: str, members: Any) -> tuple[RequestedOutput, ...]:
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
            raise InvalidArgumentError(f"{log_prefix(id_)}output '{name}' already exists in request")
        classification = 0
        if door.has(parameters, "classification"):
            classification = _parse_classification(parameters["classification"])
        if has_region:
            raise client_shm_disabled()
        outputs[name] = RequestedOutput(name, binary, classification)
    return tuple(outputs.values())


def _parse_classification(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= door.MAX_UINT64:
        raise InternalError(f"Unable to set 'classification': {door.wrong_type('unsigned-integer')}")
    return value


# ---------------------------------------------------------------------------------------------------------------
# Shared memory


def block_nbytes(prepared: PreparedRequest) -> int:
    """How large a block `write_block` needs; at most a few hundred bytes more than it will use."""
    tensors = [(name, len(shape), len(data)) for name, _, shape, data in prepared.inputs]
    outputs = [output.name for output in prepared.outputs]
    return outgoing.block_nbytes(prepared.id, prepared.correlation_id, tensors, outputs, prepared.parameters)


def write_block(prepared: PreparedRequest, memory: memoryview) -> int:
    """Places the tensors and, after them, the header into `memory`; returns the word that says where the header is."""
    offset = 0
    refs = []
    for name, datatype, shape, data in prepared.inputs:
        nbytes = len(data)
        memory[offset : offset + nbytes] = data
        refs.append(TensorRef(name, datatype.wire, shape, offset, nbytes))
        offset += outgoing.aligned(nbytes)
    header = prepared.pack_header(refs)
    memory[offset : offset + len(header)] = header
    return pack_span(offset, len(header))


# ---------------------------------------------------------------------------------------------------------------
# The response


def render(prepared: PreparedRequest, response: InferResponse, block: memoryview) -> Response:
    """The response's head and chunks; binary tensors stay views of `block`, which must live until they are sent."""
    requested = {output.name: output for output in prepared.outputs}
    outputs: list[dict[str, Any]] = []
    chunks: list[bytes | memoryview] = []
    for ref in response.outputs:
        binary, num_classes = prepared.binary_data_output, 0
        if requested:
            if ref.name not in requested:
                continue
            _, binary, num_classes = requested[ref.name]
        datatype = BY_WIRE[ref.datatype]
        shape = client_shape(prepared.entry, ref)
        view = block[ref.offset : ref.offset + ref.nbytes]
        if num_classes:
            datatype, shape, view = _classified(prepared.entry, ref, shape, view, num_classes)
        output: dict[str, Any] = {"name": ref.name, "datatype": datatype.name, "shape": shape}
        if not binary:
            output["data"] = encode_data(ref.name, datatype, prod(shape), view)
        else:
            if datatype is not BYTES and prod(shape) * datatype.itemsize != len(view):
                raise InternalError(f"output tensor shape does not match size of output for '{ref.name}'")
            output["parameters"] = {"binary_data_size": len(view)}
            if view:
                chunks.append(view)
        outputs.append(output)
    text = _head(prepared, response.parameters) + orjson.dumps(outputs) + b"}"
    if not chunks:
        return Response(200, JSON_CONTENT, (text,))
    headers = (("Content-Type", "application/octet-stream"), (HEADER, str(len(text))))
    return Response(200, headers, (text, *chunks))


def _classified(
    entry: ModelEntry, ref: TensorRef, shape: tuple[int, ...], view: memoryview, num_classes: int
) -> tuple[Datatype, tuple[int, ...], memoryview]:
    """The BYTES tensor that takes the output's place."""
    has_batch = entry.signature.max_batch_size > 0
    labels = entry.labels.get(ref.name, ())
    shape, data = classify(ref.name, BY_WIRE[ref.datatype], shape, view, num_classes, labels, has_batch=has_batch)
    return BYTES, shape, memoryview(data)


def _head(prepared: PreparedRequest, parameters: Parameters) -> bytes:
    """The response up to the value of `outputs`."""
    model = _model_members(prepared.entry.name, prepared.entry.version)
    id_ = b'"id":' + orjson.dumps(prepared.id) + b"," if prepared.id else b""
    more = b'"parameters":' + orjson.dumps(parameters) + b"," if parameters else b""
    return b"{" + id_ + model + more + b'"outputs":'


@lru_cache(maxsize=1024)
def _model_members(name: str, version: int) -> bytes:
    return orjson.dumps({"model_name": name, "model_version": str(version)})[1:-1] + b","

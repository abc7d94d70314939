"""HTTP's `/infer` as a ModelInferRequest: with typed contents where the case has JSON, and with raw ones. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from tests.end_to_end.grpc_cases.http_only import FRAMING, JSON, NO_FIELD, HttpOnlyError
from tests.end_to_end.http_cases.case import Answer, Case

Message = Any
pb: Any = service_pb2
LENGTH = "Inference-Header-Content-Length"

_KINDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
#: The field of an element that is not what its tensor's datatype says.
_ANY = {bool: "bool_contents", int: "int64_contents", float: "fp64_contents", bytes: "bytes_contents"}
_CONTENTS: dict[str, tuple[str, set[type]]] = {
    "BOOL": ("bool_contents", {bool}),
    **dict.fromkeys(("INT8", "INT16", "INT32"), ("int_contents", {int})),
    "INT64": ("int64_contents", {int}),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), ("uint_contents", {int})),
    "UINT64": ("uint64_contents", {int}),
    "FP32": ("fp32_contents", {int, float}),
    "FP64": ("fp64_contents", {int, float}),
    "BYTES": ("bytes_contents", {bytes}),
}


def requests(case: Case, fields: Mapping[str, str]) -> Iterator[tuple[str, Message]]:
    """The case's ModelInferRequest, or two: the other's name ends in " raw". Raises HttpOnlyError."""
    body, tail = _split(case)
    is_binary = any("binary_data_size" in each.get("parameters", {}) for each in body["inputs"])
    if is_binary:
        yield "", _request(body, tail, fields, is_raw=True)
        return
    made: list[Message] = []
    for is_raw in (False, True):
        try:
            request = _request(body, tail, fields, is_raw=is_raw)
        except HttpOnlyError:
            if is_raw and not made:
                raise
        else:
            if request not in made:
                made.append(request)
                yield " raw" * is_raw, request


def _split(case: Case) -> tuple[dict[str, Any], bytes]:
    """JSON, in which every input is an object, and the tensors behind it."""
    length = case.headers.get(LENGTH, str(len(case.body)))
    if LENGTH in case.headers and not (length.isdigit() and 0 < int(length) <= len(case.body)):
        raise HttpOnlyError(FRAMING)
    try:
        body = json.loads(case.body[: int(length)])
    except ValueError:
        raise HttpOnlyError(JSON) from None
    if not isinstance(body, dict) or not isinstance(body.setdefault("inputs", []), list):
        raise HttpOnlyError(JSON)
    if not all(isinstance(each, dict) for each in body["inputs"]):
        raise HttpOnlyError(JSON)
    return body, case.body[int(length) :]


def _request(body: dict[str, Any], tail: bytes, fields: Mapping[str, str], *, is_raw: bool) -> Message:
    try:
        request = pb.ModelInferRequest(
            model_name=fields["name"], model_version=fields.get("version", ""), id=body.get("id", "")
        )
        for name, value in body.get("parameters", {}).items():
            if name != "binary_data_output":  # how HTTP's answer looks
                setattr(request.parameters[name], _KINDS[type(value)], value)
        for each in body["inputs"]:
            tail = _add_input(request, each, tail, is_raw=is_raw)
        for each in body.get("outputs", []):
            output = request.outputs.add(name=each.get("name", ""))
            for name, value in (each.get("parameters") or {}).items():
                if name != "binary_data":
                    setattr(output.parameters[name], _KINDS[type(value)], value)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise HttpOnlyError(NO_FIELD) from error
    if tail:
        raise HttpOnlyError(FRAMING)
    return request


def _add_input(request: Message, given: dict[str, Any], tail: bytes, *, is_raw: bool) -> bytes:
    """What is left of the tail."""
    datatype, shape = given.get("datatype", ""), given.get("shape", [])
    if any(type(size) is not int for size in shape):
        raise TypeError(shape)
    tensor = request.inputs.add(name=given.get("name", ""), datatype=datatype, shape=shape)
    nbytes = 0
    for name, value in given.get("parameters", {}).items():
        if name == "binary_data_size":
            nbytes = value
            if len(tail) < nbytes or "data" in given:
                raise HttpOnlyError(FRAMING)
            request.raw_input_contents.append(tail[:nbytes])
        else:
            setattr(tensor.parameters[name], _KINDS[type(value)], value)
    if "data" in given:
        elements = list(_flat(given["data"]))
        if is_raw:
            request.raw_input_contents.append(_encoded(datatype, elements))
        else:
            _fill(tensor.contents, datatype, elements)
    return tail[nbytes:]


def _flat(data: list[Any]) -> Iterator[Any]:
    if not isinstance(data, list):
        raise TypeError(data)
    for each in data:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each.encode() if isinstance(each, str) else each


def _fill(contents: Message, datatype: str, elements: list[Any]) -> None:
    contents.SetInParent()
    field, allowed = _CONTENTS.get(datatype, ("", set()))
    kinds = {type(each) for each in elements}
    if not field or not kinds <= allowed:
        (kind,) = kinds  # ValueError: no field holds such a mixture
        field = _ANY[kind]
    getattr(contents, field).extend(elements)


def _encoded(datatype: str, elements: list[Any]) -> bytes:
    """The bytes of a raw tensor."""
    if datatype not in _CONTENTS or not {type(each) for each in elements} <= _CONTENTS[datatype][1]:
        raise TypeError(datatype)
    if datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in elements)
    dtype = np.dtype(triton_to_np_dtype(datatype))
    widest = {"i": np.int64, "u": np.uint64, "f": np.float64}.get(dtype.kind, dtype)
    with np.errstate(over="ignore"):  # what FP32 cannot hold is infinite, integers wrap
        return np.array(elements, widest).astype(dtype).tobytes()


def response(answer: Answer) -> Message:
    """The ModelInferResponse that says the same."""
    length = int(answer.headers.get(LENGTH, len(answer.body)))
    told, tail = json.loads(answer.body[:length]), answer.body[length:]
    made = pb.ModelInferResponse(**{key: value for key, value in told.items() if key != "outputs"})
    for each in told["outputs"]:
        made.outputs.add(name=each["name"], datatype=each["datatype"], shape=each["shape"])
        if "data" in each:
            raw = _encoded(each["datatype"], list(_flat(each["data"])))
        else:
            nbytes = each["parameters"]["binary_data_size"]
            raw, tail = tail[:nbytes], tail[nbytes:]
        made.raw_output_contents.append(raw)
    assert not tail
    return made

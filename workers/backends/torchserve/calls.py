"""Requests as handlers see them: per row of a request a dict of data and a dict of headers.

    parameter `ts` of the request      dict of data
    content_type                       {"body": the body, decoded by its content type}
    fields: [[name, type, length], …]  {name: the field's part of the body, decoded by its type}
    describe                           {}
    no parameter (Triton's protocols)  {"body": bytearray}

JSON is parsed, text/* becomes str; anything else, and whatever cannot be decoded, is a bytearray of the handler's own.
Pure. Runs in a worker.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson
from ts.context import RequestHeaders, RequestProcessor

from shoal.errors import InternalError
from shoal.workers.requests import Request

INPUT = "data"
#: The name of the parameter of requests and responses that holds what only TorchServe's protocol has, as JSON.
PARAMETER = "ts"

#: The value of a field of a request, as a handler gets it.
Value: TypeAlias = Any
_PREFIX_NBYTES = 4  # each element of a BYTES tensor begins with its length


class Kind(NamedTuple):
    """The kind of a request: a prediction, a description or an explanation. Requests of different kinds are not
    executed together."""

    is_description: bool
    is_explanation: bool


class Call(NamedTuple):
    """One row of a request: an element of the handler's batch."""

    data: dict[str, Value]
    processor: RequestProcessor
    request_id: str
    is_torchserves: bool  # the client speaks TorchServe's protocol
    kind: Kind


def calls_of(request: Request, *, decodes: bool, id_header: str = "") -> list[Call]:
    """The rows of a request; `id_header` names the header with the id of the request's sequence. Raises InternalError
    if the tensor or the parameter `ts` is damaged."""
    about = _about(parameter_of(request))
    headers: dict[str, Any] = about.get("headers") or {}
    if not about and id_header and request.correlation_id:
        headers = {id_header: str(request.correlation_id)}
    return _calls(request.tensors[INPUT], about, headers, request.id, decodes=decodes)


def calls_of_rank(tensor: bytes, parameter: Any, request_id: str, *, decodes: bool) -> list[Call]:
    """The rows of a request for another rank of the handler, from the tensor in wire form and the parameter `ts`."""
    about = _about(parameter)
    return _calls(memoryview(tensor), about, about.get("headers") or {}, request_id, decodes=decodes)


def parameter_of(request: Request) -> Any:
    """The parameter `ts` of a request; None where it has none."""
    return request.options.parameters.get(PARAMETER) if request.options.parameters else None


def _calls(
    tensor: Any, about: Mapping[str, Any], headers: dict[str, Any], given_id: str, *, decodes: bool
) -> list[Call]:
    request_id = about.get("request_id") or given_id or str(uuid.uuid4())
    is_description = about.get("describe") == "True"
    kind = Kind(is_description, about.get("explain") == "True")
    calls = []
    for body in elements(tensor):
        own = RequestHeaders(headers)
        for name in ("url_path", "explain", "describe"):
            if (value := about.get(name)) is not None:
                own[name] = value
        data = {} if is_description else _data(body, about, own, decodes=decodes)
        calls.append(Call(data, RequestProcessor(own), request_id, bool(about), kind))
    return calls


def _about(text: Any) -> Mapping[str, Any]:
    if text is None:
        return {}
    try:
        about = orjson.loads(text)  # raises an error for anything but text
    except (TypeError, ValueError) as error:
        raise InternalError(f"parameter '{PARAMETER}' of the request is no JSON: {error}") from error
    if not isinstance(about, dict):
        raise InternalError(f"parameter '{PARAMETER}' of the request must be a JSON object")
    return about


def elements(tensor: Any) -> Iterator[memoryview]:
    """The elements of a BYTES tensor in wire form, as views. Raises InternalError if the tensor is damaged."""
    start, end = 0, len(tensor)
    while start < end:
        first = start + _PREFIX_NBYTES
        last = first + int.from_bytes(tensor[start:first], "little")
        if last > end:
            raise InternalError(f"tensor '{INPUT}' of the request is damaged: an element ends at {last} of {end} bytes")
        yield tensor[first:last]
        start = last


def _data(body: memoryview, about: Mapping[str, Any], headers: RequestHeaders, *, decodes: bool) -> dict[str, Value]:
    fields = about.get("fields")
    if fields is None:
        content_type = about.get("content_type") or ""
        headers["body"] = {"content-type": content_type}
        return {"body": decoded(body, content_type) if decodes else bytearray(body)}
    data, start = {}, 0
    for name, content_type, length in fields:
        end = start + length
        if not start <= end <= len(body):
            raise InternalError(f"the fields of a request end at byte {end} of {len(body)}")
        part = body[start:end]
        data[name] = decoded(part, content_type or "") if decodes else bytearray(part)
        headers[name] = {"content-type": content_type or ""}
        start = end
    return data


def decoded(body: memoryview, content_type: str) -> Value:
    """A body decoded by its content type: the value of JSON, a str of text, otherwise a bytearray."""
    if not content_type:
        return bytearray(body)
    media_type = content_type.partition(";")[0].strip().lower()
    try:
        if media_type == "application/json":
            return _json(body)
        if media_type.startswith("text/"):
            return str(body, "utf-8")
    except (ValueError, RecursionError):  # among them UnicodeDecodeError
        pass
    return bytearray(body)


def _json(body: memoryview) -> Value:
    try:
        return orjson.loads(body)
    except ValueError:
        return json.loads(bytes(body))  # reads also NaN, Infinity and other encodings

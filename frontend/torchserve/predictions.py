"""A prediction in TorchServe's protocol, as an infer request: the body becomes a tensor, the head a parameter.

The body is the only element of one BYTES tensor; the facts about the request that the model's handler may ask for are
sent as JSON in the request's parameter `ts`. The response is one BYTES tensor of one element, with JSON in the
response's parameter `ts` if the handler has set a status or headers. Pure: the lane and the road use the same
functions. Front-end processes.
"""

import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from shoal.datatypes import BYTES
from shoal.errors import InternalError
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import BODILESS, Headers, Response
from shoal.frontend.torchserve.models import input_of, parameter
from shoal.request import InferResponse
from shoal.star.models import ModelEntry
from shoal.star.validation import PreparedInput

#: The name of the parameter, of requests and of responses, that holds the JSON.
PARAMETER = "ts"
#: The header fields of sequences, if the model's configuration does not name other fields.
SEQUENCE_ID, SEQUENCE_START = "ts_request_sequence_id", "ts_request_sequence_start"
#: The header with a request's id. A response that has it already keeps it (with_common_headers in listener.py).
ID_HEADER = "x-request-id"
#: The length in front of a tensor's only element, in BYTES' wire form.
LENGTH = struct.Struct("<I")
#: Header fields that the server writes itself; those that a model's handler sets are dropped.
_OWN_FIELDS = frozenset({"connection", "content-length", "transfer-encoding", "x-request-id"})
#: A name of a field (RFC 9110, section 5.1).
_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: Characters that neither a field's value nor a reason phrase has (RFC 9110, section 5.5).
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: The statuses that a handler may set: those of HTTP but 1xx, which would leave the client waiting.
_STATUSES = range(200, 600)


class Asked(NamedTuple):
    """The facts about a prediction that follow from its path."""

    explain: str | None = None  # "True" or "False"; None on paths that have no explanations
    url_path: str | None = None  # the path behind the version, "" without; None on paths that cannot go on there
    fields_from_query: bool = False  # whether parameters of the query are fields of the data


#: A field of a request's data: name, content type, value.
Field = tuple[str, str, bytes]


def new_id() -> str:
    """A new id for a request, which appears in its response and in its model's log."""
    return str(uuid.uuid4())


def rest_of(path: str) -> str:
    """The part of a path /predictions/MODEL/VERSION/... behind the version; "" if the path ends there."""
    parts = path.split("/", 4)
    return unquote(parts[4]) if len(parts) > 4 else ""


def spelled_headers(head: bytes) -> dict[str, str]:
    """The header fields of a request's head, with names as the client spelled them; of repeated fields the last
    counts."""
    found: dict[str, str] = {}
    for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if name.strip():
            found[name.strip()] = value.strip(" \t")
    return found


def description(
    asked: Asked,
    content_type: str,
    headers: Mapping[str, str],
    request_id: str,
    fields: Sequence[Field] | None = None,
    *,
    describe: bool = False,
) -> str:
    """The parameter `ts` of a request: JSON with the facts that the model's handler may ask for."""
    members: dict[str, Any] = {"content_type": content_type, "headers": headers, "request_id": request_id}
    if asked.explain is not None:
        members["explain"] = asked.explain
    if asked.url_path is not None:
        members["url_path"] = asked.url_path
    if describe:
        members["describe"] = "True"
    if fields is not None:
        members["fields"] = [(name, kind, len(value)) for name, kind, value in fields]
    return orjson.dumps(members).decode()


def in_sequence(entry: ModelEntry, headers: dict[str, str]) -> str:
    """The id of the sequence that a request with these header fields belongs to; "" if the model has no sequences.

    As in TorchServe, a request without an id begins a sequence of its own, whose id is added to the fields.
    """
    if entry.signature.sequences is None or parameter(entry, "ts_sequence") != "true":
        return ""
    name = parameter(entry, "ts_header_key_sequence_id", SEQUENCE_ID)
    folded = name.lower()
    found = next((value for field, value in headers.items() if field.lower() == folded and value), "")
    if not found:
        found = headers[name] = f"ts-seq-{new_id()}"
        headers[parameter(entry, "ts_header_key_sequence_start", SEQUENCE_START)] = "true"
    return found


def prepare(
    entry: ModelEntry, request_id: str, described: str, element: memoryview, sequence_id: str = ""
) -> PreparedRequest:
    """The request to a model with a BYTES tensor of one element. `element` has its length in front. Raises ShoalError
    if the model does not take such a tensor."""
    shape = (1, 1) if entry.signature.max_batch_size > 0 else (1,)
    tensor = PreparedInput(input_of(entry), BYTES, shape, element)
    return PreparedRequest(
        entry, request_id, (tensor,), (), True, {PARAMETER: described}, 1, 0, 0, 0, correlation_id=sequence_id
    )


def element_of(pieces: Iterable[bytes | memoryview]) -> memoryview:
    """The element whose bytes are these pieces, in this order, with its length in front."""
    body = b"".join(pieces)
    return memoryview(LENGTH.pack(len(body)) + body)


class Answered(NamedTuple):
    """A model's answer: status, reason phrase, headers that the handler has set, and the body in the worker's block."""

    status: int
    phrase: str
    headers: Headers
    body: memoryview


def answered(response: InferResponse, block: memoryview) -> Answered:
    """The answer in a response: its first output, of BYTES the only element, of another datatype the bytes as they are.
    Raises InternalError if there is no output, or a BYTES output is not one element."""
    if not response.outputs:
        raise InternalError("the model gave no output to answer a prediction with")
    ref = response.outputs[0]
    data = block[ref.offset : ref.offset + ref.nbytes]
    if ref.datatype == BYTES.wire:
        if len(data) < LENGTH.size or LENGTH.unpack_from(data)[0] != len(data) - LENGTH.size:
            raise InternalError(f"the model's output '{ref.name}' must be one string of bytes, got shape {ref.shape}")
        data = data[LENGTH.size :]
    described = response.parameters.get(PARAMETER)
    if described is None:
        return Answered(200, "", (), data)
    return _described(described, data)


def _described(described: object, data: memoryview) -> Answered:
    try:
        members: Any = orjson.loads(described) if isinstance(described, str) else None
        status, phrase = int(members.get("status", 200)), str(members.get("phrase", ""))
        headers = members.get("headers", {}).items()
    except (AttributeError, TypeError, ValueError) as error:
        raise InternalError(f"the model's response has a parameter '{PARAMETER}' that cannot be read") from error
    if status not in _STATUSES:
        raise InternalError(f"the model has set the response status {status}, which HTTP does not have")
    fields = [(name, _line(str(value))) for name, value in headers if name.lower() not in _OWN_FIELDS]
    return Answered(status, _line(phrase), tuple(fields), data)


def _line(text: str) -> str:
    """A text for a line of a response's head, with blanks in place of control characters, which could end the line."""
    return _CONTROLS.sub(" ", text.encode("latin-1", "replace").decode("latin-1")).strip()


def response_of(answer: Answered) -> Response:
    """The HTTP response for an answer. Its chunk, if its status has a body, is a view of the worker's block. Raises
    InternalError for a header name that HTTP does not allow."""
    for name, _ in answer.headers:
        if _FIELD_NAME.fullmatch(name) is None:
            raise InternalError(f"the model has set the response header {name!r}, a name that HTTP does not have")
    chunks = () if answer.status in BODILESS else (answer.body,)
    return Response(answer.status, answer.headers, chunks, phrase=answer.phrase)

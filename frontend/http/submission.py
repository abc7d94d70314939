"""Infer requests of a lane, which never waits: a request's body is put into shared memory, a reply becomes a response.

Clients send the same request many times with other data: the JSON in front of binary tensors is equal, byte for byte
but for an id, from request to request. The result of parsing and validating such JSON is kept (a RequestTemplate) and
used again for a request with the same JSON, model and sizes; so is the head of the response. An id is cut out of the
one and put into the other. For numbers in JSON, json_template.py does the same. Requests with BYTES tensors, and
whatever else depends on the data, are parsed in full each time. Measured per request of 16 floats: 5 µs with a
template, 21 µs without. Where the HTTP head is the same, too, and there is no id, the head is not even parsed
(KnownPrefix): a lane then executes 70 thousand instructions in all for such a request instead of 128.
"""

import time
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import NamedTuple

from shoal.datatypes import BYTES
from shoal.errors import ShoalError, UnsupportedError
from shoal.frontend.header_forwarding import NOTHING, forwarded
from shoal.frontend.http import json_template
from shoal.frontend.http.connection import Chunks
from shoal.frontend.http.http_head import Head
from shoal.frontend.http.json_template import JsonTemplate
from shoal.frontend.http.request_id import MAX_ID_BYTES, cut_id, is_only_id
from shoal.frontend.prepared import PreparedRequest, submit_block, submit_copy
from shoal.frontend.response import JSON_HEAD, Headers, Response, error_response
from shoal.frontend.router import RouteMatch
from shoal.frontend.state import ServerState
from shoal.frontend.v2.compression import LEAST_COMPRESSED_BYTES
from shoal.frontend.v2.infer import prepare, render
from shoal.memo import Memo
from shoal.request import InferResponse, TensorRef, around_id, pack_id
from shoal.shm.layout import pack_span
from shoal.shm.port import Port, Reply
from shoal.shm.slab import Block
from shoal.star.models import ModelEntry
from shoal.star.outgoing import ALIGNMENT, aligned
from shoal.star.refusal import answered
from shoal.star.validation import PreparedInput

#: A template is kept for JSON of at most this many bytes, so a cache full of them takes a few megabytes.
_MAX_TEMPLATE_JSON = 4096
_MAX_TEMPLATES = 512
#: The room for the header in a block that a body is received into.
HEADER_BYTES = 4096
_MAX_RESPONSES = 256
_PHRASES: dict[int, str] = {each: each.phrase for each in HTTPStatus}
#: Head and JSON of a request are known as one where they are at most this long.
_MAX_PREFIX = 8192
#: The key of a template: model, JSON without its id, place of the first tensor, number of bytes behind the JSON, and
#: whether no id was cut out of the JSON.
_Key = tuple[int, bytes, int, int, bool]
#: The key of a template of JSON alone: model, skeleton, and whether no id was cut out.
_JsonKey = tuple[int, json_template.Skeleton, bool]
#: The first bytes of a response's JSON, and those of a response with binary tensors.
_ID_MEMBER = b'{"id":"%b",'
_BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
    b"Content-Length: %d\r\n\r\n"
)
#: Tensors up to this are joined to the head: one plain send is cheaper than a gathering one, and the block is free.
JOIN_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """An infer request without its tensors' bytes, kept for requests whose JSON is the same."""

    prepared: PreparedRequest
    tail_offset: int  # where in the block the first tensor starts
    tail_end: int
    header_offset: int
    header: bytes  # the packed InferRequest, without an id that was cut out
    around_id: tuple[bytes, bytes]  # the header, in front of the id and behind it
    nbytes: int  # of the block, up to the header's end
    span: int
    response_heads: dict[bytes, "ResponseHead"]  # key: the worker's packed InferResponse


class IdentifiedRequest(NamedTuple):
    """A request with an id of its own, and the template that it has without the id."""

    template: RequestTemplate | JsonTemplate
    id: bytes

    @property
    def prepared(self) -> PreparedRequest:
        """The request, without its tensors."""
        return replace(self.template.prepared, id=self.id.decode())


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A response's bytes up to its first tensor, without an id, kept for responses that differ in tensors and id only,
    and where the tensors lie in the worker's block."""

    head: bytes
    json: bytes  # at the end of the head
    spans: tuple[tuple[int, int], ...]
    end: int  # where in the worker's block the last tensor ends
    is_small: bool  # head and tensors are joined and sent as one chunk


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """An infer request's head and all else up to the part that changes (tensors, or a body that is all JSON), kept
    for requests that begin with the same bytes."""

    head: Head
    keep_alive: bool
    entry: ModelEntry
    template: RequestTemplate | None  # without an id; None: the body is JSON
    prefix_nbytes: int
    nbytes: int
    num_changes: int  # the models' when this was kept: after another change the name may mean another version, or none


#: What a lane keeps of a request until its reply comes.
Submitted = PreparedRequest | RequestTemplate | JsonTemplate | IdentifiedRequest


class Submission:
    """Puts one lane's infer requests into shared memory, and makes responses of the replies."""

    def __init__(self, state: ServerState, port: Port) -> None:
        self._state = state
        self._port = port
        # Changed by submit: templates, and known requests by prefix.
        self._templates = Memo[_Key, RequestTemplate]("http_form", _MAX_TEMPLATES)
        self._json_templates = Memo[_JsonKey, JsonTemplate]("http_json_form", _MAX_TEMPLATES)
        self._known = Memo[bytes, KnownPrefix]("http_prefix", _MAX_TEMPLATES)
        # Changed by response: ids of the models that have given a response worth compressing.
        self._large: set[int] = set()

    def find(self, prefix: bytes, nbytes: int) -> KnownPrefix | None:
        """What is kept of an earlier request that had `nbytes` bytes, too, and started with `prefix`; None if there
        is none, or if models have changed since."""
        known = self._known.entries.get(prefix)
        if known is None or known.nbytes != nbytes:
            return None
        return known if known.num_changes == self._state.models.num_changes else None

    def submit_known(self, known: KnownPrefix, request: bytes) -> tuple[int, Submitted]:
        """Put a request that `find` found into shared memory; `request` is all of it, from the first byte of its head.

        Returns the same as `submit`. Raises ShoalError.
        """
        start_ns = time.monotonic_ns()
        rest = request[known.prefix_nbytes :]
        template = known.template
        if template is None:
            return self._submit_json(known.entry, known.head, rest, start_ns)
        block = self._port.allocate(template.nbytes, known.entry.model_id)
        memory = block.memory
        memory[template.tail_offset : template.tail_end] = rest
        memory[template.header_offset : template.nbytes] = template.header
        return submit_block(self._port, template.prepared, block, template.span, start_ns), template

    def _remember(self, raw: bytes, head: Head, entry: ModelEntry, template: RequestTemplate | None) -> None:
        if len(raw) > _MAX_PREFIX:
            return
        nbytes = len(raw) + head.content_length - (head.json_length or 0)
        num_changes = self._state.models.num_changes
        self._known.keep(raw, KnownPrefix(head, head.keep_alive, entry, template, len(raw), nbytes, num_changes))

    def submit(self, head: Head, body: memoryview, block: Block | None, raw: bytes = b"") -> tuple[int, Submitted]:
        """Put a request into shared memory; the batcher sees it after the port's next flush.

        Returns the request's number, and what `response` needs of the request when its reply comes. `body` lies in
        `block`, at `body_offset`; where `block` is None, in private memory. The block is used for the request, or
        freed. `raw` are the bytes of the head, where the request came in one piece and its head may come again: `find`
        then finds the next such request. Raises ShoalError, after freeing the block.
        """
        start_ns = time.monotonic_ns()
        try:
            entry = self._entry(head)
            if block is not None:
                self._port.admit(entry.model_id)
            pattern = self._state.header_forward_pattern
            fields = forwarded(pattern, head.raw) if pattern else NOTHING
            submitted = None if fields else self._submit_as_known(entry, head, body, block, raw, start_ns)
            if submitted is not None:
                return submitted
            limit, regions = self._state.http_max_input_size, self._state.regions
            prepared = prepare(entry, head.headers, body, limit, fields, regions)
            if not fields:  # a template is found by the JSON alone, and the next client's headers are others
                self._keep_template(entry, head, body, prepared)
            number = submit_copy(self._port, prepared, start_ns)
        except ShoalError:
            if block is not None:
                self._port.slab.free(block.ref)
            raise
        if block is not None:
            self._port.slab.free(block.ref)
        return number, prepared

    def _submit_as_known(
        self, entry: ModelEntry, head: Head, body: memoryview, block: Block | None, raw: bytes, start_ns: int
    ) -> tuple[int, Submitted] | None:
        """Submit a request that is all JSON, or one whose template is kept; returns None if it must be parsed in
        full."""
        longest = min(json_template.MAX_BODY_BYTES, self._state.http_max_input_size)
        if block is None and head.json_length is None and len(body) <= longest:
            if raw:
                self._remember(raw, head, entry, None)
            return self._submit_json(entry, head, bytes(body), start_ns)
        if not 0 < (head.json_length or 0) <= len(body):
            return None
        key, id_ = _key(entry, head, body)
        template = self._templates.entries.get(key)
        if template is None:
            return None
        if id_:
            return self._submit_template(template, head, body, block, start_ns, id_), IdentifiedRequest(template, id_)
        if raw:
            self._remember(raw + body[: head.json_length], head, entry, template)
        return self._submit_template(template, head, body, block, start_ns), template

    def _submit_json(self, entry: ModelEntry, head: Head, body: bytes, start_ns: int) -> tuple[int, Submitted]:
        """Submit a small body that is all JSON. Raises ShoalError."""
        json, id_ = cut_id(body)
        skeleton, arrays = json_template.split(json)
        key = (entry.model_id, skeleton, not id_)
        template = self._json_templates.entries.get(key)
        limit = self._state.http_max_input_size
        tensors = None if template is None else json_template.decode(template, arrays, limit)
        if template is None or tensors is None:
            prepared = prepare(entry, head.headers, memoryview(body), limit, regions=self._state.regions)
            if template is None and is_only_id(body, id_, prepared.id):
                bare = replace(prepared, id="") if id_ else prepared
                made = json_template.make_template(bare, skeleton, arrays)
                if made is not None:
                    self._json_templates.keep(key, made)
            return submit_copy(self._port, prepared, start_ns), prepared
        header = with_id(template, id_) if id_ else template.header
        block = self._port.allocate(template.header_offset + len(header), entry.model_id)
        memory = block.memory
        for each, data in zip(template.inputs, tensors, strict=True):
            memory[each.offset : each.offset + len(data)] = data
        memory[template.header_offset : template.header_offset + len(header)] = header
        span = pack_span(template.header_offset, len(header))
        number = submit_block(self._port, template.prepared, block, span, start_ns)
        return number, IdentifiedRequest(template, id_) if id_ else template

    def has_large_responses(self, head: Head) -> bool:
        """Whether the model that a request is for has given a response that is worth compressing."""
        return bool(self._large) and self.model_of(head) in self._large

    def model_of(self, head: Head) -> int:
        """The id of the model that a request is for; 0 if there is no such model."""
        try:
            return self._entry(head).model_id
        except ShoalError:
            return 0

    def _entry(self, head: Head) -> ModelEntry:
        found = head.found
        assert isinstance(found, RouteMatch), "a refusal is answered before its body is read"
        entry = self._state.models.lookup(found.name, found.version)
        if entry.is_decoupled:
            raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
        return entry

    def _submit_template(
        self,
        template: RequestTemplate,
        head: Head,
        body: memoryview,
        block: Block | None,
        start_ns: int,
        id_: bytes = b"",
    ) -> int:
        header, end, span = template.header, template.nbytes, template.span
        if id_:
            header = with_id(template, id_)
            end = template.header_offset + len(header)
            span = pack_span(template.header_offset, len(header))
        if block is None:
            block = self._port.allocate(end, template.prepared.entry.model_id)
            block.memory[template.tail_offset : template.tail_end] = body[head.json_length :]
        block.memory[template.header_offset : end] = header
        return submit_block(self._port, template.prepared, block, span, start_ns)

    def _keep_template(self, entry: ModelEntry, head: Head, body: memoryview, prepared: PreparedRequest) -> None:
        """Keep a template of this request, if its tensors are all binary and the bytes of none have to be checked
        (BYTES)."""
        json_length = head.json_length
        if not json_length or json_length > _MAX_TEMPLATE_JSON or prepared.has_regions:
            return
        if any(_is_apart(each, body) or each.datatype is BYTES for each in prepared.inputs):
            return
        key, id_ = _key(entry, head, body)
        if not is_only_id(bytes(body[:json_length]), id_, prepared.id):
            return
        kept = replace(prepared, inputs=(), id="" if id_ else prepared.id)  # inputs are views of this request's body
        offset = tail_offset = aligned(json_length)
        refs = []
        for name, datatype, shape, data in prepared.inputs:
            refs.append(TensorRef(name, datatype.wire, shape, offset, len(data)))
            offset += len(data)
        header = kept.pack_header(refs)
        if len(header) > HEADER_BYTES - ALIGNMENT - MAX_ID_BYTES:
            return  # behind a body received into the block there would be no room for the header
        header_offset = aligned(offset)
        span = pack_span(header_offset, len(header))
        template = RequestTemplate(
            kept, tail_offset, offset, header_offset, header, around_id(header), header_offset + len(header), span, {}
        )
        self._templates.keep(key, template)

    def known_response(self, asked: Submitted, reply: Reply) -> Chunks | None:
        """The whole response if all of it but the tensors is kept from an earlier one; else None, and `response`
        renders it.

        If it is one chunk, that is private memory; of several, all but the first are views of the worker's block, valid
        until the block is released.
        """
        header, block = reply.header, reply.block
        if header is None or block is None or reply.status or reply.reason:
            return None
        # A worker may send the same header with a smaller block.
        if type(asked) is RequestTemplate:
            known = asked.response_heads.get(header)
            if known is None or known.end > len(block):
                return None
            chunks: Chunks = [known.head]
            for start, end in known.spans:
                chunks.append(block[start:end])
            return [b"".join(chunks)] if known.is_small else chunks
        if type(asked) is JsonTemplate:
            json = asked.responses.get(header)
            text = json_template.fill(json, block) if json is not None and json.end <= len(block) else None
            return None if text is None else [JSON_HEAD % len(text) + text]
        if type(asked) is IdentifiedRequest:
            return self._known_response_with_id(asked, header, block)
        return None

    def _known_response_with_id(self, asked: IdentifiedRequest, header: bytes, block: memoryview) -> Chunks | None:
        template, id_ = asked
        if type(template) is JsonTemplate:
            json = template.responses.get(header)
            text = json_template.fill(json, block) if json is not None and json.end <= len(block) else None
            if text is None:
                return None
            text = _ID_MEMBER % id_ + text[1:]
            return [JSON_HEAD % len(text) + text]
        assert isinstance(template, RequestTemplate)
        known = template.response_heads.get(header)
        if known is None or known.end > len(block):
            return None
        chunks: Chunks = [b""]
        nbytes = 0
        for start, end in known.spans:
            chunks.append(block[start:end])
            nbytes += end - start
        text = _ID_MEMBER % id_ + known.json[1:]
        chunks[0] = _BINARY_HEAD % (len(text), len(text) + nbytes) + text
        return [b"".join(chunks)] if known.is_small else chunks

    def response(self, asked: Submitted, reply: Reply) -> Chunks:
        """The response, rendered in full. Raises ShoalError."""
        response = self._response(asked, reply)
        return [response_head(response), *response.chunks]

    def _response(self, asked: Submitted, reply: Reply) -> Response:
        prepared = asked if isinstance(asked, PreparedRequest) else asked.prepared
        try:
            answer = answered(prepared.entry, prepared.id, reply, prepared.correlation_id)
            rendered = render(prepared, answer.response, answer.block)
        except ShoalError as error:
            return error_response(error)
        if type(asked) is IdentifiedRequest:
            bare = render(asked.template.prepared, answer.response, answer.block)
            self._keep_response(asked.template, answer.header, answer.response, bare)
        else:
            self._keep_response(asked, answer.header, answer.response, rendered)
        model = prepared.entry.model_id
        if model not in self._large and sum([len(chunk) for chunk in rendered.chunks]) >= LEAST_COMPRESSED_BYTES:
            self._large.add(model)
            self._known.entries.clear()  # from now on each request's Accept-Encoding is read
        return rendered

    def _keep_response(self, template: Submitted, packed: bytes, response: InferResponse, rendered: Response) -> None:
        """Keep a response's head for the request's template, if nothing but the tensors' bytes can change in the next
        one."""
        if type(template) is JsonTemplate:
            known = json_template.make_response(template.prepared, response, bytes(rendered.chunks[0]))
            if known is not None and len(rendered.chunks) == 1 and len(template.responses) < _MAX_RESPONSES:
                template.responses[packed] = known
        elif (
            type(template) is RequestTemplate
            and len(rendered.chunks) > 1
            and len(template.response_heads) < _MAX_RESPONSES
        ):
            wanted = {output.name: output for output in template.prepared.outputs}
            sent = [ref for ref in response.outputs if not wanted or ref.name in wanted]
            binary_by_default = template.prepared.binary_data_output
            # Values in JSON and classes change with the data.
            if all(wanted[ref.name].binary if wanted else binary_by_default for ref in sent) and not any(
                output.classification for output in template.prepared.outputs
            ):
                spans = tuple([(ref.offset, ref.offset + ref.nbytes) for ref in sent if ref.nbytes])
                json = bytes(rendered.chunks[0])
                head = response_head(rendered) + json
                is_small = sum([end - start for start, end in spans], len(head)) <= JOIN_BYTES
                end = max([end for _, end in spans], default=0)
                template.response_heads[packed] = ResponseHead(head, json, spans, end, is_small)


def _is_apart(tensor: PreparedInput, body: memoryview) -> bool:
    """Whether the data of an input lie elsewhere than in the body."""
    return not isinstance(tensor.data, memoryview) or tensor.data.obj is not body.obj


def with_id(template: RequestTemplate | JsonTemplate, id_: bytes) -> bytes:
    """The packed InferRequest of this template with an id."""
    in_front, behind = template.around_id
    return b"".join((in_front, pack_id(id_.decode()), behind))


def body_offset(head: Head) -> int:
    """The offset in its block at which a body is received so that its first tensor lies on a cache line."""
    return aligned(head.json_length or 0) - (head.json_length or 0)


def response_head(response: Response) -> bytes:
    """A response's status line and header fields, Content-Length among them."""
    length = sum([len(chunk) for chunk in response.chunks])
    begun = status_and_fields(response.status, response.headers)
    return f"{begun}Content-Length: {length}\r\n\r\n".encode("latin-1")


def status_and_fields(status: int, headers: Headers) -> str:
    """A status line and header fields, without the empty line behind them."""
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    return f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n{fields}"


def _key(entry: ModelEntry, head: Head, body: memoryview) -> tuple[_Key, bytes]:
    """By which a template is kept, and the request's id, which is no part of it."""
    json_length = head.json_length or 0
    json, id_ = cut_id(bytes(body[:json_length]))
    return (entry.model_id, json, aligned(json_length), len(body) - json_length, not id_), id_

"""Inference without waiting: a body becomes a request in shared memory, a reply becomes a response. For the lane.

Clients ask the same again and again: the JSON in front of binary tensors is equal, byte for byte, from request to
request. What parsing and validating it came to is kept (a RequestTemplate) and used again where the JSON, its model and
the sizes are the same, as is the head of the response. For numbers in JSON, json_template.py does likewise. BYTES
tensors and whatever else depends on the data take the long way each time. Measured per request of 16 floats: 5 µs with
a template, 21 µs without. Where the HTTP head is the same, too, it is not even looked for (KnownPrefix): of all that a
lane does for such a request, 70 thousand instructions instead of 128.
"""

import time
from dataclasses import dataclass, replace
from http import HTTPStatus

from shoal.datatypes import BYTES
from shoal.errors import ShoalError, UnsupportedError
from shoal.frontend.header_forwarding import NOTHING, forwarded
from shoal.frontend.http import json_template
from shoal.frontend.http.connection import Chunks
from shoal.frontend.http.http_head import Head
from shoal.frontend.http.json_template import JsonTemplate
from shoal.frontend.prepared import PreparedRequest, submit_block, submit_copy
from shoal.frontend.response import JSON_HEAD, Response, error_response
from shoal.frontend.router import RouteMatch
from shoal.frontend.state import ServerState
from shoal.frontend.v2.compression import LEAST_COMPRESSED_BYTES
from shoal.frontend.v2.infer import prepare, render
from shoal.memo import Memo
from shoal.request import InferResponse, TensorRef
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
#: What a block that a body is received into has left for the header.
HEADER_BYTES = 4096
_MAX_RESPONSES = 256
_PHRASES: dict[int, str] = {each: each.phrase for each in HTTPStatus}
#: Head and JSON of a request are known as one where they are at most this long.
_MAX_PREFIX = 8192
#: Tensors up to this are joined to the head: one plain send is cheaper than a gathering one, and the block is free.
JOIN_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """A request whose JSON is known: only the tensors' bytes are new."""

    prepared: PreparedRequest
    tail_offset: int  # where in the block the first tensor starts
    tail_end: int
    header_offset: int
    header: bytes  # the packed InferRequest
    nbytes: int  # of the block, up to the header's end
    span: int
    response_heads: dict[bytes, "ResponseHead"]  # by the worker's packed InferResponse


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A response up to its first tensor, and where the tensors lie in the worker's block."""

    head: bytes
    spans: tuple[tuple[int, int], ...]
    end: int  # of the last tensor
    is_small: bool  # joined, it goes out in one send


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """A request that differs from an earlier one in what follows its prefix only: tensors, or the JSON of a body."""

    head: Head
    keep_alive: bool
    entry: ModelEntry
    template: RequestTemplate | None  # None: the body is JSON
    prefix_nbytes: int
    nbytes: int
    num_changes: int  # of the models until then: after another one the name may mean another version, or none


#: What is kept of a request until its reply comes.
Submitted = PreparedRequest | RequestTemplate | JsonTemplate


class Submission:
    """One lane's requests on their way in and replies on their way out."""

    def __init__(self, state: ServerState, port: Port) -> None:
        self._state = state
        self._port = port
        # Changed by submit: templates by model, JSON and number of bytes behind it; requests by prefix.
        self._templates = Memo[tuple[int, bytes, int], RequestTemplate]("http_form", _MAX_TEMPLATES)
        self._json_templates = Memo[tuple[int, json_template.Skeleton], JsonTemplate]("http_json_form", _MAX_TEMPLATES)
        self._known = Memo[bytes, KnownPrefix]("http_prefix", _MAX_TEMPLATES)
        # Changed by response: models, by their ids, of which there was one that is worth compressing.
        self._large: set[int] = set()

    def find(self, prefix: bytes, nbytes: int) -> KnownPrefix | None:
        """The known template of a request of `nbytes` bytes that starts with `prefix`."""
        known = self._known.entries.get(prefix)
        if known is None or known.nbytes != nbytes:
            return None
        return known if known.num_changes == self._state.models.num_changes else None

    def submit_known(self, known: KnownPrefix, request: bytes) -> tuple[int, Submitted]:
        """Like `submit`, for a request that was found; `request` is all of it, from the first byte of its head."""
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
        if not raw or len(raw) > _MAX_PREFIX:
            return
        nbytes = len(raw) + head.content_length - (head.json_length or 0)
        num_changes = self._state.models.num_changes
        self._known.keep(raw, KnownPrefix(head, head.keep_alive, entry, template, len(raw), nbytes, num_changes))

    def submit(self, head: Head, body: memoryview, block: Block | None, raw: bytes = b"") -> tuple[int, Submitted]:
        """Put a request into shared memory; visible to the batcher at the port's next flush.

        Returns its number, and what is asked of `response` with its reply. `body` lies in `block`, at `body_offset`, or
        in private memory, where that is None; the block is used, or freed. `raw` are the bytes of the head, where the
        request came in one piece: `find` then knows the next one. Raises ShoalError, and the block is free then.
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
            if not fields:  # templates are by the JSON alone: the next client's headers are others
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
        """Submit a request whose JSON or template is known; None if it must be parsed in full."""
        longest = min(json_template.MAX_BODY_BYTES, self._state.http_max_input_size)
        if block is None and head.json_length is None and len(body) <= longest:
            self._remember(raw, head, entry, None)
            return self._submit_json(entry, head, bytes(body), start_ns)
        template = (
            self._templates.entries.get(_key(entry, head, body)) if 0 < (head.json_length or 0) <= len(body) else None
        )
        if template is None:
            return None
        if raw:
            self._remember(raw + body[: head.json_length], head, entry, template)
        return self._submit_template(template, head, body, block, start_ns), template

    def _submit_json(self, entry: ModelEntry, head: Head, body: bytes, start_ns: int) -> tuple[int, Submitted]:
        """Submit a small body that is all JSON. Raises ShoalError."""
        skeleton, arrays = json_template.split(body)
        key = (entry.model_id, skeleton)
        template = self._json_templates.entries.get(key)
        limit = self._state.http_max_input_size
        tensors = None if template is None else json_template.decode(template, arrays, limit)
        if template is None or tensors is None:
            prepared = prepare(entry, head.headers, memoryview(body), limit, regions=self._state.regions)
            made = json_template.make_template(prepared, skeleton, arrays) if template is None else None
            if made is not None:
                self._json_templates.keep(key, made)
            return submit_copy(self._port, prepared, start_ns), prepared
        block = self._port.allocate(template.header_offset + len(template.header), entry.model_id)
        memory = block.memory
        for each, data in zip(template.inputs, tensors, strict=True):
            memory[each.offset : each.offset + len(data)] = data
        memory[template.header_offset : template.header_offset + len(template.header)] = template.header
        return submit_block(self._port, template.prepared, block, template.span, start_ns), template

    def has_large_responses(self, head: Head) -> bool:
        """Whether the model that a request is for has given a response that is worth compressing."""
        return bool(self._large) and self.model_of(head) in self._large

    def model_of(self, head: Head) -> int:
        """Id of the model that a request is for; 0 if there is none."""
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
        self, template: RequestTemplate, head: Head, body: memoryview, block: Block | None, start_ns: int
    ) -> int:
        if block is None:
            block = self._port.allocate(template.nbytes, template.prepared.entry.model_id)
            block.memory[template.tail_offset : template.tail_end] = body[head.json_length :]
        block.memory[template.header_offset : template.nbytes] = template.header
        return submit_block(self._port, template.prepared, block, template.span, start_ns)

    def _keep_template(self, entry: ModelEntry, head: Head, body: memoryview, prepared: PreparedRequest) -> None:
        """Remember what this request's JSON came to, if its tensors are all binary and none has to be walked."""
        json_length = head.json_length
        if not json_length or json_length > _MAX_TEMPLATE_JSON or prepared.has_regions:
            return
        if any(_is_apart(each, body) or each.datatype is BYTES for each in prepared.inputs):
            return
        offset = tail_offset = aligned(json_length)
        refs = []
        for name, datatype, shape, data in prepared.inputs:
            refs.append(TensorRef(name, datatype.wire, shape, offset, len(data)))
            offset += len(data)
        header = prepared.pack_header(refs)
        if len(header) > HEADER_BYTES - ALIGNMENT:
            return  # it would not fit behind a body that was received in place
        header_offset = aligned(offset)
        kept = replace(prepared, inputs=())  # they are views of this one request's body
        span = pack_span(header_offset, len(header))
        template = RequestTemplate(
            kept, tail_offset, offset, header_offset, header, header_offset + len(header), span, {}
        )
        self._templates.keep(_key(entry, head, body), template)

    def known_response(self, asked: Submitted, reply: Reply) -> Chunks | None:
        """The whole response, if all but its tensors is known; else None, and `response` renders it.

        One chunk is the lane's own; the chunks behind a first are views of the worker's block until it is released.
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
        return None

    def response(self, asked: Submitted, reply: Reply) -> Chunks:
        """The whole response, rendered in full if it is not known. Raises ShoalError."""
        response = self._response(asked, reply)
        return [response_head(response), *response.chunks]

    def _response(self, asked: Submitted, reply: Reply) -> Response:
        prepared = asked if isinstance(asked, PreparedRequest) else asked.prepared
        try:
            answer = answered(prepared.entry, prepared.id, reply, prepared.correlation_id)
            rendered = render(prepared, answer.response, answer.block)
        except ShoalError as error:
            return error_response(error)
        self._keep_response(asked, answer.header, answer.response, rendered)
        model = prepared.entry.model_id
        if model not in self._large and sum([len(chunk) for chunk in rendered.chunks]) >= LEAST_COMPRESSED_BYTES:
            self._large.add(model)
            self._known.entries.clear()  # from now on each request's Accept-Encoding is read
        return rendered

    def _keep_response(self, template: Submitted, packed: bytes, response: InferResponse, rendered: Response) -> None:
        """Remember what a response of this template looks like, if only its tensors can change."""
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
                head = response_head(rendered) + bytes(rendered.chunks[0])
                is_small = sum([end - start for start, end in spans], len(head)) <= JOIN_BYTES
                end = max([end for _, end in spans], default=0)
                template.response_heads[packed] = ResponseHead(head, spans, end, is_small)


def _is_apart(tensor: PreparedInput, body: memoryview) -> bool:
    """Whether an input lies elsewhere than in the body."""
    return not isinstance(tensor.data, memoryview) or tensor.data.obj is not body.obj


def body_offset(head: Head) -> int:
    """Where in its block a body is received, so that its first tensor lies on a cache line."""
    return aligned(head.json_length or 0) - (head.json_length or 0)


def response_head(response: Response) -> bytes:
    """Status line and header fields of a response, with its length."""
    length = sum([len(chunk) for chunk in response.chunks])
    fields = "".join([f"{name}: {value}\r\n" for name, value in response.headers])
    line = f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, '')}\r\n"
    return f"{line}{fields}Content-Length: {length}\r\n\r\n".encode("latin-1")


def _key(entry: ModelEntry, head: Head, body: memoryview) -> tuple[int, bytes, int]:
    return entry.model_id, bytes(body[: head.json_length]), len(body)

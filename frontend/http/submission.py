"""Submission of a lane's infer requests: parsed or recognised, and put into shared memory. Nothing here waits. One
thread, the lane's.

Clients send the same request many times with other data: the JSON in front of binary tensors is equal, byte for byte
but for an id and parameters, from request to request. The result of parsing and validating such JSON is kept (a
RequestTemplate) and used again for a request with the same JSON, model and sizes. Id and parameters are cut out of the
JSON first. A request with 16 floats takes 5 µs with a template, 21 without. JSON with the numbers in it has templates
of its own (json_template.py). BYTES tensors, and whatever else depends on the data, are parsed each time. If the HTTP
head is equal, too, but for fields without a meaning for the server, neither head nor JSON is parsed (known_request.py).
responses.py makes the responses.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import orjson

from shoal.datatypes import BYTES
from shoal.errors import ShoalError, UnsupportedError
from shoal.frontend.header_forwarding import NOTHING, Forwarded, forwarded
from shoal.frontend.http import json_template
from shoal.frontend.http.connection import Chunks
from shoal.frontend.http.http_head import Head
from shoal.frontend.http.json_template import JsonTemplate
from shoal.frontend.http.known_request import MAX_ID_BYTES, CutOptions, cut, is_right, learn
from shoal.frontend.http.responses import rendered_response
from shoal.frontend.http.templates import (
    REGION_MEMBER,
    KnownRequest,
    RegionTemplate,
    RequestTemplate,
    Submitted,
    VariedRequest,
    make_region_template,
    prepared_of,
    without,
)
from shoal.frontend.prepared import PreparedRequest, RequestSettings, submit_block, submit_copy
from shoal.frontend.recorded_headers import recorded_headers, with_sticky_key
from shoal.frontend.regions import region_block
from shoal.frontend.response import response_head
from shoal.frontend.router import RouteMatch
from shoal.frontend.state import ServerState
from shoal.frontend.v2.compression import LEAST_COMPRESSED_BYTES
from shoal.frontend.v2.infer import parse_settings, prepare
from shoal.memo import Memo
from shoal.request import TensorRef, around_id, split_header
from shoal.shm.layout import pack_span
from shoal.shm.port import Port, Reply
from shoal.shm.slab import Block
from shoal.star.models import ModelEntry
from shoal.star.outgoing import ALIGNMENT, aligned
from shoal.star.validation import check_sequence

#: A template is kept for JSON of at most this many bytes, so a cache full of them takes a few megabytes.
_MAX_TEMPLATE_JSON = 4096
_MAX_TEMPLATES = 512
#: Bytes of room for the packed InferRequest behind a body in the block that the body is received into.
HEADER_BYTES = 4096
#: Known requests are found by request line and size: the most pairs of line and size, and the most known requests of
#: one pair (ours).
_MAX_KNOWN, _MAX_ALIKE = 256, 4
#: The key of a template: model, JSON without the id and parameters that were cut out, place of the first tensor, number
#: of bytes behind the JSON, and whether the parameters that were cut out ask for binary outputs.
_Key = tuple[int, tuple[bytes, ...], int, int, bool]
#: The key of a template for bodies that are all JSON: model, skeleton of the JSON without the id and parameters that
#: were cut out, the number of pieces of the JSON, and whether the parameters that were cut out ask for binary outputs.
_JsonKey = tuple[int, json_template.Skeleton, int, bool]


class Submission:
    """Puts one lane's infer requests into shared memory, and keeps templates, by which later requests take less
    time."""

    def __init__(self, state: ServerState, port: Port) -> None:
        self._state = state
        self._port = port
        # Changed by submit: templates by their keys, settings by the text of the parameters, and known requests by
        # request line and size.
        self._templates = Memo[_Key, RequestTemplate]("http_template", _MAX_TEMPLATES)
        self._json_templates = Memo[_JsonKey, JsonTemplate]("http_json_template", _MAX_TEMPLATES)
        #: The templates of a model's last requests, by the model's id; these templates are tried first.
        self._recent_json = Memo[int, tuple[JsonTemplate, ...]]("http_json_recent", _MAX_TEMPLATES)
        self._settings = Memo[bytes, RequestSettings]("http_parameters", _MAX_TEMPLATES)
        self._known = Memo[tuple[bytes, int], tuple[KnownRequest, ...]]("http_known", _MAX_KNOWN)
        # Changed by response: the ids of models that have given a response large enough to be worth compressing; and
        # the number of these models.
        self._large: set[int] = set()
        self._num_large = 0

    def find(self, data: bytes, last: KnownRequest | None = None) -> tuple[KnownRequest, Sequence[bytes]] | None:
        """The earlier request that the request in `data` repeats, and the parts in which the two differ; None if there
        is no such request, or if models have changed since. `last`, the known request that the connection's previous
        request repeated, is tried first."""
        num_changes = self._state.models.num_changes + self._num_large
        if last is not None and last.num_changes == num_changes and last.layout.nbytes == len(data):
            values = last.layout.read(data)
            if values is not None:
                return last, values
        for known in self._known.entries.get((data[: data.find(b"\r")], len(data)), ()):
            values = known.layout.read(data)
            if values is not None and known.num_changes == num_changes:
                return known, values
        return None

    def forget_known(self) -> None:
        """Forget all known requests: an API key with which one of them was admitted may have been removed."""
        self._known.entries.clear()

    def submit_known(self, known: KnownRequest, values: Sequence[bytes]) -> tuple[int, Submitted] | None:
        """Put a request that `find` found into shared memory.

        Returns what `submit` returns; None if the request must be parsed in full. Raises ShoalError.
        """
        start_ns = time.monotonic_ns()
        template, layout = known.template, known.layout
        if template is None:
            return self._submit_json(known.entry, known.head, values[-1], start_ns)
        if not layout.has_options:
            block = self._port.allocate(template.nbytes, known.entry.model_id)
            memory = block.memory
            memory[template.tail_offset : template.tail_end] = values[-1]
            memory[template.header_offset : template.nbytes] = template.header
            return submit_block(self._port, template.prepared, block, template.span, start_ns), template
        id_, settings = b"", None
        if layout.id_at >= 0:
            id_ = values[layout.id_at]
        if layout.parameters_at >= 0:
            settings = self._settings_of(values[layout.parameters_at])
            if settings is None or settings.binary_data_output != template.prepared.binary_data_output:
                return None
        return self._submit_template(template, values[-1], None, start_ns, id_, settings)

    def _remember(
        self, head: Head, before: Head, json: bytes, options: CutOptions | None, nbytes: int,
        entry: ModelEntry, template: RequestTemplate | None,
    ) -> None:  # fmt: skip
        """Keep a request of `nbytes` bytes, so that `find` recognises later ones like it."""
        if self._state.restrictions and head.raw != before.raw:
            return  # a header that seems to mean nothing may be the secret that a restricted API asks for
        layout = learn(head, before, json, options, nbytes)
        if layout is None:
            return
        num_changes = self._state.models.num_changes + self._num_large
        key = head.raw[: head.raw.find(b"\r")], nbytes
        others = [each for each in self._known.entries.get(key, ()) if each.num_changes == num_changes]
        known = KnownRequest(layout, head, entry, template, num_changes)
        self._known.keep(key, (known, *others[: _MAX_ALIKE - 1]))

    def _settings_of(self, parameters: bytes) -> RequestSettings | None:
        """The settings in a text of parameters that was cut out of a request; None if the text has an error, which the
        full parse then reports."""
        settings = self._settings.entries.get(parameters)
        if settings is None:
            try:
                settings = parse_settings(orjson.loads(parameters))
            except (ShoalError, orjson.JSONDecodeError):
                return None
            self._settings.keep(parameters, settings)
        return settings

    def submit(
        self, head: Head, body: memoryview, block: Block | None, before: Head | None = None
    ) -> tuple[int, Submitted]:
        """Put a request into shared memory; the batcher sees it after the port's next flush.

        Returns the request's number, and the argument for `response` when the reply comes. `body` lies in `block`, at
        `body_offset`, or in private memory if `block` is None. The block is used for the request, or freed. If the
        request came in one piece, `before` is the head of the connection's previous request: by the two heads the
        request is kept for `find`. Raises ShoalError, after freeing the block.
        """
        start_ns = time.monotonic_ns()
        try:
            entry = self._entry(head)
            if block is not None:
                self._port.admit(entry.model_id, block)
            pattern = self._state.header_forward_pattern
            fields = forwarded(pattern, head.raw) if pattern else NOTHING
            headers = recorded_headers(names, head.headers) if (names := self._state.recorded_headers) else ()
            if fields or headers or entry.sticky_header:  # templates do not depend on headers
                prepared = replace(self._prepared(entry, head, body, fields), headers=headers)
                prepared = with_sticky_key(prepared, head.headers)
            else:
                submitted = self._submit_as_known(entry, head, body, block, before, start_ns)
                if not isinstance(submitted, PreparedRequest):
                    return submitted
                prepared = submitted
            number = submit_copy(self._port, prepared, start_ns)
        except ShoalError:
            if block is not None:
                self._port.slab.free(block.ref)
            raise
        if block is not None:
            self._port.slab.free(block.ref)
        return number, prepared

    def _prepared(
        self, entry: ModelEntry, head: Head, body: memoryview, fields: Forwarded = NOTHING
    ) -> PreparedRequest:
        return prepare(entry, head.headers, body, self._state.http_max_input_size, fields, self._state.regions)

    def _submit_as_known(
        self, entry: ModelEntry, head: Head, body: memoryview, block: Block | None, before: Head | None, start_ns: int
    ) -> tuple[int, Submitted] | PreparedRequest:
        """Submit a request that is all JSON, or one whose template is kept. Any other request is parsed in full, its
        template is kept, and it is returned to `submit`. Raises ShoalError."""
        json_length, limit = head.json_length, self._state.http_max_input_size
        if block is None and json_length is None and len(body) <= min(json_template.MAX_BODY_BYTES, limit):
            if before is not None:
                self._remember(head, before, b"", None, len(head.raw) + len(body), entry, None)
            return self._submit_json(entry, head, bytes(body), start_ns)
        if json_length is None or not 0 < json_length <= min(len(body), _MAX_TEMPLATE_JSON, limit):
            return self._prepared(entry, head, body)
        json = bytes(body[:json_length])
        options = cut(json)
        settings = self._settings_of(options.parameters) if options.parameters else None
        if options.parameters and settings is None:
            return self._prepared(entry, head, body)
        is_binary = settings is not None and settings.binary_data_output
        key: _Key = entry.model_id, options.rest, aligned(json_length), len(body) - json_length, is_binary
        template, submitted = self._templates.entries.get(key), None
        if template is not None:
            tail = body[json_length:]
            submitted = self._submit_template(template, tail, block, start_ns, options.id, settings)
        if submitted is not None:
            found: tuple[int, Submitted] | PreparedRequest = submitted
        else:
            found = prepared = self._prepared(entry, head, body)
            template = self._make_template(prepared, body, json, options)
            if template is not None:
                self._templates.keep(key, template)
        if before is not None and template is not None:
            self._remember(head, before, json, options, len(head.raw) + len(body), entry, template)
        return found

    def _submit_json(self, entry: ModelEntry, head: Head, body: bytes, start_ns: int) -> tuple[int, Submitted]:
        """Submit a small body that is all JSON. Raises ShoalError."""
        limit = self._state.http_max_input_size
        recent = self._recent_json.entries.get(entry.model_id, ())
        for template in recent:
            if template.body is not None and (texts := template.body.read(body)) is not None:
                tensors = json_template.decode(template, texts[0], limit)
                if tensors is None:
                    break
                varied, header = self._varied(template, texts[1], None)
                return self._submit_numbers(entry, template, tensors, varied, header, None, start_ns)
        options = cut(body)
        settings = self._settings_of(options.parameters) if options.parameters else None
        if options.parameters and settings is None:
            prepared = self._prepared(entry, head, memoryview(body))
            return submit_copy(self._port, prepared, start_ns), prepared
        if self._state.regions.are_allowed and REGION_MEMBER in body:
            return self._submit_with_regions(entry, head, body, options, settings, start_ns)
        # A zero byte stands for each value that was cut out. Valid JSON has no zero byte; a malformed body with one
        # cannot get the key of a valid body, since the key also has the number of pieces.
        skeleton, arrays = json_template.split(b"\0".join(options.rest))
        key = entry.model_id, skeleton, len(options.rest), settings is not None and settings.binary_data_output
        found = self._json_templates.entries.get(key)
        tensors = None if found is None else json_template.decode(found, arrays, limit)
        if found is None or tensors is None:
            prepared = self._prepared(entry, head, memoryview(body))
            if found is None and is_right(body, options):
                layout = json_template.learn(body, options)
                made = json_template.make_template(without(prepared, options), skeleton, arrays, layout)
                if made is not None:
                    self._json_templates.keep(key, made)
            return submit_copy(self._port, prepared, start_ns), prepared
        if found.body is not None and all(found is not each for each in recent):
            self._recent_json.keep(entry.model_id, (found, *recent[: _MAX_ALIKE - 1]))
        varied, header = self._varied(found, options.id, settings)
        return self._submit_numbers(entry, found, tensors, varied, header, settings, start_ns)

    def _submit_numbers(
        self, entry: ModelEntry, template: JsonTemplate, tensors: Sequence[bytes | memoryview],
        varied: JsonTemplate | RegionTemplate | VariedRequest, header: bytes, settings: RequestSettings | None,
        start_ns: int,
    ) -> tuple[int, Submitted]:  # fmt: skip
        """Submit a request of this template with these tensors and this packed InferRequest. Raises ShoalError."""
        end = template.header_offset + len(header)
        block = self._port.allocate(end, entry.model_id)
        memory = block.memory
        for each, data in zip(template.inputs, tensors, strict=True):
            memory[each.offset : each.offset + len(data)] = data
        memory[template.header_offset : end] = header
        span = pack_span(template.header_offset, len(header))
        return submit_block(self._port, template.prepared, block, span, start_ns, wishes=settings), varied

    def _varied(
        self, template: JsonTemplate | RegionTemplate, id_: bytes, settings: RequestSettings | None
    ) -> tuple[JsonTemplate | RegionTemplate | VariedRequest, bytes]:
        """The form in which a request of this template is kept until its reply, and its packed InferRequest. If `id_`
        is empty, the template's id is used; if `settings` is None, the template's settings. Raises
        InvalidArgumentError."""
        if not id_ and settings is None:
            return template, template.header
        if settings is not None:
            self._check_sequence(template.prepared, id_, settings)
        varied = VariedRequest(template, id_, settings)
        return varied, varied.header()

    def _submit_with_regions(
        self, entry: ModelEntry, head: Head, body: bytes, options: CutOptions, settings: RequestSettings | None,
        start_ns: int,
    ) -> tuple[int, Submitted]:  # fmt: skip
        """Submit a small body that is all JSON and names regions. Raises ShoalError."""
        key = entry.model_id, options.rest, settings is not None and settings.binary_data_output
        kept = self._state.regions.kept
        template: RegionTemplate | None = kept.entries.get(key)
        if template is None:
            prepared = self._prepared(entry, head, memoryview(body))
            # This raises if only the road can take the request; no template is made then.
            number = submit_copy(self._port, prepared, start_ns)
            made = make_region_template(without(prepared, options)) if is_right(body, options) else None
            if made is not None:
                kept.keep(key, made)
            return number, prepared
        varied, header = self._varied(template, options.id, settings)
        block, span = region_block(self._port, entry, template.inputs, header)
        return submit_block(self._port, template.prepared, block, span, start_ns, wishes=settings), varied

    def _check_sequence(self, prepared: PreparedRequest, id_: bytes, settings: RequestSettings) -> None:
        """Check these settings by the rules of the model's sequence batcher, after all other checks. Raises
        InvalidArgumentError."""
        signature = prepared.entry.signature
        if signature.sequences is not None:
            request_id = id_.decode() or prepared.id  # an id that is not plain ASCII is not cut out
            check_sequence(signature.sequences, signature.name, request_id, prepared.rows, settings.correlation_id)

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
        self, template: RequestTemplate, tail: bytes | memoryview, block: Block | None, start_ns: int,
        id_: bytes, settings: RequestSettings | None,
    ) -> tuple[int, Submitted] | None:  # fmt: skip
        """Submit a request of this template. None, and no effect, if the packed InferRequest does not fit behind the
        body that `block` has received. Raises ShoalError."""
        prepared = template.prepared
        varied: RequestTemplate | VariedRequest = template
        header, end, span = template.header, template.nbytes, template.span
        if id_ or settings is not None:
            varied = VariedRequest(template, id_, settings)
            header = varied.header()
            end = template.header_offset + len(header)
            span = pack_span(template.header_offset, len(header))
            if settings is not None:
                self._check_sequence(prepared, id_, settings)
        if block is None:
            block = self._port.allocate(end, prepared.entry.model_id)
            block.memory[template.tail_offset : template.tail_end] = tail
        elif end > len(block.memory):
            return None
        block.memory[template.header_offset : end] = header
        return submit_block(self._port, prepared, block, span, start_ns, wishes=settings), varied

    def _make_template(
        self, prepared: PreparedRequest, body: memoryview, json: bytes, options: CutOptions
    ) -> RequestTemplate | None:
        """The template of this request, if its tensors all lie in the body, as bytes that need no check; None for any
        other request, such as one with BYTES tensors, whose elements are checked."""
        if prepared.has_regions or not is_right(json, options):
            return None
        for _, datatype, _, data in prepared.inputs:
            if datatype is BYTES or not isinstance(data, memoryview) or data.obj is not body.obj:
                return None
        kept = replace(without(prepared, options), inputs=())  # inputs are views of this one body
        offset = tail_offset = aligned(len(json))
        refs = []
        for name, datatype, shape, data in prepared.inputs:
            refs.append(TensorRef(name, datatype.wire, shape, offset, len(data)))
            offset += len(data)
        header = kept.pack_header(refs)
        if len(header) > HEADER_BYTES - ALIGNMENT - MAX_ID_BYTES:
            return None  # the header would find no room behind a body in its block
        header_offset = aligned(offset)
        layout, _ = split_header(header)
        return RequestTemplate(
            kept, tail_offset, offset, header_offset, header, layout, around_id(header), header_offset + len(header),
            pack_span(header_offset, len(header)), {},
        )  # fmt: skip

    def response(self, submitted: Submitted, reply: Reply) -> Chunks:
        """The response to a request, rendered in full, or the response for the reply's error."""
        response = rendered_response(submitted, reply)
        model_id = prepared_of(submitted).entry.model_id
        if (
            response.status == 200
            and model_id not in self._large
            and sum([len(chunk) for chunk in response.chunks]) >= LEAST_COMPRESSED_BYTES
        ):
            self._large.add(model_id)
            self._num_large += 1  # known requests end: those that accept compression take the road now
        return [response_head(response), *response.chunks]


def body_offset(head: Head) -> int:
    """The offset in its block at which a body is received so that its first tensor lies on a cache line."""
    return aligned(head.json_length or 0) - (head.json_length or 0)

"""ModelInfer without waiting: a message becomes a request in shared memory, a reply becomes a message. Runs in
a lane; calls that must wait are in road_inference.py.

gRPC's counterpart of frontend/http/submission.py. Clients repeat their requests: but for the id and the tensors, the
messages are equal, byte for byte. The result of parsing and validating a message is kept (a MessageTemplate), and so
are the bytes around the tensors of its response. Both are used again for a message that is equal but for id and
tensors, as long as the models and the tensors' sizes are equal. Each message's own id (perf_analyzer sends a new one
each time) is inserted into the kept bytes. Templates of messages whose tensors lie in regions are kept until regions
change. BYTES tensors, typed contents and everything else that depends on the data are parsed each time.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

from shoal.api_keys import ApiKey
from shoal.datatypes import BYTES
from shoal.errors import ShoalError
from shoal.frontend.access.authorisation import check_lane, check_model
from shoal.frontend.grpc import infer, wire
from shoal.frontend.grpc.http2.events import new
from shoal.frontend.header_forwarding import NOTHING, Forwarded, forwarded_metadata
from shoal.frontend.http.responses import JOIN_BYTES
from shoal.frontend.prepared import PreparedRequest, checked_id, submit_block, submit_copy, wishes_of
from shoal.frontend.recorded_headers import as_answered, recorded_headers, with_sticky_key
from shoal.frontend.regions import (
    RegionInputs,
    RegionOutputs,
    inputs_in_regions,
    outputs_in_regions,
    region_block,
)
from shoal.frontend.state import ServerState
from shoal.memo import Memo
from shoal.request import InferResponse, RecordedHeaders, TensorRef, around_id, pack_id
from shoal.shm.layout import pack_span
from shoal.shm.port import Port, Reply
from shoal.shm.slab import Block
from shoal.star.outgoing import aligned
from shoal.star.refusal import answered, other_version

_MAX_REGION_RESPONSES = 16  # of one RegionTemplate: each set of output sizes needs one


class RegionResponse(NamedTuple):
    """A response all of whose tensors lie in regions, for responses that differ in their id and the tensors' bytes
    only."""

    around: wire.Envelope
    outputs: RegionOutputs


@dataclass(frozen=True, slots=True)
class RegionTemplate:
    """The template of requests whose tensors all lie in regions (regions.py): everything is known but the id and the
    bytes of the tensors."""

    prepared: PreparedRequest  # the validated request, without its id and inputs
    pattern: wire.WirePattern | None
    num_changes: int  # number of changes of the models so far: after the next, the name may mean another version
    inputs: RegionInputs
    header: tuple[bytes, bytes]  # the packed InferRequest, before the id and after it
    #: Responses by the worker's packed InferResponse, whether they are streamed, and whether they are the last.
    responses: dict[tuple[bytes, bool, bool], RegionResponse]

    def respond(self, id_: str, packed: bytes, block: memoryview, *, stream: bool, final: bool) -> wire.Chunks | None:
        """Write the outputs in a worker's block into their regions; returns the response's message. None where the
        response has to be rendered in full."""
        known = self.responses.get((packed, stream, final))
        if known is None or known.outputs.end > len(block):
            return None
        try:
            known.outputs.write(block)
        except ShoalError:
            return None  # rendering in full raises this error again
        no_data = (b"",) * len(known.around.parts)
        return [b"".join(wire.assemble(known.around, id_, no_data, is_streamed=stream))]

    def keep_response(
        self, packed: bytes, response: InferResponse, around: wire.Envelope, *, stream: bool, final: bool
    ) -> None:
        """Keep a response that was rendered in full for later ones, if all of its outputs are in regions."""
        outputs = outputs_in_regions(self.prepared, response)
        if outputs is not None and len(self.responses) < _MAX_REGION_RESPONSES:
            self.responses[packed, stream, final] = RegionResponse(around, outputs)


def make_region_template(
    prepared: PreparedRequest, num_changes: int, pattern: wire.WirePattern | None
) -> RegionTemplate | None:
    """The template of a request that has been prepared in full; None if an input cannot be copied from its region
    unchecked: strings cannot, nor can tensors on a GPU (regions.py)."""
    inputs = inputs_in_regions(prepared)
    if inputs is None:
        return None
    kept = replace(prepared, id="", inputs=())
    return RegionTemplate(kept, pattern, num_changes, inputs, around_id(kept.pack_header(inputs.refs)), {})


#: A template is kept only of a message of at most this many bytes, so a cache full of them takes a few megabytes.
_MAX_TEMPLATE_NBYTES = 4096
_MAX_TEMPLATES = 512
_MAX_RESPONSES = 256
#: Most lengths of ids for which one template keeps a layout: clients that use a counter as id send few lengths.
_MAX_ID_LENGTHS = 32


class KnownResponse(NamedTuple):
    """A response without its id and tensors, and the places of the tensors in the worker's block."""

    around: wire.Envelope
    spans: tuple[tuple[int, int], ...]
    end: int  # end of the last tensor


class InBlock(NamedTuple):
    """The layout by which a request whose id has a certain length is written into its block, in one call of
    Struct.pack_into."""

    layout: Struct  # of the tensors, and of the packed InferRequest in three parts: before the id, the id, after it
    head: bytes
    tail: bytes
    span: int  # where the packed InferRequest lies in the block


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """The template of requests whose tensors lie in the message: everything is known but the id and the tensors'
    bytes."""

    prepared: PreparedRequest  # the validated request, without its id and the tensors' bytes
    pattern: wire.WirePattern | None
    is_decoupled: bool
    num_changes: int  # number of changes of the models so far: after the next, the name may mean another version
    refs: tuple[TensorRef, ...]  # places in a block that the request is copied into
    header_offset: int
    header: tuple[bytes, bytes]  # the packed InferRequest, before the id and after it
    in_block: Memo[int, InBlock]  # by the number of bytes of the id
    #: Responses by the worker's packed InferResponse, whether they are streamed, and whether they are the last.
    responses: dict[tuple[bytes, bool, bool], KnownResponse]

    def place(self, id_nbytes: int) -> InBlock:
        head, tail = self.header
        packed = pack_id(" " * id_nbytes)
        head += packed[: len(packed) - id_nbytes]
        spans = [(offset, nbytes) for _, _, _, offset, nbytes in self.refs]
        spans.append((self.header_offset, len(head)))
        end, fields = 0, "="
        for offset, nbytes in spans:
            fields += f"{offset - end}x{nbytes}s"
            end = offset + nbytes
        layout = Struct(f"{fields}{id_nbytes}s{len(tail)}s")
        placed = InBlock(layout, head, tail, pack_span(self.header_offset, layout.size - self.header_offset))
        self.in_block.keep(id_nbytes, placed)
        return placed


class SubmittedMessage(NamedTuple):
    """The part of a request that is kept until its last reply has come."""

    id: str
    template: MessageTemplate | None
    found: PreparedRequest  # the validated request, without its id if it has a template
    in_regions: RegionTemplate | None  # of a known request whose tensors lie in regions

    @property
    def recognised_by(self) -> MessageTemplate | RegionTemplate | None:
        return self.template or self.in_regions

    @property
    def prepared(self) -> PreparedRequest:
        """The request with its id; without its tensors if it has a template."""
        if self.template is None and self.in_regions is None:
            return self.found
        return replace(self.found, id=self.id, inputs=())


class GrpcSubmission:
    """One lane's requests on their way in and replies on their way out."""

    def __init__(self, state: ServerState, port: Port, header_forward_pattern: str = "") -> None:
        self._state = state
        self._port = port
        self._header_forward_pattern = header_forward_pattern
        # Changed by submit. The templates, by the message without its id and tensors, and by the tensors' sizes; and
        # the last template of each model.
        self._templates = Memo[tuple[bytes, tuple[int, ...]], MessageTemplate]("grpc_template", _MAX_TEMPLATES)
        self._latest = Memo[bytes, MessageTemplate]("grpc_latest", _MAX_TEMPLATES)

    def submit(
        self,
        message: bytes | memoryview,
        metadata: Mapping[str, str],
        block: Block | None = None,
        offset: int = 0,
        *,
        is_stream: bool,
        deadline_ns: int = 0,
        key: ApiKey | None = None,
    ) -> tuple[int, SubmittedMessage]:
        """Implements `InferenceProtocol.submit` for a ModelInferRequest, which lies in a block at its
        `message_offset`."""
        start_ns = time.monotonic_ns()
        try:
            pattern = self._header_forward_pattern
            if key is not None and not key.is_plain:
                check_lane(key, is_stream=is_stream)
                check_model(key, infer.parse_skeleton(wire.split(message)).model_name)
            names = self._state.recorded_headers
            if block is None and not (pattern or names) and type(message) is bytes:
                submitted = self._submit_as_latest(message, start_ns, deadline_ns, is_stream=is_stream)
                if submitted is not None:
                    return submitted
            split = wire.split(message)
            checked_id(split.id)
            fields = forwarded_metadata(pattern, metadata) if pattern else NOTHING
            headers = recorded_headers(names, metadata) if names else ()
            template = None if fields or headers else self._known(split, is_stream=is_stream)
            if template is not None and block is None:
                self._remember(message, template)
                places = zip(split.offsets, split.lengths, strict=True)
                tensors = [bytes(message[start : start + nbytes]) for start, nbytes in places]
                return self.submit_known(template, split.id.encode(), tensors, start_ns, deadline_ns)
            if template is not None and block is not None:
                self._port.admit(template.prepared.entry.model_id, block)
                prepared = replace(template.prepared, id=split.id) if split.id else template.prepared
                span = _write_in_place(prepared, split, block, offset, len(message))
                if span:
                    number = submit_block(self._port, template.prepared, block, span, start_ns, deadline_ns)
                    return number, SubmittedMessage(split.id, template, template.prepared, None)
            if not (split.offsets or fields or headers) and self._state.regions.are_allowed and block is None:
                in_regions = self._known_in_regions(split, is_stream=is_stream)
                if in_regions is not None:
                    return self._submit_in_regions(in_regions, split.id, start_ns, deadline_ns)
            return self._submit_new(
                split, message, metadata, fields, headers, block, offset, start_ns, deadline_ns, is_stream=is_stream
            )
        except ShoalError:
            if block is not None:
                self._port.slab.free(block.ref)
            raise

    def model_of(self, message: bytes | memoryview) -> int:
        template = self._latest.entries.get(_model_field(message))
        if template is not None and template.num_changes == self._state.models.num_changes:
            return template.prepared.entry.model_id
        try:
            return infer.find_model(self._state, infer.parse_skeleton(wire.split(message)), is_stream=True).model_id
        except ShoalError:
            return 0

    def _submit_as_latest(
        self, message: bytes, start_ns: int, deadline_ns: int, *, is_stream: bool
    ) -> tuple[int, SubmittedMessage] | None:
        """Submit a message that fits the last template of its model, without walking the message's fields; None for any
        other message."""
        template = self._latest.entries.get(_model_field(message))
        if template is None or template.pattern is None or not self._is_valid(template, is_stream=is_stream):
            return None
        found = wire.match(template.pattern, message)
        if found is None or not found[0].isascii():
            return None
        return self.submit_known(template, *found, start_ns, deadline_ns)

    def _known(self, split: wire.Split, *, is_stream: bool) -> MessageTemplate | None:
        template = self._templates.entries.get((split.skeleton, split.lengths))
        return template if template is not None and self._is_valid(template, is_stream=is_stream) else None

    def _is_valid(self, template: MessageTemplate, *, is_stream: bool) -> bool:
        return template.num_changes == self._state.models.num_changes and (is_stream or not template.is_decoupled)

    def _remember(self, message: bytes | memoryview, template: MessageTemplate) -> None:
        if template.pattern is not None:
            self._latest.keep(_model_field(message), template)

    def submit_known(
        self,
        template: MessageTemplate | RegionTemplate,
        id_: bytes,
        tensors: Sequence[bytes],
        start_ns: int,
        deadline_ns: int = 0,
    ) -> tuple[int, SubmittedMessage]:
        """Submit a message of this template; see `submit`."""
        if isinstance(template, RegionTemplate):
            return self._submit_in_regions(template, id_.decode(), start_ns, deadline_ns)
        layout, head, tail, span = template.in_block.entries.get(len(id_)) or template.place(len(id_))
        block = self._port.allocate(layout.size, template.prepared.entry.model_id)
        layout.pack_into(block.memory, 0, *tensors, head, id_, tail)
        number = submit_block(self._port, template.prepared, block, span, start_ns, deadline_ns)
        return number, new(SubmittedMessage, (id_.decode(), template, template.prepared, None))

    def _submit_in_regions(
        self, template: RegionTemplate, id_: str, start_ns: int, deadline_ns: int
    ) -> tuple[int, SubmittedMessage]:
        """Submit a message of this template, with the tensors that lie in the regions now. Raises ShoalError."""
        prepared, (before, behind) = template.prepared, template.header
        header = b"".join((before, pack_id(id_), behind))
        block, span = region_block(self._port, prepared.entry, template.inputs, header)
        number = submit_block(self._port, prepared, block, span, start_ns, deadline_ns)
        return number, SubmittedMessage(id_, None, prepared, template)

    def _known_in_regions(self, split: wire.Split, *, is_stream: bool) -> RegionTemplate | None:
        """The template of a message without raw tensors, if it is known and its tensors lie in regions."""
        template: RegionTemplate | None = self._state.regions.kept.entries.get(split.skeleton)
        if template is None or template.num_changes != self._state.models.num_changes:
            return None
        return template if is_stream or not template.prepared.entry.is_decoupled else None

    def _submit_new(
        self,
        split: wire.Split,
        message: bytes | memoryview,
        metadata: Mapping[str, str],
        fields: Forwarded,
        headers: RecordedHeaders,
        block: Block | None,
        offset: int,
        start_ns: int,
        deadline_ns: int,
        *,
        is_stream: bool,
    ) -> tuple[int, SubmittedMessage]:
        """Parse, validate and submit a message whose template is not known."""
        request = infer.parse_skeleton(split)
        entry = infer.find_model(self._state, request, is_stream=is_stream)
        prepared = infer.prepare(entry, request, infer.raws_of(message, split), fields, self._state.regions)
        if entry.sticky_header:
            prepared = with_sticky_key(prepared, metadata)
        if headers:
            prepared = replace(prepared, headers=headers)
        is_unlike = bool(fields or headers or entry.sticky_header)  # then no template is kept
        template = None if is_unlike else self._keep_template(split, message, prepared)
        asked = SubmittedMessage(split.id, template, prepared, None)
        if block is not None:
            self._port.admit(entry.model_id, block)
            span = _write_in_place(prepared, split, block, offset, len(message))
            if span:
                return submit_block(
                    self._port, prepared, block, span, start_ns, deadline_ns, wishes_of(prepared)
                ), asked
        number = submit_copy(self._port, prepared, start_ns, deadline_ns)
        if block is not None:
            self._port.slab.free(block.ref)
        elif not (split.offsets or is_unlike) and len(split.skeleton) <= _MAX_TEMPLATE_NBYTES:
            pattern = wire.make_pattern(message, split) if type(message) is bytes else None
            in_regions = make_region_template(prepared, self._state.models.num_changes, pattern)
            if in_regions is not None:
                self._state.regions.kept.keep(split.skeleton, in_regions)
        return number, asked

    def _keep_template(
        self, split: wire.Split, message: bytes | memoryview, prepared: PreparedRequest
    ) -> MessageTemplate | None:
        """Keep the template of this message, if all its tensors are raw and none is BYTES, whose elements must be
        checked."""
        if not split.offsets or len(split.skeleton) > _MAX_TEMPLATE_NBYTES or prepared.has_regions:
            return None
        if any(each.datatype is BYTES for each in prepared.inputs):
            return None
        place, refs, inputs = 0, [], []
        for each in prepared.inputs:
            refs.append(TensorRef(each.name, each.datatype.wire, each.shape, place, len(each.data)))
            place = aligned(place + len(each.data))
            inputs.append(each._replace(data=_NO_DATA))  # the data is a view of this message alone
        kept = replace(prepared, id="", inputs=tuple(inputs))
        header = kept.pack_header(refs)
        template = MessageTemplate(
            kept,
            wire.make_pattern(message, split) if type(message) is bytes else None,
            prepared.entry.is_decoupled,
            self._state.models.num_changes,
            tuple(refs),
            place,
            around_id(header),
            Memo("grpc_id_length", _MAX_ID_LENGTHS),
            {},
        )
        self._templates.keep((split.skeleton, split.lengths), template)
        self._remember(message, template)
        return template

    def response(
        self, asked: SubmittedMessage, reply: Reply, *, stream: bool = False, final: bool = True
    ) -> wire.Chunks:
        """Implements `InferenceProtocol.response`: a ModelInferResponse, or a ModelStreamInferResponse with it."""
        template, header, block = asked.template, reply.header, reply.block
        if template is not None and header is not None and block is not None and not (reply.status or reply.reason):
            known = template.responses.get((header, stream, final))
            if known is not None and known.end <= len(block):  # a worker may send an equal header with a smaller block
                around = known.around
                if stream or around.nbytes > JOIN_BYTES or not known.spans:
                    return _sent(around, asked.id, [block[start:end] for start, end in known.spans], stream=stream)
                # `_sent` would take five times as many instructions.
                chunks: wire.Chunks = [around.model, wire.named(asked.id)]
                for part, (start, end) in zip(around.parts, known.spans, strict=False):
                    chunks += (part, block[start:end])
                return chunks
        in_regions = asked.in_regions
        if in_regions is not None and header is not None and block is not None and not (reply.status or reply.reason):
            sent = in_regions.respond(asked.id, header, block, stream=stream, final=final)
            if sent is not None:
                return sent
        prepared = asked.prepared
        packed, response, block = answered(prepared.entry, prepared.id, reply, prepared.correlation_id)
        around, raws = infer.render_envelope(
            as_answered(prepared, other_version(reply)), response, block, final if stream else None
        )
        if reply.reason:  # another version answered: kept bytes would name it
            pass
        elif template is not None:
            _keep_response(template, (packed, stream, final), response, around)
        elif in_regions is not None:
            in_regions.keep_response(packed, response, around, stream=stream, final=final)
        return _sent(around, asked.id, raws, stream=stream)

    # --- streams ---

    def empty_final(self, asked: SubmittedMessage) -> bytes | None:
        """Implements `InferenceProtocol.empty_final`: None unless the client has asked for this message."""
        return infer.empty_final(asked.prepared) if asked.found.wants_empty_final else None

    def ends_with_error(self, _path: str, metadata: Mapping[str, str]) -> bool:
        """Implements `InferenceProtocol.ends_with_error`: true where the stream's metadata ask for it."""
        return metadata.get("triton_grpc_error") == "true"

    def refused_message(self, error: ShoalError, message: bytes | memoryview) -> bytes:
        return infer.stream_error(str(error), message)

    def refused_request(self, error: ShoalError, asked: SubmittedMessage, *, final: bool) -> bytes:
        entry = asked.found.entry
        return wire.stream_error(str(error), asked.id, entry.name, str(entry.version), final=final)


_NO_DATA = memoryview(b"")


def _model_field(message: bytes | memoryview) -> bytes:
    """The first field of a message, which is the model's name unless the message is unusual."""
    return bytes(message[: 2 + message[1]]) if len(message) > 1 else b""


def message_offset(first_raw: int | None) -> int:
    """The offset in its block at which a message is received, so that its first tensor lies on a cache line.

    `first_raw` is where the tensor begins in the message. The block needs HEADER_BYTES more behind the message.
    """
    return aligned(first_raw or 0) - (first_raw or 0)


def _write_in_place(prepared: PreparedRequest, split: wire.Split, block: Block, offset: int, nbytes: int) -> int:
    """Write the header behind a message that lies in the block already, from `offset` on. Returns the header's span.

    0, and no effect, if the header does not fit or the tensors are not raw.
    """
    if not split.offsets or prepared.has_regions:
        return 0
    refs = [
        TensorRef(name, datatype.wire, shape, offset + start, length)
        for (name, datatype, shape, _), start, length in zip(
            prepared.inputs, split.offsets, split.lengths, strict=False
        )
    ]
    header, place = prepared.pack_header(refs), aligned(offset + nbytes)
    if place + len(header) > len(block.memory):
        return 0
    block.memory[place : place + len(header)] = header
    return pack_span(place, len(header))


def _keep_response(
    template: MessageTemplate, key: tuple[bytes, bool, bool], response: InferResponse, around: wire.Envelope
) -> None:
    """Keep the bytes around a response's tensors for later responses. Those of a response with classifications are not
    kept, since its strings differ in length."""
    requested = template.prepared.outputs
    if len(template.responses) < _MAX_RESPONSES and not any(output.classification for output in requested):
        wanted = {output.name for output in requested}
        sent = [ref for ref in response.outputs if not wanted or ref.name in wanted]
        spans = tuple([(ref.offset, ref.offset + ref.nbytes) for ref in sent])
        template.responses[key] = KnownResponse(around, spans, max([end for _, end in spans], default=0))


def _sent(around: wire.Envelope, id_: str, raws: list[memoryview], *, stream: bool) -> wire.Chunks:
    chunks = wire.assemble(around, id_, raws, is_streamed=stream)
    return [b"".join(chunks)] if around.nbytes <= JOIN_BYTES else chunks

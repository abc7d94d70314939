"""TorchServe's inference API on a lane: the body of a prediction, unless it is a form, is received straight into the
request's block.

    0   length of the body, 4 bytes, little-endian: with it the body is a BYTES tensor of one element
    4   the body
        the packed InferRequest, on a cache line

Clients send the same head again and again, so the packed InferRequest that was made of a head is kept, with a
placeholder for the id (a Template). One thread, the lane's.
"""

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from shoal.errors import ShoalError, UnavailableError
from shoal.frontend.access.tokens import Tokens
from shoal.frontend.http.connection import Chunks, HttpConnection
from shoal.frontend.http.http_head import MAX_HEAD_BYTES, MAX_KEPT_HEAD, ROAD_FIELDS, Head, field_of, fields_of
from shoal.frontend.http.http_head import framing as framing_of
from shoal.frontend.http.lane_api import SMALL_BODY_BYTES, Place, may_pass
from shoal.frontend.prepared import PreparedRequest, submit_block
from shoal.frontend.response import Headers, Response, response_head
from shoal.frontend.router import RouteMatch, Router, answer, path_of
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.errors import NoWorkerError, error_response
from shoal.frontend.torchserve.forms import is_form
from shoal.frontend.torchserve.inference_api import PREDICTIONS, asked_for
from shoal.frontend.torchserve.listener import common_headers, router_of, with_common_headers
from shoal.frontend.torchserve.models import look_up
from shoal.frontend.torchserve.predictions import (
    LENGTH,
    answered,
    description,
    new_id,
    prepare,
    response_of,
    spelled_headers,
)
from shoal.memo import Memo
from shoal.request import TensorRef
from shoal.shared_settings import SLAB_PARTS
from shoal.shm.layout import pack_span
from shoal.shm.port import Port, Reply
from shoal.shm.slab import Block
from shoal.star.outgoing import aligned
from shoal.star.refusal import answered as answer_in
from shoal.timing import wants_timing

_MAX_HEADS = 512
_REQUEST_LINE = re.compile(rb"(GET|POST|PUT|DELETE|PATCH|HEAD) (/[!-~]*) HTTP/1\.1")
_FIELD_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t -~]*)")


class HeadParser:
    """Parses heads for the routes of one listener, as http_head.py does for Triton's: any head that is not plainly
    right is left to the road. Unlike there, any method may ask for a prediction, and names of header fields may have
    underscores, as ts_request_sequence_id has."""

    def __init__(self, routes: Router) -> None:
        self._routes = routes
        # Changed by parse: parsed heads, by their bytes.
        self._known = Memo[bytes, Head]("torchserve_head", _MAX_HEADS)

    def parse(self, raw: bytes) -> Head | None:
        """The head in `raw`, which ends with the empty line; None if the road must handle the request."""
        known = self._known.entries.get(raw)
        if known is not None:
            return known
        head = self._parse(raw) if len(raw) <= MAX_HEAD_BYTES else None
        if head is not None and len(raw) <= MAX_KEPT_HEAD:
            self._known.keep(raw, head)
        return head

    def _parse(self, raw: bytes) -> Head | None:
        first, *lines = raw.split(b"\r\n")
        line = _REQUEST_LINE.fullmatch(first)
        headers = fields_of(lines[:-2], _field_line) if lines[-2:] == [b"", b""] else None
        if line is None or headers is None or "host" not in headers or not headers.keys().isdisjoint(ROAD_FIELDS):
            return None
        method, target = line[1].decode("ascii"), line[2].decode("ascii")
        found = self._routes.resolve(method, target)
        is_prediction = False
        if not isinstance(found, Response):
            if found.is_blocking:
                return None
            is_prediction = found.handler in PREDICTIONS
        # Responses of models are never compressed, so the encodings that a client accepts do not matter.
        framing = framing_of.__wrapped__(
            headers.get("content-length", "0"),
            None,
            headers.get("connection", "keep-alive"),
            headers.get("content-encoding", "identity"),
            "",
        )
        if framing is None:
            return None
        length, _, keep_alive, _ = framing
        is_head = method == "HEAD"
        path, asks = path_of(target), wants_timing(headers)
        return Head(found, headers, length, None, is_prediction, keep_alive, path, raw, is_head, False, asks)


def _field_line(line: bytes) -> tuple[str, str] | None:
    return field_of(_FIELD_LINE.fullmatch(line))


#: Where in its block a body starts.
BODY_OFFSET = LENGTH.size
_MAX_TEMPLATES = 512
#: Stands for the id in a template's header; random, so that no client's bytes contain the placeholder.
_PLACEHOLDER = str(uuid.uuid4()).encode()
_NO_DATA = memoryview(b"")


class Template(NamedTuple):
    """A prediction without its body and its id, kept for requests with the same head."""

    prepared: PreparedRequest  # without an input's data and an id
    header: bytes  # the packed InferRequest, with _PLACEHOLDER in the place of the id
    header_offset: int
    nbytes: int  # bytes of the block
    span: int
    num_changes: int  # number of changes of the models when this was made


class Prediction(NamedTuple):
    """A prediction that has been submitted and not answered."""

    template: Template
    id: str
    version: str | None  # as the client named it

    @property
    def prepared(self) -> PreparedRequest:
        return self.template.prepared


class TorchServeApi:
    """TorchServe's inference API on a lane, and the other APIs that share its listener."""

    def __init__(self, state: ServerState, port: Port, apis: Sequence[str]) -> None:
        self._state = state
        self._port = port
        self._largest_body_nbytes = port.slab.largest_nbytes // SLAB_PARTS
        self._common: Headers = common_headers(state.torchserve)
        self._has_tokens = bool(state.torchserve.token_file)
        self._tokens = Tokens(state.torchserve.token_file)
        self.parse_head = HeadParser(router_of(apis)).parse
        # Changed by submit: templates by the bytes of their heads.
        self._templates = Memo[bytes, Template]("torchserve_template", _MAX_TEMPLATES)

    def find(self, _data: bytes, _last: object = None) -> None:
        """Implements `LaneApi.find`: None, since only heads are recognised (HeadParser), not whole requests."""

    def known_response(self, _asked: Prediction, _reply: Reply) -> None:
        """Implements `LaneApi.known_response`: None, since each response has an id of its own."""

    def is_for_road(self, head: Head) -> bool:
        found = head.found
        if self._has_tokens and not self._tokens.admits("inference", head.headers, datetime.now().astimezone()):
            return True  # the road answers with the refusal
        if self._state.api_keys is not None and not may_pass(self._state, head):
            return True
        if isinstance(found, Response):
            # The road can close without reading the body, and the client still gets the answer.
            return head.content_length > 0
        if not head.is_infer:
            return head.content_length > SMALL_BODY_BYTES
        if head.is_head or is_form(head.headers.get("content-type", "")):
            return True
        if head.content_length > min(self._largest_body_nbytes, self._state.torchserve.max_request_size):
            return True
        if found.query and PREDICTIONS[found.handler].fields_from_query:
            return True
        try:
            entry = look_up(self._state, found.name, found.version)
            return entry.is_decoupled or entry.signature.sequences is not None
        except NoWorkerError:
            return head.content_length > SMALL_BODY_BYTES
        except ShoalError:
            return True  # the road asks the supervisor whether the model has 0 workers

    def place(self, head: Head) -> Place:
        try:
            template = self._template(head)
        except ShoalError:  # the model has gone: the request is refused once its body has come
            return Place(BODY_OFFSET, 0)
        return Place(BODY_OFFSET, template.nbytes - BODY_OFFSET - head.content_length)

    def model_of(self, head: Head) -> int:
        try:
            return self._template(head).prepared.entry.model_id
        except ShoalError:
            return 0

    def submit(
        self, head: Head, body: memoryview, block: Block | None, _before: Head | None = None
    ) -> tuple[int, Prediction]:
        start_ns = time.monotonic_ns()
        found = head.found
        assert isinstance(found, RouteMatch), "a refusal is answered before its body is read"
        try:
            template = self._template(head)
            model = template.prepared.entry.model_id
            if block is None:
                block = self._port.allocate(template.nbytes, model)
                block.memory[BODY_OFFSET : BODY_OFFSET + len(body)] = body
            else:
                self._port.admit(model, block)
                if template.nbytes > len(block.memory):  # a reload meanwhile: the new header is longer
                    raise UnavailableError(f"model '{found.name}' was replaced while the request came. Send it again")
        except ShoalError:
            if block is not None:
                self._port.slab.free(block.ref)
            raise
        request_id = new_id()
        memory = block.memory
        memory[:BODY_OFFSET] = LENGTH.pack(len(body))
        header = template.header.replace(_PLACEHOLDER, request_id.encode())
        memory[template.header_offset : template.nbytes] = header
        number = submit_block(self._port, template.prepared, block, template.span, start_ns)
        return number, Prediction(template, request_id, found.version)

    def _template(self, head: Head) -> Template:
        """The template for predictions with this head. Raises ShoalError if no version can take them."""
        template = self._templates.entries.get(head.raw)
        if template is not None and template.num_changes == self._state.models.num_changes:
            return template
        found = head.found
        assert isinstance(found, RouteMatch), "a refusal is answered before its body is read"
        entry = look_up(self._state, found.name, found.version)
        asked = asked_for(PREDICTIONS[found.handler], head.path)
        content_type = head.headers.get("content-type", "")
        placeholder = _PLACEHOLDER.decode()
        described = description(asked, content_type, spelled_headers(head.raw), placeholder)
        prepared = prepare(entry, placeholder, described, _NO_DATA)
        ((name, datatype, shape, _),) = prepared.inputs
        nbytes = BODY_OFFSET + head.content_length
        header = prepared.pack_header([TensorRef(name, datatype.wire, shape, 0, nbytes)])
        offset = aligned(nbytes)
        template = Template(
            replace(prepared, id="", inputs=()),
            header,
            offset,
            offset + len(header),
            pack_span(offset, len(header)),
            self._state.models.num_changes,
        )
        if len(head.raw) <= MAX_KEPT_HEAD:
            self._templates.keep(head.raw, template)
        return template

    def rendered(self, connection: HttpConnection, asked: Prediction, reply: Reply) -> Chunks:
        """Implements `LaneApi.rendered`. Chunks after the first are views of the worker's block."""
        entry = asked.prepared.entry
        try:
            _, response, block = answer_in(entry, asked.id, reply)
            made = response_of(answered(response, block))
        except ShoalError as error:
            made = error_response(error, entry.name, asked.version)
        return [response_head(self._finish(connection, made, asked.id)), *made.chunks]

    def answer(self, connection: HttpConnection, head: Head, body: memoryview) -> Response:
        found = head.found
        if not isinstance(found, Response):
            found = answer(found, self._state, None, head.headers, body, refuse=error_response)
        return self._finish(connection, found, new_id())

    def refusal(self, connection: HttpConnection, error: ShoalError) -> Response:
        return self._finish(connection, error_response(error), new_id())

    def _finish(self, connection: HttpConnection, response: Response, request_id: str) -> Response:
        """The response with the header fields of every response; an error ends the connection."""
        status = response.status
        self._port.answered[status // 100] += 1
        if status >= 400:
            connection.keep_alive = False
        return with_common_headers(response, request_id, self._common)

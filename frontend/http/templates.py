"""Templates of infer requests and of their responses, kept by a lane for requests that differ in tensors, id and
parameters; and templates of JSON requests whose tensors all lie in regions of their client's shared memory. This module
has the values; submission.py makes and uses them."""

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from shoal.frontend.http.http_head import Head
from shoal.frontend.http.json_template import JsonTemplate
from shoal.frontend.http.known_request import MAX_ID_BYTES, CutOptions, RequestLayout
from shoal.frontend.prepared import PreparedRequest, RequestSettings
from shoal.frontend.regions import RegionInputs, RegionOutputs, inputs_in_regions, outputs_in_regions
from shoal.request import InferResponse, around_id, pack_id, pack_options, split_header
from shoal.star.models import ModelEntry

#: The member of a request's JSON that places a tensor in a region.
REGION_MEMBER = b'"shared_memory_region"'
_MAX_REGION_RESPONSES = 16  # of one template: each set of output sizes needs one


class RegionResponse(NamedTuple):
    """A response all of whose tensors lie in regions, kept for responses that differ in the tensors' bytes only."""

    json: bytes  # the response's JSON, without an id
    outputs: RegionOutputs


@dataclass(frozen=True, slots=True)
class RegionTemplate:
    """The kept result of parsing and validating a request whose input tensors all lie in regions (regions.py), for
    requests with the same JSON."""

    prepared: PreparedRequest  # the validated request, without its inputs
    inputs: RegionInputs
    header: bytes  # the packed InferRequest, without its cut-out options (known_request.py)
    layout: bytes  # the header up to its options
    around_id: tuple[bytes, bytes]  # the header, in front of the id and behind it
    responses: dict[bytes, RegionResponse]  # by the worker's packed InferResponse


def make_region_template(prepared: PreparedRequest) -> RegionTemplate | None:
    """The template of a request that has been prepared in full, without the options that were cut out; None if one of
    the request's inputs cannot be copied from a region unread (regions.py)."""
    inputs = inputs_in_regions(prepared)
    if inputs is None:
        return None
    header = prepared.pack_header(inputs.refs)
    layout, _ = split_header(header)
    return RegionTemplate(replace(prepared, inputs=()), inputs, header, layout, around_id(header), {})


def keep_region_response(template: RegionTemplate, packed: bytes, response: InferResponse, json: bytes) -> None:
    """Keep a response that was rendered in full as `json`, without an id, if all of its outputs are in regions."""
    outputs = outputs_in_regions(template.prepared, response)
    if outputs is not None and len(template.responses) < _MAX_REGION_RESPONSES:
        template.responses[packed] = RegionResponse(json, outputs)


#: The bytes in front of an id in a packed header, by the id's length.
_ID_HEADS: Final = tuple([pack_id(" " * nbytes)[: -nbytes or None] for nbytes in range(MAX_ID_BYTES + 1)])
_BINARY_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
    b"Content-Length: %d\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """An infer request without its tensors' bytes, kept for requests whose JSON is equal except for the cut-out options
    (known_request.py)."""

    prepared: PreparedRequest
    tail_offset: int  # where in the block the first tensor starts
    tail_end: int
    header_offset: int
    header: bytes  # the packed InferRequest, without its cut-out options
    layout: bytes  # the header up to its options
    around_id: tuple[bytes, bytes]  # the header, in front of the id and behind it
    nbytes: int  # bytes of the block that are in use, up to the header's end
    span: int
    response_heads: dict[bytes, "ResponseHead"]  # key: the worker's packed InferResponse


class VariedRequest:  # made for each request: not a NamedTuple, whose construction is not compiled
    """A request that differs from its template in its id or its settings."""

    __slots__ = ("id", "settings", "template")

    def __init__(
        self, template: RequestTemplate | JsonTemplate | RegionTemplate, id_: bytes, settings: RequestSettings | None
    ) -> None:
        self.template = template
        self.id = id_  # empty: the id is the template's
        self.settings = settings  # None: the settings are the template's

    @property
    def prepared(self) -> PreparedRequest:
        prepared = self.template.prepared
        if self.id:
            prepared = replace(prepared, id=self.id.decode())
        return prepared if self.settings is None else with_settings(prepared, self.settings)

    def header(self) -> bytes:
        template, id_, settings = self.template, self.id, self.settings
        if settings is not None:
            sequence = settings.correlation_id, settings.flags
            return template.layout + pack_options(id_.decode() or template.prepared.id, settings.parameters, sequence)
        in_front, behind = template.around_id
        return b"".join((in_front, _ID_HEADS[len(id_)], id_, behind))


def with_settings(prepared: PreparedRequest, settings: RequestSettings) -> PreparedRequest:
    """The request with other settings, except that it keeps its own `binary_data_output`."""
    return replace(
        prepared,
        parameters=settings.parameters,
        priority=settings.priority,
        timeout_us=settings.timeout_us,
        correlation_id=settings.correlation_id,
        flags=settings.flags,
    )


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """An infer request, kept for requests that differ from it in the parts that known_request.py names."""

    layout: RequestLayout
    head: Head  # of the kept request; later ones may differ in fields without a meaning for the server
    entry: ModelEntry
    template: RequestTemplate | None  # None: the body is JSON
    #: The number, when this request was kept, of changes of the models and of the models whose responses are
    #: compressed. After another change the model's name may mean another version, or the road may have to answer.
    num_changes: int


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A response's bytes up to its first tensor, without an id, kept for responses that differ in tensors and id only,
    and where the tensors lie in the worker's block."""

    head: bytes
    json: bytes  # at the end of the head
    spans: tuple[tuple[int, int], ...]
    end: int  # where in the worker's block the last tensor ends
    is_small: bool  # head and tensors are joined and sent as one chunk
    #: The head in front of an id and behind it, by the id's length. Changed by `with_id`.
    around_id: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def with_id(self, id_: bytes) -> tuple[bytes, bytes, bytes]:
        """The three parts of the head of a response with this id, of 1 to MAX_ID_BYTES bytes."""
        around = self.around_id.get(len(id_))
        if around is None:
            in_front, behind = b'{"id":"', b'",' + self.json[1:]
            nbytes = len(in_front) + len(id_) + len(behind)
            head = _BINARY_HEAD % (nbytes, nbytes + sum([end - start for start, end in self.spans]))
            around = self.around_id[len(id_)] = head + in_front, behind
        return around[0], id_, around[1]


def without(prepared: PreparedRequest, options: CutOptions) -> PreparedRequest:
    """The request without the options that were cut out of its JSON; the options have been found valid."""
    if options.parameters:
        prepared = with_settings(prepared, RequestSettings({}))
    return replace(prepared, id="") if options.id else prepared


#: The form in which a lane keeps a submitted request until its reply comes.
Submitted = PreparedRequest | RequestTemplate | JsonTemplate | RegionTemplate | VariedRequest


def prepared_of(submitted: Any) -> PreparedRequest:
    """The prepared request within the form in which a lane keeps a submitted request: a `Submitted`, or the form of
    TorchServe's API."""
    prepared: PreparedRequest = submitted if isinstance(submitted, PreparedRequest) else submitted.prepared
    return prepared

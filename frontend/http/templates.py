"""Templates of infer requests and of their responses, kept by a lane for requests that differ in tensors, id and
parameters. Values; submission.py makes and uses them."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shoal.frontend.http.http_head import Head
from shoal.frontend.http.json_template import JsonTemplate
from shoal.frontend.http.known_request import RequestLayout
from shoal.frontend.http.region_template import RegionTemplate
from shoal.frontend.http.request_options import MAX_ID_BYTES, CutOptions
from shoal.frontend.prepared import PreparedRequest, RequestSettings
from shoal.request import pack_id, pack_options
from shoal.star.models import ModelEntry

#: The bytes in front of an id in a packed header, by the id's length.
_ID_HEADS = tuple([pack_id(" " * nbytes)[: -nbytes or None] for nbytes in range(MAX_ID_BYTES + 1)])
_BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
    b"Content-Length: %d\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """An infer request without its tensors' bytes, kept for requests whose JSON is the same but for its cut-out options
    (request_options.py)."""

    prepared: PreparedRequest
    tail_offset: int  # where in the block the first tensor starts
    tail_end: int
    header_offset: int
    header: bytes  # the packed InferRequest, without its cut-out options
    layout: bytes  # the first part of the header
    around_id: tuple[bytes, bytes]  # the header, in front of the id and behind it
    nbytes: int  # of the block, up to the header's end
    span: int
    response_heads: dict[bytes, "ResponseHead"]  # key: the worker's packed InferResponse


class VariedRequest(NamedTuple):
    """A request with an id and settings of its own, and the template that it has without them."""

    template: RequestTemplate | JsonTemplate | RegionTemplate
    id: bytes  # empty: that of the template
    settings: RequestSettings | None  # None: those of the template

    @property
    def prepared(self) -> PreparedRequest:
        prepared = self.template.prepared
        if self.id:
            prepared = replace(prepared, id=self.id.decode())
        return prepared if self.settings is None else with_settings(prepared, self.settings)

    def header(self) -> bytes:
        template, id_, settings = self
        if settings is not None:
            sequence = settings.correlation_id, settings.flags
            return template.layout + pack_options(id_.decode() or template.prepared.id, settings.parameters, sequence)
        in_front, behind = template.around_id
        return b"".join((in_front, _ID_HEADS[len(id_)], id_, behind))


def with_settings(prepared: PreparedRequest, settings: RequestSettings) -> PreparedRequest:
    """The request with other settings, of which `binary_data_output` is the same."""
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
    """An infer request, kept for requests that differ as known_request.py says."""

    layout: RequestLayout
    head: Head  # of the request that was kept: the next one's may have other values in fields without a meaning
    entry: ModelEntry
    template: RequestTemplate | None  # None: the body is JSON
    #: The models' changes, and the changes of how responses are sent, when this was kept: after another change the name
    #: may mean another version, or none.
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
    """The request without the options that were cut out, all of them valid."""
    if options.parameters:
        prepared = with_settings(prepared, RequestSettings({}))
    return replace(prepared, id="") if options.id else prepared

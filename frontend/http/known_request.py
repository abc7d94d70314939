"""Recognition of an infer request that has the bytes of an earlier one of its size, except for its tensors, its id, its
parameters, and header fields that mean nothing to the server, as those of traces. Pure.

A request is cut into parts. Those with the earlier request's bytes and those that may differ alternate:

    text        request line and header fields, up to the value of a field that differs
    value       and so on, for each such field
    text        up to the value of the id or the parameters in the JSON, where they are plain
    value       and so on
    text        up to the end of the JSON; of a body that is all JSON, to the end of the head
    body        the rest: the tensors, or all of the JSON
"""

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

from shoal.frontend.http.http_head import MEANINGFUL_FIELDS, VALUE_BYTES, Head
from shoal.frontend.http.request_options import ID_BYTES, NO_SPAN, CutOptions, Span

#: Head and JSON of a request are known as one where they are at most this long.
MAX_PREFIX = 4096


class RequestLayout:
    """The bytes that requests of one size have in common, and where the others stand."""

    __slots__ = (
        "has_options", "head", "head_texts", "id_at", "nbytes", "num_fields", "parameters_at", "texts", "unpack",
    )  # fmt: skip

    def __init__(
        self, layout: Struct, texts: tuple[bytes, ...], num_fields: int, id_at: int, parameters_at: int,
        head: Struct, head_texts: tuple[bytes, ...],
    ) -> None:  # fmt: skip
        self.nbytes = layout.size
        self.unpack = layout.unpack
        self.texts = texts
        #: So many of the differing parts are values of header fields, the first ones.
        self.num_fields = num_fields
        #: Which differing part is the id, and which are the parameters; -1: none.
        self.id_at = id_at
        self.parameters_at = parameters_at
        self.has_options = id_at >= 0 or parameters_at >= 0
        self.head = head  # the layout of the head alone
        self.head_texts = head_texts

    def read(self, request: bytes) -> Sequence[bytes] | None:
        """The differing parts of a request of `nbytes`, the body last; None for any other request."""
        pieces: tuple[bytes, ...] = self.unpack(request)
        if len(pieces) == 2:  # only the body differs: half the instructions
            return pieces if pieces[0] == self.texts[0] else None
        if pieces[::2] != self.texts:
            return None
        values = pieces[1::2]
        # Letters, digits and dashes, of which most ids and traces consist, are checked at a third of the price.
        if self.num_fields:
            for value in values[: self.num_fields]:
                if not value.replace(b"-", b"").isalnum() and value.translate(None, VALUE_BYTES):
                    return None
        if self.id_at >= 0:
            id_ = values[self.id_at]
            if not id_.replace(b"-", b"").isalnum() and id_.translate(None, ID_BYTES):
                return None
        return values

    def is_head(self, data: bytes) -> bool:
        """Whether these bytes are the head of such a request, whose body is still to come."""
        return len(data) == self.head.size and self.head.unpack(data)[::2] == self.head_texts


def learn(head: Head, before: Head, json: bytes, options: CutOptions | None, nbytes: int) -> RequestLayout | None:
    """The layout of requests like one of `nbytes` bytes with this head; `before` is the head of an earlier one, and
    shows which fields differ. None for a request that is too long, or whose head differs in more than such fields'
    values.

    `json` is the part of the body in front of the tensors, with the spans of its id and parameters in `options`; for a
    body that is all JSON, `json` is empty and `options` None or empty.
    """
    fields = differing_fields(head.raw, before.raw)
    if fields is None or len(head.raw) + len(json) > MAX_PREFIX:
        return None
    end = len(head.raw)
    id_span, parameters_span = (NO_SPAN, NO_SPAN) if options is None else (options.id_span, options.parameters_span)
    in_json = sorted([(end + start, end + stop) for start, stop in (id_span, parameters_span) if stop])
    spans = [*fields, *in_json]
    edges = [0, *[edge for span in spans for edge in span], end + len(json), nbytes]
    layout, head_layout = _layout(edges), _layout([*edges[: 2 * len(fields) + 1], end])
    first_at = len(fields)
    id_at = first_at + int(id_span > parameters_span > NO_SPAN) if id_span[1] else -1
    parameters_at = first_at + int(parameters_span > id_span > NO_SPAN) if parameters_span[1] else -1
    return RequestLayout(
        layout, layout.unpack(head.raw + json + bytes(nbytes - end - len(json)))[::2], first_at, id_at, parameters_at,
        head_layout, head_layout.unpack(head.raw)[::2],
    )  # fmt: skip


def _layout(edges: Sequence[int]) -> Struct:
    return Struct("=" + "".join([f"{end - start}s" for start, end in pairwise(edges)]))


def differing_fields(head: bytes, before: bytes) -> list[Span] | None:
    """The spans of the field values in which a head differs from an earlier one; None where it differs in anything
    else, or in a field that means something to the server."""
    if head == before:
        return []
    lines, others = head.split(b"\r\n"), before.split(b"\r\n")
    if len(lines) != len(others) or lines[0] != others[0]:
        return None
    spans, start = [], 0
    for line, other in zip(lines, others, strict=True):
        end = start + len(line)
        if line != other:
            name, _, value = line.partition(b":")
            if not value or name != other.partition(b":")[0] or name.lower().decode("ascii") in MEANINGFUL_FIELDS:
                return None
            begin = start + len(name) + 1
            if value.startswith(b" ") and other[len(name) + 1 :].startswith(b" "):
                begin += 1  # so that most values are a single word
            spans.append((begin, end))
        start = end + 2
    return spans

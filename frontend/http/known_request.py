"""Recognition of an infer request that has the bytes of an earlier one of its size, except for its tensors, its id, its
parameters, and header fields without a meaning for the server, such as a trace's. Pure.

A request is cut into parts. Parts that must have the earlier request's bytes (text) alternate with parts that may
differ:

    text        request line and header fields, up to the value of a field that differs
    value       the field's value; so on for each such field
    text        up to the value of the id or the parameters in the JSON, where they are plain
    value       that value; so on for the other of the two
    text        up to the end of the JSON; of a body that is all JSON, to the end of the head
    body        the rest: the tensors, or all of the JSON
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

import orjson

from shoal.frontend.http.http_head import MEANINGFUL_FIELDS, VALUE_BYTES, Head

#: The member `"id":"7"`, with any white space that JSON allows, but with no character in the id that JSON or HTTP would
#: escape.
_ID = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*"([ !#-\[\]-~]{1,128})"')
MAX_ID_BYTES = 128
#: The member `"parameters"`, an object without objects in it. An object longer than this pattern allows is not cut out
#: (ours).
_PARAMETERS = re.compile(rb'"parameters"[ \t\n\r]*:[ \t\n\r]*(\{[^{}\\]{1,510}\})')
#: All bytes that an id may have.
ID_BYTES: Final = bytes([byte for byte in range(0x20, 0x7F) if byte not in b'"\\'])

#: The ids and parameters that `is_right` puts in place of a request's own: each as a value and as its text in JSON.
_IDS: list[tuple[Any, bytes]] = [("x", b"x"), ("y", b"y"), ("z", b"z")]
_SETS_OF_PARAMETERS: list[tuple[Any, bytes]] = [({"x": number}, b'{"x":%d}' % number) for number in range(3)]

Span = tuple[int, int]
NO_SPAN: Span = (0, 0)


class CutOptions(NamedTuple):
    """A request's JSON, taken apart: clients send the same JSON again with another id (which counts requests) and other
    parameters (which name sequences). `rest` is the JSON in pieces, between which the values that were cut out
    stood."""

    rest: tuple[bytes, ...]
    id: bytes  # without its quotes, 1 to MAX_ID_BYTES of ASCII; empty where no id was cut out
    parameters: bytes  # the text of a JSON object; empty where it was not cut out
    id_span: Span  # the place of the value in the JSON; NO_SPAN if it was not cut out
    parameters_span: Span


def cut(json: bytes) -> CutOptions:
    """The JSON without the values of its members `id` and `parameters`, where these are plain, and the two values.

    Members of these names that belong to an input or output may be cut out by mistake: `is_right` finds that out, once
    for all JSON with an equal `rest`.
    """
    parameters_span = _span_of_parameters(json) if b'"parameters"' in json else NO_SPAN
    id_span = _span_of_id(json, parameters_span) if b'"id"' in json else NO_SPAN
    rest: list[bytes] = []
    position = 0
    for start, end in sorted((id_span, parameters_span)):
        if end:
            rest.append(json[position:start])
            position = end
    rest.append(json[position:])
    id_ = json[id_span[0] : id_span[1]]
    parameters = json[parameters_span[0] : parameters_span[1]]
    return CutOptions(tuple(rest), id_, parameters, id_span, parameters_span)


def _span_of_parameters(json: bytes) -> Span:
    """The span of the "parameters" that stand in front of or behind all lists: parameters of inputs and outputs stand
    within a list."""
    found = _PARAMETERS.search(json, json.rfind(b"]") + 1) or _PARAMETERS.search(json, 0, max(json.find(b"["), 0))
    return NO_SPAN if found is None else found.span(1)


def _span_of_id(json: bytes, parameters: Span) -> Span:
    found = _ID.search(json)
    if found is not None and parameters[0] < found.start() < parameters[1]:  # what was found is a parameter named "id"
        found = _ID.search(json, parameters[1])
    return NO_SPAN if found is None else found.span(1)


def is_id(text: bytes) -> bool:
    """Whether `cut` would cut out this text between quotes as an id."""
    return 0 < len(text) <= MAX_ID_BYTES and not text.translate(None, ID_BYTES)


def is_right(json: bytes, found: CutOptions) -> bool:
    """Whether the values that `cut` has removed are the request's id and parameters, in this JSON and in any with an
    equal `rest`.

    Another id and other parameters are substituted, and the JSON is parsed: its id and parameters must then be the
    substitutes, and everything else must be as before.
    """
    if len(found.rest) == 1:
        return True
    try:
        expected, probed = orjson.loads(json), json
        spans = [(found.id_span, "id", _IDS), (found.parameters_span, "parameters", _SETS_OF_PARAMETERS)]
        for (start, end), name, texts in sorted(spans, reverse=True):
            if end:
                # At least one of the three substitutes differs both from the text that it replaces and from the parsed
                # member.
                said = expected.get(name)
                value, text = next(each for each in texts if each[0] != said and each[1] != json[start:end])
                expected[name] = value
                probed = probed[:start] + text + probed[end:]
        return bool(orjson.loads(probed) == expected)
    except orjson.JSONDecodeError:
        return False


#: Most bytes of head and JSON together of a request that is kept (ours).
MAX_PREFIX = 4096


class RequestLayout:
    """The texts that requests of one size have in common, and the places of the differing parts between them."""

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
        #: The number of differing parts that are values of header fields; they come first.
        self.num_fields = num_fields
        #: The place of the id among the differing parts, and that of the parameters; -1: none.
        self.id_at = id_at
        self.parameters_at = parameters_at
        self.has_options = id_at >= 0 or parameters_at >= 0
        self.head = head  # the struct of the head alone
        self.head_texts = head_texts

    def read(self, request: bytes) -> Sequence[bytes] | None:
        """The differing parts of a request of `nbytes`, the body last; None for any other request."""
        pieces: tuple[bytes, ...] = self.unpack(request)
        if len(pieces) == 2:  # only the body differs: this branch takes half the instructions
            return pieces if pieces[0] == self.texts[0] else None
        if pieces[::2] != self.texts:
            return None
        values = pieces[1::2]
        # Most ids and traces consist of letters, digits and dashes, for which `isalnum` is a check at a third of the
        # time.
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
        """Whether these bytes are the whole head of a request of this layout, without any of its body."""
        return len(data) == self.head.size and self.head.unpack(data)[::2] == self.head_texts


def learn(head: Head, before: Head, json: bytes, options: CutOptions | None, nbytes: int) -> RequestLayout | None:
    """The layout of requests of `nbytes` bytes with a head like this; `before` is the head of an earlier request, and
    shows which fields differ. None for a request that is too long, or whose head differs in more than values of fields
    without a meaning.

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
    """The spans of the field values in which a head differs from an earlier one; None if it differs in anything else,
    or in a field with a meaning for the server."""
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
                begin += 1  # behind the blank, so that `isalnum` suffices for most values in `read`
            spans.append((begin, end))
        start = end + 2
    return spans

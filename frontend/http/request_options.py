"""The id and the parameters in a request's JSON. Clients count requests and sequences with them, and send the rest
again as it was. Pure."""

import re
from typing import Any, NamedTuple

import orjson

#: The member `"id":"7"`, with any white space that JSON allows, and with no character that JSON or HTTP would escape.
_ID = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*"([ !#-\[\]-~]{1,128})"')
MAX_ID_BYTES = 128
#: The member `"parameters"`, an object without objects in it; a longer one stays in `rest` (ours).
_PARAMETERS = re.compile(rb'"parameters"[ \t\n\r]*:[ \t\n\r]*(\{[^{}\\]{1,510}\})')
#: All bytes that an id may have.
ID_BYTES = bytes([byte for byte in range(0x20, 0x7F) if byte not in b'"\\'])

#: The ids and parameters that `is_right` substitutes for those of a request: values, and their texts.
_IDS: list[tuple[Any, bytes]] = [("x", b"x"), ("y", b"y"), ("z", b"z")]
_SETS_OF_PARAMETERS: list[tuple[Any, bytes]] = [({"x": number}, b'{"x":%d}' % number) for number in range(3)]

Span = tuple[int, int]
NO_SPAN: Span = (0, 0)


class CutOptions(NamedTuple):
    """A request's JSON, taken apart. `rest` is the JSON without the values that were cut out, one piece more than there
    are such values."""

    rest: tuple[bytes, ...]
    id: bytes  # without its quotes, 1 to MAX_ID_BYTES of ASCII; empty where no id was cut out
    parameters: bytes  # the text of a JSON object; empty where it was not cut out
    id_span: Span  # the place of the value in the JSON; NO_SPAN if it was not cut out
    parameters_span: Span


def cut(json: bytes) -> CutOptions:
    """The JSON without the values of its members `id` and `parameters`, where these are plain, and the two values.

    Members of these names that are not the request's own may be cut out: `is_right` tells, for all JSON with an equal
    `rest`.
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
    return CutOptions(tuple(rest), json[slice(*id_span)], json[slice(*parameters_span)], id_span, parameters_span)


def _span_of_parameters(json: bytes) -> Span:
    """The span of parameters that stand behind all lists or in front of them, not in one, as those of inputs do."""
    found = _PARAMETERS.search(json, json.rfind(b"]") + 1) or _PARAMETERS.search(json, 0, max(json.find(b"["), 0))
    return NO_SPAN if found is None else found.span(1)


def _span_of_id(json: bytes, parameters: Span) -> Span:
    found = _ID.search(json)
    if found is not None and parameters[0] < found.start() < parameters[1]:  # a parameter of that name
        found = _ID.search(json, parameters[1])
    return NO_SPAN if found is None else found.span(1)


def is_id(text: bytes) -> bool:
    """Whether `cut` would cut out this text between quotes as an id."""
    return 0 < len(text) <= MAX_ID_BYTES and not text.translate(None, ID_BYTES)


def is_right(json: bytes, found: CutOptions) -> bool:
    """Whether the values that `cut` has removed are the request's id and parameters, in this JSON and in any with an
    equal `rest`.

    Another id and other parameters are substituted, and the JSON is parsed: it must then have exactly these as its id
    and parameters, and all else as before.
    """
    if len(found.rest) == 1:
        return True
    try:
        expected, probed = orjson.loads(json), json
        spans = [(found.id_span, "id", _IDS), (found.parameters_span, "parameters", _SETS_OF_PARAMETERS)]
        for (start, end), name, texts in sorted(spans, reverse=True):
            if end:
                # One of the three differs both from the text that is replaced and from the member as it is parsed.
                said = expected.get(name)
                value, text = next(each for each in texts if each[0] != said and each[1] != json[start:end])
                expected[name] = value
                probed = probed[:start] + text + probed[end:]
        return bool(orjson.loads(probed) == expected)
    except orjson.JSONDecodeError:
        return False

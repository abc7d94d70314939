"""The id and the parameters in a request's JSON. Clients count requests and sequences with them, and send the rest
again as it was. Pure."""

import re
from typing import Any, NamedTuple

import orjson

#: As `"id":"7"`, with whatever white space JSON allows, and no character in it that JSON or HTTP would write otherwise.
_ID = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*"([ !#-\[\]-~]{1,128})"')
MAX_ID_BYTES = 128
#: An object without objects in it; longer ones are read with the rest of the JSON each time (ours).
_PARAMETERS = re.compile(rb'"parameters"[ \t\n\r]*:[ \t\n\r]*(\{[^{}\\]{1,510}\})')
#: All bytes that an id may have.
ID_BYTES = bytes([byte for byte in range(0x20, 0x7F) if byte not in b'"\\'])

#: What `is_right` puts in the places of an id and of parameters: values, and their texts.
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
    id_span: Span  # where in the JSON they stood; NO_SPAN: nowhere
    parameters_span: Span


def cut(json: bytes) -> CutOptions:
    """The JSON, taken apart at the value of a member `id` and at the parameters of the request, as far as both are
    plain.

    What is cut out may be something else of that name: `is_right` says so, for all JSON with the same `rest`.
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


def is_right(json: bytes, found: CutOptions) -> bool:
    """Whether what `cut` cut out are the id and the parameters of the request, in this JSON and in any with the same
    `rest`.

    Others, which the JSON does not have, are put in their places: then the JSON must say those, and everything else as
    before.
    """
    if len(found.rest) == 1:
        return True
    try:
        expected, probed = orjson.loads(json), json
        spans = [(found.id_span, "id", _IDS), (found.parameters_span, "parameters", _SETS_OF_PARAMETERS)]
        for (start, end), name, texts in sorted(spans, reverse=True):
            if end:
                # One of three is neither there now nor what the JSON says now.
                said = expected.get(name)
                value, text = next(each for each in texts if each[0] != said and each[1] != json[start:end])
                expected[name] = value
                probed = probed[:start] + text + probed[end:]
        return bool(orjson.loads(probed) == expected)
    except orjson.JSONDecodeError:
        return False

"""The id in a request's JSON. Clients count their requests with ids, and send the rest again as it was. Pure."""

import re

#: As `"id":"7"`, with whatever white space JSON allows, and no character in it that JSON or HTTP would write otherwise.
_ID = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*("[ !#-\[\]-~]{1,128}")')
MAX_ID_BYTES = 128


def cut_id(json: bytes) -> tuple[bytes, bytes]:
    """The JSON without the value of its first member `id`, and that value, at most MAX_ID_BYTES of ASCII.

    JSON that has none, or an unusual one, is returned as it is, with b"". What is returned with an id is not JSON any
    more. A client may send the same bytes, without an id; they must be refused, so keys must tell the two apart.
    """
    found = _ID.search(json) if b'"id"' in json else None
    if found is None:
        return json, b""
    start, end = found.span(1)
    return json[:start] + json[end:], json[start + 1 : end - 1]


def is_only_id(json: bytes, cut: bytes, id_: str) -> bool:
    """Whether what `cut_id` cut out of `json` is the request's id, which parsing it found to be `id_`, in this JSON and
    in any that equals it otherwise.

    A member of that name may stand in the parameters, too, or be spelled with escapes.
    """
    return not cut or (cut.decode() == id_ and json.count(b'"id"') == 1 and b"\\" not in json)

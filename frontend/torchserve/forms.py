"""The fields of forms: multipart/form-data, read by werkzeug's parser, and application/x-www-form-urlencoded. Runs on
the road; the whole body has come.

A part with a file name has a content type, by which the handler decodes its value; a plain field has none. If several
fields have one name, the last counts.
"""

from collections.abc import Iterator
from urllib.parse import parse_qsl

from shoal.frontend.torchserve.errors import RefusedError, refused
from shoal.frontend.torchserve.predictions import Field

_MULTIPART, _URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
#: The most fields of one form (ours; each costs the handler an entry of a dict).
MAX_FIELDS = 1000
#: The most bytes of a field's name (ours; names are sent to the worker in the request's header).
MAX_NAME_BYTES = 1024
#: The content type of a file whose part names none.
_FILE = "application/octet-stream"


def is_form(content_type: str) -> bool:
    """Whether a body of this content type consists of fields."""
    return _media_type(content_type) in (_MULTIPART, _URLENCODED)


def form_fields(content_type: str, body: memoryview) -> list[Field]:
    """The fields in a body. Raises ShoalError for a malformed form."""
    if _media_type(content_type) == _URLENCODED:
        try:
            pairs = parse_qsl(bytes(body).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise _too_many() from None
        fields: list[Field] = [(name, "", value.encode()) for name, value in pairs]
    else:
        fields = list(_multipart(content_type, bytes(body)))
    for name, _, _ in fields:
        if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            raise refused(400, "BadRequestException", f"the form has a field's name of over {MAX_NAME_BYTES} bytes")
    return list({field[0]: field for field in fields}.values())


def _multipart(content_type: str, body: bytes) -> Iterator[Field]:
    from werkzeug.exceptions import RequestEntityTooLarge
    from werkzeug.http import parse_options_header
    from werkzeug.sansio.multipart import Data, Epilogue, MultipartDecoder, NeedData
    from werkzeug.sansio.multipart import Field as PlainPart
    from werkzeug.sansio.multipart import File as FilePart

    boundary = parse_options_header(content_type)[1].get("boundary", "")
    if not boundary:
        raise _malformed("its Content-Type names no boundary")
    decoder = MultipartDecoder(boundary.encode("latin-1", "replace"), max_parts=MAX_FIELDS)
    name, kind = "", ""
    pieces: list[bytes] = []
    try:
        decoder.receive_data(body)
        decoder.receive_data(None)
        while not isinstance(event := decoder.next_event(), (Epilogue, NeedData)):
            if isinstance(event, (PlainPart, FilePart)):
                if not event.name:
                    raise _malformed("a part has no name; its Content-Disposition must have one")
                name, pieces = event.name, []
                kind = (event.headers.get("content-type") or _FILE) if isinstance(event, FilePart) else ""
            elif isinstance(event, Data):
                pieces.append(event.data)
                if not event.more_data:
                    yield name, kind, b"".join(pieces)
    except ValueError as error:
        raise _malformed("a part is malformed, or its end is missing") from error
    except RequestEntityTooLarge:
        raise _too_many() from None


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _malformed(why: str) -> RefusedError:
    return refused(400, "BadRequestException", f"the multipart body cannot be read: {why}")


def _too_many() -> RefusedError:
    return refused(400, "BadRequestException", f"the form has more than {MAX_FIELDS} fields")

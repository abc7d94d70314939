"""Parameters of TorchServe's requests, read as TorchServe reads them: a malformed number counts as absent, and only
`true` is true. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import orjson

from shoal.frontend.call import HandlerCall
from shoal.frontend.torchserve.errors import refused

#: The most entries of a page of a list, and the number of entries where a request names none.
_PAGE = 100
T = TypeVar("T")
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


def integer(text: str, default: int) -> int:
    """The number that a text is; `default` if it is none."""
    return int(text) if _INTEGER.fullmatch(text) else default


def boolean(text: str) -> bool:
    """Whether a text says `true`, in any case."""
    return text.lower() == "true"


def request_parameters(call: HandlerCall) -> Mapping[str, str]:
    """The parameters of a registration as texts: of the query or, with a body of JSON, of the body alone. Raises
    ShoalError for a JSON body that is no object."""
    if call.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return dict(parse_qsl(call.query, keep_blank_values=True))
    try:
        members = orjson.loads(call.body)
        return {
            name: value if isinstance(value, str) else orjson.dumps(value).decode() for name, value in members.items()
        }
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise refused(400, "BadRequestException", "The body must be a JSON object of the parameters.") from error


def page_of(entries: Sequence[T], query: Mapping[str, str]) -> tuple[Sequence[T], dict[str, Any]]:
    """The entries of the page of a list that a query asks for, and the member that names the next page. The member is
    there whenever the page is full, as in TorchServe, even if the next page is empty."""
    limit, offset = integer(query.get("limit", ""), _PAGE), integer(query.get("next_page_token", ""), 0)
    if not 0 <= limit <= _PAGE:
        limit = _PAGE
    offset = max(0, offset)
    token = {"nextPageToken": str(offset + limit)} if offset + limit <= len(entries) else {}
    return entries[offset : offset + limit], token

"""The files of the page, as they are sent: a table by name, all read once, with the headers that keep a page safe.

The file that a request names is looked up in the table; no path of a client is opened. The page loads nothing from
elsewhere and runs no inline script: the Content-Security-Policy makes the browser refuse both, and text that is
assigned as HTML, too.
"""

from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from shoal.frontend.call import Handler, HandlerCall, blocking
from shoal.frontend.response import Headers, Response, error_json, not_allowed

_FOLDER = Path(__file__).parent / "static"
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
#: `connect-src` lets the page send requests to this server, `blob:` lets it show images and sounds in a model's answer
#: or in a file that the user has chosen.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
#: Header fields of all responses to the page but errors. Its files have an ETag, too, by which a browser asks each time
#: whether a file has changed, so the page never mixes files of two versions of the server.
SAFE: Headers = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
NOT_FOUND = error_json(404, "Not Found")
_OTHER_METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class PageFile(NamedTuple):
    """A file of the page."""

    headers: Headers
    content: bytes
    etag: str


@cache
def files() -> dict[str, PageFile]:
    """The files of the page by name; read at the first request for any of them."""
    return {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _CONTENT_TYPES}


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    etag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
    kind = ("Content-Type", _CONTENT_TYPES[path.suffix])
    return PageFile((kind, ("Cache-Control", "no-cache"), ("ETag", etag), *SAFE), content, etag)


def page_methods(handler: Handler) -> dict[str, Handler]:
    """The methods of a path of the page. With --ui=false each of HTTP's usual methods gets 404, as in Triton.

    The road answers all methods, at a low priority: a lane hands their requests over.
    """

    def get(call: HandlerCall) -> Response:
        return handler(call) if call.state.has_page else NOT_FOUND

    return {"GET": blocking(get), **dict.fromkeys(_OTHER_METHODS, blocking(_refuse_method))}


def index_page(call: HandlerCall) -> Response:
    """The page's HTML, which the page's modules fill."""
    return _sent(files()[INDEX], call)


def file(call: HandlerCall) -> Response:
    """The file that a path names."""
    found = files().get(call.name)
    return NOT_FOUND if found is None else _sent(found, call)


def _sent(found: PageFile, call: HandlerCall) -> Response:
    if call.headers.get("if-none-match") == found.etag:
        return Response(304, found.headers)
    return Response(200, found.headers, (found.content,))


def _refuse_method(call: HandlerCall) -> Response:
    return not_allowed(("GET",)) if call.state.has_page else NOT_FOUND

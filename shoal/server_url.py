"""The URL of a server, as people give it to commands and to `shoal.Client`, and what is wrong with one. Pure.

A URL's user and password are not sent to the server.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from shoal.passwords import shown_url


class ServerUrl(NamedTuple):
    """The parts of a server's URL."""

    scheme: str
    host: str
    port: int | None  # None: the scheme's default
    netloc: str  # host and port, as they are written, without a user
    path: str


def split_url(url: str, schemes: Sequence[str], given: str) -> ServerUrl:
    """The parts of a server's URL of one of these schemes. Raises ValueError, with a sentence about the text that was
    `given` for the URL, for one that names no server."""
    forms = [f"{scheme}://host:port" for scheme in schemes]
    form = " or ".join([", ".join(forms[:-1]), forms[-1]])

    def refused(what: str) -> ValueError:
        return ValueError(f"'{shown_url(given)}' {what}: a server's URL is {form}")

    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address
        raise refused("names no host") from None
    if parts.scheme not in schemes:
        raise refused(f"begins with {parts.scheme}://")
    if not parts.hostname:
        raise refused("names no host")
    if re.search(r"[\0-\x20\x7f]", parts.netloc):  # http.client refuses these
        raise refused("names a host that cannot be one")
    try:
        parts.hostname.encode("idna")  # as Python encodes a name before it looks it up
    except UnicodeError:
        raise refused("names a host that cannot be one") from None
    try:
        port = parts.port
    except ValueError:  # no number, or too large
        port = 0
    if port == 0:
        raise refused("has a port that is no number from 1 to 65535")
    return ServerUrl(parts.scheme, parts.hostname, port, parts.netloc.rpartition("@")[2], parts.path)

"""Two parts of a request that come from its HTTP headers, or gRPC metadata, and not from its body: the headers that are
recorded (`--record-config headers=…`), and the sticky key, by which the version is chosen while requests that name none
are split between two; and the version that has answered those. Pure; front-end processes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.frontend.prepared import PreparedRequest
from shoal.request import RecordedHeaders


def with_sticky_key(prepared: PreparedRequest, headers: Mapping[str, str]) -> PreparedRequest:
    """The request with the key by which its version is chosen, where requests that name none are split by a header.
    One without the header goes where its number or its correlation id leads. `headers` have names in lower case."""
    value = headers.get(prepared.entry.sticky_header)
    if not value:
        return prepared
    said = f"{prepared.entry.name}\0{value}".encode("utf-8", "surrogatepass")
    hashed = hashlib.blake2b(said, digest_size=4).digest()
    return replace(prepared, sticky_key=int.from_bytes(hashed, "little") or 1)


def as_answered(prepared: PreparedRequest, version: int) -> PreparedRequest:
    """The request as one to the version that has answered it: `version`, or its own if that is 0."""
    return replace(prepared, entry=replace(prepared.entry, version=version)) if version else prepared


def recorded_headers(names: Sequence[str], headers: Mapping[str, str]) -> RecordedHeaders:
    """The headers with these names that a request has; all names are in lower case."""
    return tuple([(name, _encodable(headers[name])) for name in names if name in headers])


def with_headers(prepared: PreparedRequest, names: Sequence[str], headers: Mapping[str, str]) -> PreparedRequest:
    """The request with those of its headers that are recorded, and with its sticky key."""
    found = recorded_headers(names, headers) if names else ()
    return with_sticky_key(replace(prepared, headers=found) if found else prepared, headers)


def _encodable(value: str) -> str:
    """The value without half pairs of surrogates, which are no UTF-8."""
    return value.encode("utf-8", "replace").decode()

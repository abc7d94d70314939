"""Requests that name no version, while these are split between two: the key by which the version is chosen, and the
version that has answered. Pure. Front-end processes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from shoal.frontend.prepared import PreparedRequest


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

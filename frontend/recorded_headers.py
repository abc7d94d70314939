"""The parts of a request that come from its HTTP headers or gRPC metadata: the headers that are recorded
(`--record-config headers=…`), and the sticky key, which chooses the version while a rollout splits a model's requests
between two versions; and the version in the response to such a request. Pure; front-end processes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.frontend.prepared import PreparedRequest
from shoal.request import RecordedHeaders


def with_sticky_key(prepared: PreparedRequest, headers: Mapping[str, str]) -> PreparedRequest:
    """The request with its sticky key, the hash of a header's value, if a rollout splits the model's requests by that
    header. For a request without the header the batcher chooses by the request's number or correlation id. `headers`
    have names in lower case."""
    value = headers.get(prepared.entry.sticky_header)
    if not value:
        return prepared
    said = f"{prepared.entry.name}\0{value}".encode("utf-8", "surrogatepass")
    hashed = hashlib.blake2b(said, digest_size=4).digest()
    return replace(prepared, sticky_key=int.from_bytes(hashed, "little") or 1)


def as_answered(prepared: PreparedRequest, version: int) -> PreparedRequest:
    """The request as if it had named the version that has answered it: `version`; unchanged if `version` is 0."""
    return replace(prepared, entry=replace(prepared.entry, version=version)) if version else prepared


def recorded_headers(names: Sequence[str], headers: Mapping[str, str]) -> RecordedHeaders:
    """The headers with these names that a request has; all names are in lower case."""
    return tuple([(name, _encodable(headers[name])) for name in names if name in headers])


def with_headers(prepared: PreparedRequest, names: Sequence[str], headers: Mapping[str, str]) -> PreparedRequest:
    """The request with its headers of these names, which are recorded, and with its sticky key."""
    found = recorded_headers(names, headers) if names else ()
    return with_sticky_key(replace(prepared, headers=found) if found else prepared, headers)


def _encodable(value: str) -> str:
    """The value with "?" in place of lone surrogates, which UTF-8 lacks."""
    return value.encode("utf-8", "replace").decode()

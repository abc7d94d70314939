"""Header forwarding: request headers whose names match a pattern become request parameters. Pure; front-end processes.

The model sees a name as the client spelled it, so names are read from the raw head: in parsed heads names have lower
case (lanes) or capitals (WSGI).
"""

import re
from base64 import b64decode
from collections.abc import Mapping

from shoal.errors import InvalidArgumentError

#: Names of parameters with a meaning for the server, which no header may set: Triton's, and `deterministic`.
RESERVED = frozenset(
    {
        "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output",
        "deterministic",
    }
)  # fmt: skip

#: Keys of metadata that no gRPC server passes to its handlers.
_OF_GRPC = re.compile(r":|grpc-|(?:te|content-type)$")

#: Fields by their names as the client spelled them; values of one name are joined by a comma.
Forwarded = Mapping[str, str]
NOTHING: Forwarded = {}


def forwarded(pattern: str, head: bytes) -> Forwarded:
    """The fields of `head`, a request up to its empty line or further, whose names contain a match of the pattern.

    Case does not matter. An empty pattern matches no field.
    """
    if not pattern:
        return NOTHING
    found: dict[str, str] = {}
    lines = head.lstrip(b"\r\n").partition(b"\r\n\r\n")[0].split(b"\r\n")
    for line in lines[1:]:
        field, _, rest = line.decode("utf-8", "replace").partition(":")
        if re.search(pattern, field, re.IGNORECASE):  # `re` caches compiled patterns
            value = rest.strip(" \t")
            found[field] = f"{found[field]},{value}" if field in found else value
    return found


def forwarded_metadata(pattern: str, metadata: Mapping[str, str]) -> Forwarded:
    """The entries of a gRPC call's metadata whose keys contain a match of the pattern, without keys of HTTP/2 and gRPC.

    Case matters, as in Triton; metadata has lower case. The base64 value of a key that ends in "-bin" is decoded to
    text.
    """
    if not pattern:
        return NOTHING
    return {
        key: _decoded(value) if key.endswith("-bin") else value
        for key, value in metadata.items()
        if re.search(pattern, key) and not _OF_GRPC.match(key)
    }


def _decoded(value: str) -> str:
    """The text in the binary values of one key; the values themselves if they are no base64.

    Values may lack base64's padding, and commas separate them (gRPC over HTTP2, Custom-Metadata).
    """
    values = [each.strip().rstrip("=") for each in value.split(",")]
    try:
        decoded = [b64decode(each + "=" * (-len(each) % 4), validate=True) for each in values]
    except ValueError:
        return value
    return b",".join(decoded).decode("utf-8", "replace")


def check_forwarded(fields: Forwarded) -> None:
    """Raise InvalidArgumentError for a field with the name of one of the server's own parameters."""
    for name in fields:
        if name in RESERVED or name.startswith("triton_"):
            raise InvalidArgumentError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")

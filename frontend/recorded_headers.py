"""Two parts of a request that come from its HTTP headers, or gRPC metadata, and not from its body: the headers that are
recorded (`--record-config headers=…`), and the sticky key, by which a rollout chooses the version. Pure; front-end
processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.unversioned import with_sticky_key
from shoal.request import RecordedHeaders


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

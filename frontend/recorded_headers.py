"""Recorded headers: the values of those HTTP headers, or gRPC metadata, of a request that recordings have beside its
tensors (`--record-config headers=…`). Pure; front-end processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.frontend.prepared import PreparedRequest
from shoal.request import RecordedHeaders


def recorded_headers(names: Sequence[str], headers: Mapping[str, str]) -> RecordedHeaders:
    """The headers with these names that a request has; all names are in lower case."""
    return tuple([(name, _encodable(headers[name])) for name in names if name in headers])


def with_recorded_headers(
    prepared: PreparedRequest, names: Sequence[str], headers: Mapping[str, str]
) -> PreparedRequest:
    """The request with those of its headers that are recorded."""
    found = recorded_headers(names, headers) if names else ()
    return replace(prepared, headers=found) if found else prepared


def _encodable(value: str) -> str:
    """The value without half pairs of surrogates, which are no UTF-8."""
    return value.encode("utf-8", "replace").decode()

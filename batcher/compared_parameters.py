"""The parameters by which suspected requests are compared: those about the content, not those about the sender. Pure.

A request of TorchServe's protocol has one parameter, `ts`, with all that a handler may know about the request, as JSON
(frontend/torchserve/predictions.py): an id that no other request has, and all header fields. Fields about the sender,
the time or the route, and the boundary of a form, are left out, so that requests with equal bodies are equal.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_TORCHSERVE = "ts"
#: Header fields about a connection, a sender or a route; the content type has a member of its own in `ts`.
_FIELDS = frozenset(
    {
        "accept-encoding", "authorization", "b3", "baggage", "connection", "content-length", "content-type", "cookie",
        "date", "expect", "forwarded", "grpc-accept-encoding", "grpc-encoding", "grpc-timeout", "grpc-trace-bin",
        "host",
        "keep-alive", "origin", "proxy-authorization", "referer", "sentry-trace", "te", "traceparent", "tracestate",
        "transfer-encoding", "true-client-ip", "uber-trace-id", "user-agent", "via", "x-api-key", "x-real-ip",
    }
)  # fmt: skip
_PREFIXES = (
    ":", "ce-", "cf-", "sec-", "x-amz-", "x-amzn-", "x-b3-", "x-cloud-trace-", "x-datadog-", "x-envoy-", "x-forwarded-",
    "x-ot-",
)  # fmt: skip
#: Suffixes of header fields that proxies and clients add: ids and times of a request.
_ENDS = re.compile(
    r"(?:request|correlation|trace|span|session|transaction|message|invocation|idempotency|client)[-_]?(?:id|key)$"
    r"|[-_](?:date|time|timestamp|start)$"
)


def compared_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a request without those that differ between requests with equal contents."""
    described = parameters.get(_TORCHSERVE)
    if not isinstance(described, str):
        return parameters
    try:
        members = json.loads(described)
    except (ValueError, RecursionError):
        return parameters
    if not isinstance(members, dict):
        return parameters
    headers, content_type = members.get("headers"), members.get("content_type")
    if isinstance(headers, dict):
        members["headers"] = {name: value for name, value in sorted(headers.items()) if not _is_about_caller(name)}
    if isinstance(content_type, str):
        members["content_type"] = content_type.partition(";")[0].strip().lower()
    members.pop("request_id", None)
    return {**parameters, _TORCHSERVE: json.dumps(members, sort_keys=True)}


def _is_about_caller(name: str) -> bool:
    folded = name.lower()
    return folded in _FIELDS or folded.startswith(_PREFIXES) or _ENDS.search(folded) is not None

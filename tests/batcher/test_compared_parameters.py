"""What makes two requests of TorchServe's protocol equal where they may be poison."""

import json
from typing import Any

import pytest

from shoal.batcher.compared_parameters import compared_parameters

FORM = "multipart/form-data; boundary=1234"
HEADERS = {"Host": "a:8080", "Content-Type": FORM, "X-Mode": "fast", "Accept": "text/plain"}


def described(headers: dict[str, str] | None = None, **members: Any) -> dict[str, Any]:
    """The parameters of a request with these header fields beside the usual ones."""
    about = {"content_type": FORM, "headers": HEADERS | (headers or {}), "request_id": "one", **members}
    return {"ts": json.dumps(about)}


PLAIN = compared_parameters(described())


@pytest.mark.parametrize(
    "same",
    [
        described(request_id="two"),
        described(content_type="Multipart/Form-Data; boundary=77"),
        described({"Host": "b", "Content-Type": "multipart/form-data; boundary=5", "Content-Length": "77"}),
        described({"Authorization": "Bearer x", "Cookie": "a=b", "x-api-key": "k", "User-Agent": "curl"}),
        described({"traceparent": "00-1-2-01", "X-B3-TraceId": "5", "b3": "1-2", "uber-trace-id": "9"}),
        described({"X-Request-ID": "5", "x_correlation_id": "6", "My-Trace-Id": "7", "Idempotency-Key": "8"}),
        described({"X-Forwarded-For": "10.0.0.1", "Via": "1.1 proxy", "X-Envoy-Attempt-Count": "2", "CF-Ray": "3"}),
        described({"X-Amz-Date": "20260101", "X-Request-Start": "5", "Request-Timestamp": "7"}),
    ],
)
def test_who_asks_when_and_by_which_way_does_not_matter(same: dict[str, Any]) -> None:
    assert compared_parameters(same) == PLAIN


@pytest.mark.parametrize(
    "other",
    [
        described({"X-Mode": "slow"}),
        described({"Accept": "application/json"}),
        described({"X-Identity": "7"}),
        described({"X-Model-Id": "7"}),
        described(content_type="application/json"),
        described(explain="True"),
        described(url_path="custom"),
        described(fields=[["data", "text/plain", 5]]),
        {**described(), "more": 1},
    ],
)
def test_what_a_handler_is_asked_for_does(other: dict[str, Any]) -> None:
    assert compared_parameters(other) != PLAIN


@pytest.mark.parametrize(
    "parameters",
    [{}, {"a": 1, "headers": "x"}, {"ts": 5}, {"ts": "no JSON"}, {"ts": "[1]"}, {"ts": "[" * 100_000}, {"ts": "{}"}],
)
def test_other_parameters_are_compared_as_they_are(parameters: dict[str, Any]) -> None:
    assert compared_parameters(parameters) == parameters


def test_damaged_members_are_compared_as_they_are() -> None:
    damaged = {"ts": json.dumps({"headers": 7, "content_type": [1], "request_id": "one"})}
    assert json.loads(compared_parameters(damaged)["ts"]) == {"headers": 7, "content_type": [1]}

"""frontend/http/submission.py: headers that go to the model as parameters, and never with another client's request."""

from collections.abc import Mapping
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.frontend.http.http_head import Head, parse_head
from tests.frontend.lane_star import GRID, ONE, Star


def with_fields(model: str, body: bytes, *fields: bytes, json_length: int | None = None) -> Head:
    lines = [*fields, b"Content-Length: %d" % len(body)]
    if json_length is not None:
        lines.append(b"Inference-Header-Content-Length: %d" % json_length)
    raw = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % (model.encode(), b"\r\n".join(lines))
    head = parse_head(raw)
    assert head is not None
    return head


def parameters(star: Star, head: Head, body: bytes, *, received: bool = False) -> Mapping[str, Any]:
    """What the worker sees beside the tensors, whether the lane knows the head's bytes or not."""
    known = star.submission.find(head.raw + body)
    if known is not None and not received:
        assert star.submission.submit_known(*known) is not None
    elif received:
        star.submit_head(head, body, received=True)
    else:
        star.submission.submit(head, memoryview(body), None, head)
    return star.seen().parameters


@pytest.mark.parametrize("received", [False, True])
def test_forwarded_headers_are_their_own_client_s(star: Star, received: bool) -> None:
    star.state.header_forward_pattern = "^x-"
    body = GRID + ONE
    for _ in range(3):
        for fields, expected in [
            ([], {}), ([b"X-User: a"], {"X-User": "a"}), ([b"x-user: b"], {"x-user": "b"}), ([b"User: c"], {}),
            ([b"X-User: a", b"X-Other: d"], {"X-User": "a", "X-Other": "d"}),
        ]:  # fmt: skip
            head = with_fields("grid", body, *fields, json_length=len(GRID))
            assert parameters(star, head, body, received=received) == expected


def test_forwarded_headers_of_requests_in_json(star: Star) -> None:
    star.state.header_forward_pattern = "^x-"
    body = b'{"inputs":[{"name":"A","datatype":"INT32","shape":[2],"data":[1,2]}],"parameters":{"X-User":"z","y":1}}'
    for _ in range(3):
        for fields, user in ([], "z"), ([b"X-User: a"], "a"), ([b"X-User: b"], "b"), ([], "z"):
            assert parameters(star, with_fields("fixed", body, *fields), body) == {"X-User": user, "y": 1}


def test_without_a_pattern_nothing_is_forwarded(star: Star) -> None:
    body = GRID + ONE
    for _ in range(3):
        head = with_fields("grid", body, b"priority: 1", b"X-User: a", json_length=len(GRID))
        assert parameters(star, head, body) == {}


@pytest.mark.parametrize("received", [False, True])
def test_a_reserved_header_is_refused_and_leaves_nothing(star: Star, received: bool) -> None:
    star.state.header_forward_pattern = ".*"
    body = GRID + ONE
    for _ in range(2):
        head = with_fields("grid", body, b"timeout: 1", json_length=len(GRID))
        with pytest.raises(InvalidArgumentError, match=r"^Header 'timeout' is reserved"):
            star.submit_head(head, body, received=received)
        assert (star.port.slab.num_taken, star.port.counts["requests_open"], star.num_waiting()) == (0, 0, 0)

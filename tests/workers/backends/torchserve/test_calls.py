"""Requests as dicts of data: decoding by content type, fields, headers."""

import json
from typing import Any

import pytest
from ts.context import RequestHeaders

from shoal.errors import InternalError
from shoal.request import InferOptions
from shoal.workers.backends.torchserve.calls import Call, calls_of, decoded, elements
from shoal.workers.requests import ParsedRequest, Request


def element(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def calls(body: bytes, about: Any = None, *, decodes: bool = True, num_rows: int = 1) -> list[Call]:
    """The calls of a request with this body per row; `about` is its parameter."""
    parsed = ParsedRequest({}, (), 0, num_rows, (num_rows, ()), False, {})
    options = InferOptions(
        parameters={} if about is None else {"ts": about if type(about) is str else json.dumps(about)}
    )
    tensors = {"data": memoryview(element(body) * num_rows)}
    return calls_of(Request(0, parsed, memoryview(b""), tensors, (), lambda _: False, options), decodes=decodes)


DECODED = [
    ("application/json", b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
    ("application/json; charset=utf-8", b"[true]", [True]),
    ("Application/JSON", b"3", 3),
    ("application/json", b"[NaN]", None),  # compared below: NaN differs from itself
    ("application/json", b'{"a"', bytearray(b'{"a"')),
    ("application/json", b"", bytearray()),
    ("application/json", b"\xff", bytearray(b"\xff")),
    ("application/json", b"[" * 100_000, bytearray(b"[" * 100_000)),
    ("text/plain", "grün".encode(), "grün"),
    ("text/csv; charset=utf-8", b"a,b", "a,b"),
    ("text/plain", b"\xff\xfe", bytearray(b"\xff\xfe")),
    ("text/plain", b"", ""),
    ("application/octet-stream", b"{}", bytearray(b"{}")),
    ("image/png", b"\x89PNG", bytearray(b"\x89PNG")),
    ("", b"{}", bytearray(b"{}")),
]


@pytest.mark.parametrize(("content_type", "body", "expected"), DECODED)
def test_a_body_is_decoded_by_its_content_type(content_type: str, body: bytes, expected: Any) -> None:
    found = decoded(memoryview(body), content_type)
    if expected is None:
        assert found[0] != found[0]
    else:
        assert type(found) is type(expected)
        assert found == expected
    [call] = calls(body, {"content_type": content_type}, decodes=False)
    assert call.data == {"body": bytearray(body)}


def test_a_request_of_another_protocol_is_a_plain_body_of_bytes_that_may_be_changed() -> None:
    [call] = calls(b'{"a": 1}')
    assert call.data == {"body": bytearray(b'{"a": 1}')}
    assert not call.is_torchserves
    call.data["body"][0] = 0
    assert len(call.request_id) == 36


def test_each_row_of_a_request_is_a_call() -> None:
    assert [call.data["body"] for call in calls(b"x", num_rows=3)] == [bytearray(b"x")] * 3


def test_fields_are_keys_and_the_last_of_a_name_counts() -> None:
    fields = [["data", "", 2], ["more", "application/json", 3], ["text", "text/plain", 1], ["data", None, 1]]
    [call] = calls(b"ab[1]tz", {"fields": fields, "content_type": "multipart/form-data", "request_id": "r1"})
    assert call.data == {"data": bytearray(b"z"), "more": [1], "text": "t"}
    assert call.processor.get_request_property("more") == {"content-type": "application/json"}
    assert call.request_id == "r1"


def test_a_description_has_no_data_and_its_header() -> None:
    [call] = calls(b"", {"describe": "True", "content_type": ""})
    assert call.data == {}
    assert call.processor.get_request_property("describe") == "True"
    assert call.kind.is_description


def test_headers_are_as_sent_and_found_by_any_spelling() -> None:
    about = {"headers": {"X-Mode": "fast", "Ts-Request-Sequence-Id": "7"}, "url_path": "v1/x", "explain": "False"}
    [call] = calls(b"", about)
    processor = call.processor
    assert processor.get_request_property("X-Mode") == processor.get_request_property("x-mode") == "fast"
    assert processor.get_request_property("ts_request_sequence_id") == "7"
    assert processor.get_request_property("url_path") == "v1/x"
    assert processor.get_request_property("explain") == "False"
    assert processor.get_request_property("absent") is None
    assert not call.kind.is_explanation
    assert "x_mode" in RequestHeaders({"X-Mode": "fast"})


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "must be a JSON object"),
        ({"fields": [["a", "", 9]]}, "end at byte 9 of 2"),
        ({"fields": [["a", "", -1]]}, "end at byte -1 of 2"),
    ],
)
def test_a_damaged_parameter_is_an_error(about: Any, says: str) -> None:
    with pytest.raises(InternalError, match=says):
        calls(b"ab", about)


def test_a_damaged_tensor_is_an_error() -> None:
    with pytest.raises(InternalError, match="ends at 9 of 6"):
        list(elements(memoryview(b"\x05\0\0\0ab")))

"""frontend/v2/model_repository.py: what is asked of the supervisor, and the sentences about what cannot be asked."""

import json
from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError
from shoal.frontend.state import ServerState
from shoal.frontend.v2.model_repository import instances, scale
from tests.frontend.calls import call_of

TOLD = {"model": "m", "versions": [{"version": "1", "instances": []}]}


def test_instances_of_all_versions_or_of_one(state: ServerState, transport: Any) -> None:
    transport.answers["instances"] = TOLD
    response = instances(call_of(state, transport.ask, "m"))
    assert (response.status, json.loads(bytes(response.chunks[0]))) == (200, TOLD)
    instances(call_of(state, transport.ask, "m", "007"))
    assert transport.asked == [
        ("instances", {"model": "m", "version": None}),
        ("instances", {"model": "m", "version": 7}),
    ]


@pytest.mark.parametrize(
    ("version", "sent", "arguments"),
    [
        (None, b'{"count":2}', (None, 2, True)),
        ("3", b'{"count":0,"wait":false,"why":"x"}', (3, 0, False)),
        ("3", b'{"count":2147483647,"wait":true}', (3, 2147483647, True)),
    ],
)
def test_scaling(state: ServerState, transport: Any, version: str | None, sent: bytes, arguments: Any) -> None:
    transport.answers["scale"] = TOLD
    response = scale(call_of(state, transport.ask, "m", version, sent))
    assert (response.status, json.loads(bytes(response.chunks[0]))) == (200, TOLD)
    number, count, wait = arguments
    assert transport.asked == [("scale", {"model": "m", "version": number, "count": count, "wait": wait})]


@pytest.mark.parametrize(
    ("sent", "expected", "got"),
    [
        (b"", 'an object with the number of instances, like {"count": 2}', "{}"),
        (b"[2]", 'an object with the number of instances, like {"count": 2}', "[2]"),
        (b'{"cuont":2}', 'an object with the number of instances, like {"count": 2}', '{"cuont": 2}'),
        (b'{"count":"two"}', "'count' to be a number of instances", '"two"'),
        (b'{"count":2.0}', "'count' to be a number of instances", "2.0"),
        (b'{"count":true}', "'count' to be a number of instances", "true"),
        (b'{"count":null}', "'count' to be a number of instances", "null"),
        (b'{"count":-1}', "'count' to be a number of instances", "-1"),
        (b'{"count":2147483648}', "'count' to be a number of instances", "2147483648"),
        (b'{"count":[NaN,"\xc3\xa9"]}', "'count' to be a number of instances", '[NaN, "é"]'),
        (b'{"count":"%s"}' % (b"x" * 50), "'count' to be a number of instances", '"' + "x" * 39 + "…"),
        (b'{"count":1,"wait":0}', "'wait' to be true or false", "0"),
        (b'{"count":1,"wait":null}', "'wait' to be true or false", "null"),
    ],
)
def test_sentences_say_what_was_expected_and_what_came(
    state: ServerState, transport: Any, sent: bytes, expected: str, got: str
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        scale(call_of(state, transport.ask, "m", None, sent))
    assert str(raised.value) == f"cannot scale model 'm': expected {expected}, got: {got}"
    assert transport.asked == []


def test_a_body_that_is_no_json_is_refused_as_everywhere(state: ServerState, transport: Any) -> None:
    with pytest.raises(InternalError, match=r"^failed to parse the request JSON buffer: "):
        scale(call_of(state, transport.ask, "m", None, b"two"))


def test_a_version_beyond_64_bits(state: ServerState, transport: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\(details: stol\)"):
        scale(call_of(state, transport.ask, "m", "9" * 20, b'{"count":1}'))
    with pytest.raises(InvalidArgumentError, match=r"\(details: stol\)"):
        instances(call_of(state, transport.ask, "m", "9" * 20))

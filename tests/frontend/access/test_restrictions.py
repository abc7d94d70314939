"""frontend/access/doors.py: which header opens which part of the API, and what those without it are told."""

import json
from typing import Any

import pytest

from shoal.frontend.access.doors import missing
from shoal.frontend.state import ServerState

RESTRICTIONS = {"logging": ("Admin-Key", "sécret"), "trace": ["k", "v"]}
#: What servers make of the bytes of UTF-8.
SENT = "sécret".encode().decode("latin-1")


@pytest.mark.parametrize(
    ("group", "headers"),
    [
        ("health", {}),
        ("", {}),
        ("logging", {"admin-key": SENT}),
        ("logging", {"k": "w", "admin-key": SENT}),
        ("trace", {"k": "v"}),
    ],
)
def test_who_may(group: str, headers: dict[str, str]) -> None:
    assert missing(RESTRICTIONS, group, headers) == missing({}, group, headers) == ""


@pytest.mark.parametrize(
    ("group", "headers", "name"),
    [
        ("logging", {}, "Admin-Key"),
        ("logging", {"admin-key": ""}, "Admin-Key"),
        ("logging", {"admin-key": SENT[:-1]}, "Admin-Key"),
        ("logging", {"admin-key": SENT + "x"}, "Admin-Key"),
        ("logging", {"admin-key": f"{SENT},{SENT}"}, "Admin-Key"),
        ("logging", {"admin-key": SENT.upper()}, "Admin-Key"),
        ("logging", {"admin-key": "s\u20accret"}, "Admin-Key"),
        ("logging", {"k": SENT}, "Admin-Key"),
        ("trace", {"admin-key": SENT}, "k"),
        ("trace", {"k": "V"}, "k"),
    ],
)
def test_who_may_not(group: str, headers: dict[str, str], name: str) -> None:
    assert missing(RESTRICTIONS, group, headers) == name


# --- through the router ---

JSON = [("Content-Type", "application/json")]


@pytest.mark.parametrize(
    ("group", "method", "path"),
    [
        ("health", "GET", "/v2/health/ready"), ("health", "GET", "/v2/models/simple/ready"),
        ("metadata", "GET", "/v2"), ("metadata", "GET", "/v2/models/simple/versions/1"),
        ("model-config", "GET", "/v2/models/simple/config"), ("statistics", "GET", "/v2/models/stats"),
        ("inference", "POST", "/v2/models/simple/infer"), ("inference", "POST", "/v2/models/simple/generate"),
        ("logging", "POST", "/v2/logging"), ("trace", "GET", "/v2/models/simple/trace/setting"),
        ("model-repository", "POST", "/v2/repository/index"), ("shared-memory", "GET", "/v2/cudasharedmemory/status"),
    ],
)  # fmt: skip
def test_a_restriction_comes_before_everything_but_the_path(
    client: Any, state: ServerState, transport: Any, group: str, method: str, path: str
) -> None:
    state.restrictions = {group: ("Key", "secret"), "other": ("Other", "x")}
    refused = b'{"error":"This API is restricted, expecting header \'Key\'"}'
    for headers in ({}, {"Key": "wrong"}, {"Other": "x"}):
        assert client.ask(method, path, headers=headers) == (403, JSON, refused)
        assert client.ask("BREW", path, headers=headers) == (403, JSON, refused)
    assert (transport.num_asked, transport.asked) == (0, [])
    transport.answers |= {"index": [], "trace_settings": {}}
    assert client.ask(method, path, headers={"KEY": "secret"})[2] != refused
    assert client.ask("BREW", path, headers={"KEY": "secret"})[0] == 405
    assert client.ask(method, path + "/x")[0] == 404
    assert client.ask("GET", "/v2/models/simple/stats" if group != "statistics" else "/v2")[0] == 200


def test_openai_s_clients_are_refused_in_their_form(client: Any, state: ServerState) -> None:
    state.restrictions = {"metadata": ("Key", "secret")}
    status, _, body = client.ask("GET", "/v1/models")
    assert (status, json.loads(body)["error"]["code"]) == (403, "permission_denied")


def test_a_name_in_a_restricted_path_is_not_looked_at(client: Any, state: ServerState) -> None:
    state.restrictions = {"inference": ("Key", "secret")}
    assert client.ask("POST", "/v2/models/../infer")[0] == 403
    assert client.ask("POST", "/v2/models/../infer", headers={"key": "secret"})[0] == 400

"""frontend/access/authorisation.py: which key opens which door; and the audit log's bounds."""

import logging

import pytest

from shoal.api_keys import ApiKey, KeyRing, digest_of
from shoal.errors import PermissionDeniedError, UnauthenticatedError
from shoal.frontend.access.authorisation import authorise, credential, is_authorised
from shoal.frontend.access.doors import Scope
from shoal.frontend.access_log import REFUSED_PER_S, Audit
from shoal.frontend.state import ServerState


def state() -> ServerState:
    keys = [
        ApiKey("some", digest_of("s"), ("infer",), ("m*",)),
        ApiKey("all", digest_of("a"), ("infer",)),
        ApiKey("admin", digest_of("d"), ("admin",)),
        ApiKey("metrics", digest_of("p"), ("metrics",)),
    ]
    return ServerState(api_keys=KeyRing(keys), allow_remote_admin=True)


OPENED = {
    Scope.OPEN: "sadp", Scope.KNOWN: "sadp", Scope.READ: "sad", Scope.SETTINGS: "sad", Scope.INFER: "sa",
    Scope.METRICS: "p", Scope.ADMIN: "d",
}  # fmt: skip


@pytest.mark.parametrize("scope", Scope)
def test_each_scope_is_opened_by_its_keys(scope: Scope) -> None:
    for text in "sadp":
        headers = {"x-api-key": text}
        if text in OPENED[scope]:
            authorise(state(), scope, headers, "127.0.0.1", "model")
        else:
            with pytest.raises(PermissionDeniedError, match="has the scope"):
                authorise(state(), scope, headers, "127.0.0.1", "model")
    for headers in ({}, {"x-api-key": "x"}, {"authorization": "Bearer"}, {"authorization": "s"}):
        if scope is not Scope.OPEN:
            # Neither the address nor --allow-remote-admin stands in for a key.
            with pytest.raises(UnauthenticatedError):
                authorise(state(), scope, headers, "127.0.0.1", "model")
            assert not is_authorised(state(), scope, headers, "127.0.0.1", "model")


def test_a_key_for_some_models() -> None:
    headers = {"authorization": "bearer s"}
    found = authorise(state(), Scope.INFER, headers, "", "model")
    assert found is not None
    assert found.name == "some"
    for model, sentence in (("other", "not for model 'other'"), ("", "all of them")):
        with pytest.raises(PermissionDeniedError, match=sentence):
            authorise(state(), Scope.INFER, headers, "", model)
    authorise(state(), Scope.INFER, headers, "", None)  # the message has the model, which is checked then
    authorise(state(), Scope.KNOWN, headers, "", "")


def test_without_keys_only_administration_is_closed_to_others() -> None:
    for scope in Scope:
        if scope is Scope.ADMIN:
            with pytest.raises(PermissionDeniedError, match="--allow-remote-admin"):
                authorise(ServerState(), scope, {}, "192.0.2.1", "")
        else:
            assert authorise(ServerState(), scope, {}, "192.0.2.1", "") is None
    assert authorise(ServerState(), Scope.ADMIN, {}, "127.0.0.1", "") is None


def test_no_key_at_all_opens_nothing() -> None:
    with pytest.raises(UnauthenticatedError):
        authorise(ServerState(api_keys=KeyRing([])), Scope.READ, {"x-api-key": ""}, "127.0.0.1", "m")


def test_two_different_keys_are_no_key() -> None:
    assert credential({"authorization": "Bearer k", "x-api-key": "k"}) == "k"
    assert credential({"authorization": "Basic k", "x-api-key": "j"}) == "j"
    assert credential({"authorization": "Bearer k,Bearer k"}) == "k,Bearer k"
    with pytest.raises(UnauthenticatedError, match="send one"):
        credential({"authorization": "Bearer k", "x-api-key": "j"})


def test_the_audit_log_is_bounded_and_of_one_line(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    audit = Audit(lambda: now_s)
    with caplog.at_level(logging.INFO, "shoal"):
        audit.answered("POST /a", ApiKey("k", b"", ()), "10.0.0.1", 200)
        audit.answered("POST /a\nadmin: forged", None, "", 200)
        for _ in range(REFUSED_PER_S + 7):
            audit.refused("POST /b" + "b" * 1000, "10.0.0.2", 401)
        now_s = 1.0
        audit.refused("POST /c", "10.0.0.2", 401)
    first, second, *refused, last = [record.getMessage() for record in caplog.records]
    assert first == "admin: POST /a by key 'k' at 10.0.0.1: 200"
    assert second == "admin: POST /a\\nadmin: forged by this host: 200"
    assert len(refused) == REFUSED_PER_S
    assert max(map(len, refused)) < 300
    assert last == "admin: POST /c by 10.0.0.2 refused: 401; 7 more before it, of which there is no line"

"""frontend/v2/health.py: alive, ready, and which model keeps a server from being ready."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.health import live, model_ready, ready, reasons
from shoal.messages.to_client import ModelChanged
from shoal.star.known_server import asks_model
from tests.frontend.calls import call_of

Message = Callable[..., ModelChanged]
YES, NO = Response(200), Response(400)


def nobody_asks(_verb: str, _arguments: dict[str, Any], _timeout_s: float | None) -> Any:
    raise AssertionError


def test_a_server_is_alive_and_ready_once_it_has_started() -> None:
    state = ServerState()
    assert (live(call_of(state)), ready(call_of(state))) == (NO, NO)
    state.started = True
    assert (live(call_of(state)), ready(call_of(state))) == (YES, YES)


def test_a_stopping_server_says_so(state: ServerState) -> None:
    state.exiting = True
    for handler in (live, ready, reasons):
        with pytest.raises(UnavailableError, match=r"^Server exiting$"):
            handler(call_of(state))
    with pytest.raises(UnavailableError, match=r"^Server not ready$"):
        model_ready(call_of(state, nobody_asks, "simple"))


@pytest.mark.parametrize(
    ("version", "model", "expected"),
    [
        (1, {}, YES),
        (1, {"num_instances_up": 0}, NO),
        (1, {"state": "LOADING"}, NO),
        (1, {"state": "UNLOADING"}, YES),
        (1, {"state": "UNAVAILABLE", "reason": "unloaded"}, YES),
        (1, {"state": "UNAVAILABLE", "reason": "Internal: no such file"}, NO),
        (1, {"state": "UNAVAILABLE", "reason": ""}, NO),
        (-1, {"state": "UNAVAILABLE", "reason": "Invalid argument: no model file"}, NO),
    ],
)
def test_under_strict_readiness_every_model_counts(
    make_message: Message, version: int, model: dict[str, Any], expected: Response
) -> None:
    state = ServerState(started=True)
    state.models.apply(make_message("good", 1, 1, None))
    state.models.apply(make_message("other", version, 2, None, **model))
    assert ready(call_of(state)) == expected
    state.strict_readiness = False
    assert ready(call_of(state)) == YES


def test_a_model_is_ready_while_an_instance_lives(state: ServerState) -> None:
    assert model_ready(call_of(state, nobody_asks, "simple")) == YES
    with pytest.raises(InvalidArgumentError, match=r"^Model version not ready$"):
        model_ready(call_of(state, nobody_asks, "asleep", "7"))


def test_a_model_with_a_word_in_it_is_asked(make_message: Message) -> None:
    state = ServerState(started=True)
    state.models.apply(make_message("plain", 1, 1, None))
    state.models.apply(make_message("m", 3, 2, None, has_ready_check=True))
    assert [asks_model(state, name, None) for name in ("plain", "m", "unknown")] == [False, True, False]
    assert [asks_model(state, "m", version) for version in ("3", "4")] == [True, False]
    asked = []

    def ask(verb: str, arguments: dict[str, Any], _timeout_s: float | None) -> bool:
        asked.append((verb, arguments))
        return len(asked) == 1

    assert model_ready(call_of(state, ask, "m")) == YES
    with pytest.raises(InvalidArgumentError, match=r"^Model version not ready$"):
        model_ready(call_of(state, ask, "m", "3"))
    assert asked == [("is_ready", {"model": 2})] * 2
    assert ready(call_of(state)) == YES  # the server's is not affected


def told(state: ServerState) -> tuple[int, Any]:
    """What `reasons` answers: the status and the JSON."""
    answer = reasons(call_of(state))
    return answer.status, orjson.loads(b"".join(answer.chunks))


def test_a_server_that_is_whole_has_no_reasons(make_message: Message) -> None:
    state = ServerState()
    assert told(state) == (503, {"ready": False, "reasons": []})
    state.started = True
    state.models.apply(make_message("good", 1, 1, None))
    state.models.apply(make_message("gone", 1, 2, None, state="UNAVAILABLE", reason="unloaded", num_instances_up=0))
    assert told(state) == (200, {"ready": True, "reasons": []})


def test_the_reasons_name_every_version_that_cannot_answer(state: ServerState) -> None:
    status, told_ = told(state)
    assert status == 503
    assert told_ == {
        "ready": False,
        "reasons": [
            row("simple", "LOADING", "0/2 instances up", 0, version="2"),
            row("asleep", "READY", "0/2 instances up", 0, version="7"),
            row("loading", "LOADING", "0/2 instances up", 0, version="1"),
            row("broken", "UNAVAILABLE", "Internal: no", 0),
        ],
    }
    state.strict_readiness = False
    assert told(state) == (200, told_ | {"ready": True})


def row(name: str, state: str, reason: str, up: int, **version: str) -> dict[str, Any]:
    return {"name": name, **version, "state": state, "reason": reason, "instances_up": up, "instances": 2}


def test_a_lost_instance_is_told_while_the_others_answer(make_message: Message) -> None:
    state = ServerState(started=True)
    state.models.apply(make_message("m", 1, 1, None, num_instances_up=1))
    assert told(state) == (200, {"ready": True, "reasons": [row("m", "READY", "1/2 instances up", 1, version="1")]})
    state.models.apply(make_message("m", 1, 1, None, num_instances_up=0))
    assert told(state) == (503, {"ready": False, "reasons": [row("m", "READY", "0/2 instances up", 0, version="1")]})
    state.models.apply(make_message("m", 1, 1, None))
    assert told(state) == (200, {"ready": True, "reasons": []})

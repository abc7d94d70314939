"""frontend/v2/health.py: alive, ready, and which model keeps a server from being ready."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.health import live, model_ready, ready

Message = Callable[..., dict[str, Any]]
YES, NO = Response(200), Response(400)


def test_a_server_is_alive_and_ready_once_it_has_started() -> None:
    state = ServerState()
    assert (live(state), ready(state)) == (NO, NO)
    state.started = True
    assert (live(state), ready(state)) == (YES, YES)


def test_a_stopping_server_says_so(state: ServerState) -> None:
    state.exiting = True
    for handler in (live, ready):
        with pytest.raises(UnavailableError, match=r"^Server exiting$"):
            handler(state)
    with pytest.raises(UnavailableError, match=r"^Server not ready$"):
        model_ready(state, "simple", None)


@pytest.mark.parametrize(
    ("version", "model", "expected"),
    [
        (1, {}, YES),
        (1, {"ready": False}, NO),
        (1, {"state": "LOADING"}, NO),
        (1, {"state": "UNLOADING"}, NO),
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
    assert ready(state) == expected
    state.strict_readiness = False
    assert ready(state) == YES


def test_a_model_is_ready_while_an_instance_lives(state: ServerState) -> None:
    assert model_ready(state, "simple", None) == YES
    with pytest.raises(InvalidArgumentError, match=r"^Model version not ready$"):
        model_ready(state, "asleep", "7")

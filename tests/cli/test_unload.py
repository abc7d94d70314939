"""The verb `unload`: it ends when the model is gone."""

import pytest

from shoal.cli.unload import INTERVAL_S, unload
from tests.cli.answering import Answering

UNLOAD = "POST /v2/repository/models/digits/unload"
OTHER = {"name": "other", "version": "1", "state": "UNLOADING", "reason": ""}


def index(state: str, reason: str = "") -> list[dict[str, str]]:
    return [OTHER, {"name": "digits", "version": "1", "state": state, "reason": reason}]


def test_it_waits_until_the_model_is_gone(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(UNLOAD)
    server.answer("POST /v2/repository/index", index("UNLOADING"))
    server.answer("POST /v2/repository/index", index("UNLOADING"))
    server.answer("POST /v2/repository/index", index("UNAVAILABLE", "unloaded"))
    pauses: list[float] = []
    assert unload(["digits"], environ={"SHOAL_URL": server.url}, pause=pauses.append) == 0
    assert pauses == [INTERVAL_S] * 2
    assert server.asked[0] == (UNLOAD, {"parameters": {"unload_dependents": False}})
    assert capsys.readouterr() == (
        "NAME    VERSION  STATE        INSTANCES  REASON\ndigits  1        UNAVAILABLE  -          unloaded\n",
        "",
    )


def test_a_model_that_is_not_there(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(UNLOAD)
    server.answer("POST /v2/repository/index", [OTHER])
    assert unload(["digits"], environ={"SHOAL_URL": server.url}) == 0
    said = "The server has no model 'digits', or not any more. 'shoal models' lists what it has.\n"
    assert capsys.readouterr() == (said, "")


def test_it_gives_up_in_the_end(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(UNLOAD)
    server.answer("POST /v2/repository/index", index("UNLOADING"))
    pauses: list[float] = []
    assert unload(["digits", "--url", server.url, "--timeout", "0.5"], environ={}, pause=pauses.append) == 3
    assert sum(pauses) >= 0.5
    assert capsys.readouterr() == ("", "'digits' still answers what it has accepted, after 0.5 s.\n")


def test_models_it_is_composed_of_go_with_it_when_asked(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(UNLOAD)
    server.answer("POST /v2/repository/index", [])
    assert unload(["digits", "--dependents", "--json"], environ={"SHOAL_URL": server.url}) == 0
    assert server.asked[0] == (UNLOAD, {"parameters": {"unload_dependents": True}})
    assert capsys.readouterr() == ("[]\n", "")

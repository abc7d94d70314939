"""The verb `load`: what is sent, and what is shown when it is done."""

from pathlib import Path

import pytest

from shoal.cli.load import load
from tests.cli.answering import Answering
from tests.cli.instances import DIGITS

INDEX = [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in ("digits", "digits2")]


@pytest.fixture
def loading(server: Answering) -> Answering:
    server.answer("POST /v2/repository/models/digits/load")
    server.answer("POST /v2/repository/index", INDEX)
    server.answer("GET /v2/repository/models/digits/instances", DIGITS)
    return server


def test_a_model_is_loaded_and_shown(loading: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    assert load(["digits", "--url", loading.url], environ={}) == 0
    assert capsys.readouterr() == (
        "NAME    VERSION  STATE  INSTANCES  REASON\ndigits  1        READY  1/2\n",
        "",
    )
    assert loading.asked[0] == ("POST /v2/repository/models/digits/load", {})


def test_a_configuration_is_sent_as_it_stands(
    loading: Answering, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "digits.json").write_text('{"max_batch_size": 4}\n')
    assert load(["digits", f"--config={tmp_path}/digits.json", "--json"], environ={"SHOAL_URL": loading.url}) == 0
    assert '"instances_up": 1' in capsys.readouterr().out
    assert loading.requests[0].body == {"parameters": {"config": '{"max_batch_size": 4}\n'}}


def test_a_model_that_does_not_load_is_told_with_the_server_s_sentence(
    server: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "load failed for model 'digits': version 1 is at UNAVAILABLE state: Internal: no such file;\n"
    server.answer("POST /v2/repository/models/digits/load", {"error": sentence}, status=400)
    assert load(["digits", "--url", server.url], environ={}) == 2
    assert capsys.readouterr() == ("", f"{sentence}\n")

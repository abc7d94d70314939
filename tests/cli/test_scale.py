"""The verb `scale`: both ways to say it, and what cannot be understood."""

import json

import pytest

from shoal.cli.scale import scale
from tests.cli.answering import Answering
from tests.cli.instances import DIGITS, PRINTED

INSTANCES = "POST /v2/repository/models/digits/instances"


@pytest.mark.parametrize("words", [["digits=2"], ["digits", "2"]], ids=" ".join)
def test_the_server_is_asked_and_its_answer_shown(
    server: Answering, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer(INSTANCES, DIGITS)
    assert scale([*words, "--url", server.url], environ={}) == 0
    assert server.asked == [(INSTANCES, {"count": 2, "wait": True})]
    assert capsys.readouterr() == (PRINTED, "")


def test_programs_get_the_answer_as_it_is(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(INSTANCES, DIGITS)
    assert scale(["digits=2", "--json"], environ={"SHOAL_URL": server.url}) == 0
    assert json.loads(capsys.readouterr().out) == DIGITS


def test_a_name_may_hold_an_equals_sign(server: Answering) -> None:
    server.answer("POST /v2/repository/models/a%3Db/instances", DIGITS)
    assert scale(["a=b=3"], environ={"SHOAL_URL": server.url}) == 0
    assert server.requests[0].body["count"] == 3


@pytest.mark.parametrize("words", ["digits", "digits=", "=2", "digits=two", "digits=1.5", "digits=²", "a b c"])
def test_what_cannot_be_understood_is_not_sent(
    server: Answering, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scale(words.split(), environ={"SHOAL_URL": server.url}) == 1
    assert server.asked == []
    assert capsys.readouterr().err == (
        f"Expected a model and a number of instances, as in digits=4, got '{words}'\n"
        "Usage: shoal scale <model>=<instances> [options]\n'shoal scale --help' explains it.\n"
    )


def test_out_of_bounds_is_the_server_s_to_say(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(INSTANCES, {"error": "'digits' may have 1 to 64 instances"}, status=400)
    assert scale(["digits=65"], environ={"SHOAL_URL": server.url}) == 2
    assert capsys.readouterr() == ("", "'digits' may have 1 to 64 instances\n")

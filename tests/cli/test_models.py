"""The verb `models`: tables for people, JSON for programs."""

import copy
import json

import pytest

from shoal.cli.models import models
from tests.cli.answering import Answering
from tests.cli.instances import DIGITS, PRINTED

INDEX = [
    {"name": "digits", "version": "1", "state": "READY", "reason": ""},
    {"name": "mlp", "version": "2", "state": "UNAVAILABLE", "reason": "Internal: the file\nis damaged"},
    {"name": "spare"},
]


def run(server: Answering, *arguments: str) -> int:
    return models(arguments, environ={"SHOAL_URL": server.url})


def test_every_version_is_a_line(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer("POST /v2/repository/index", INDEX)
    server.answer("GET /v2/repository/models/digits/instances", DIGITS)
    server.answer("GET /v2/repository/models/mlp/instances", {"error": "gone"}, status=400)
    assert run(server) == 0
    assert capsys.readouterr() == (
        "NAME    VERSION  STATE        INSTANCES  REASON\n"
        "digits  1        READY        1/2\n"
        "mlp     2        UNAVAILABLE  -          Internal: the file is damaged\n"
        "spare   -        -            -\n",
        "",
    )
    # A model that was never loaded has no instances to ask for.
    assert [request for request, _ in server.asked] == [
        "POST /v2/repository/index",
        "GET /v2/repository/models/digits/instances",
        "GET /v2/repository/models/mlp/instances",
    ]


def test_a_server_without_the_endpoint_is_listed_all_the_same(
    server: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer("POST /v2/repository/index", INDEX[:1])
    assert run(server) == 0
    assert capsys.readouterr().out.splitlines()[1] == "digits  1        READY  -"


def test_programs_get_the_index_with_two_more_keys(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer("POST /v2/repository/index", INDEX)
    server.answer("GET /v2/repository/models/digits/instances", DIGITS)
    assert run(server, "--json") == 0
    assert json.loads(capsys.readouterr().out) == [{**INDEX[0], "instances_up": 1, "instances": 2}, *INDEX[1:]]


def test_a_server_without_models_says_so(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer("POST /v2/repository/index", [])
    assert run(server) == 0
    assert capsys.readouterr().out == "The server has no models.\n"


def test_one_model_is_shown_with_its_instances(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer("GET /v2/repository/models/digits/instances", DIGITS)
    assert run(server, "digits") == 0
    assert capsys.readouterr() == (PRINTED, "")
    assert run(server, "digits", "--json") == 0
    assert json.loads(capsys.readouterr().out) == DIGITS


def test_a_version_without_instances_is_a_line_alone(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    unloaded = copy.deepcopy(DIGITS)
    unloaded["versions"][0] |= {"state": "UNAVAILABLE", "instances": [], "autoscale": True}
    server.answer("GET /v2/repository/models/digits/instances", unloaded)
    assert run(server, "digits") == 0
    printed = "digits, version 1: UNAVAILABLE, 0 instances, scaled automatically between 1 and 64\n"
    assert capsys.readouterr().out == printed


def test_an_odd_name_is_escaped(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer("GET /v2/repository/models/a%2Fb%20%C3%A4/instances", {"model": "a/b ä", "versions": []})
    assert run(server, "a/b ä") == 0
    assert capsys.readouterr() == ("\n", "")

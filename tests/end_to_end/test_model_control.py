"""Loading, unloading and scaling on a real server: the cases of http_cases/model_control.py, and what varies."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton

from tests.end_to_end.http_cases import model_control
from tests.end_to_end.http_cases.case import Case, compact
from tests.end_to_end.http_cases.model_control import BROKEN, DONE, config, load, row, unload
from tests.end_to_end.http_cases.models import write_models
from tests.end_to_end.lifecycle import write_model
from tests.end_to_end.server import Server, serving, serving_to_the_end
from tests.end_to_end.ways import Way, took_the_road

INSTANCES = "/v2/repository/models/fixed/instances"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = write_models(tmp_path_factory.mktemp("models"))
    with serving_to_the_end(repository, *model_control.FLAGS) as server:
        yield server


@pytest.fixture
def lane(server: Server) -> Iterator[Way]:
    way = Way(server)
    with closing(way.connection):
        yield way


def ask(way: Way, case: Case) -> tuple[int, bytes]:
    """What comes back, whatever the case says of it."""
    response = way.ask(case)
    return response.status, response.read()


def told(way: Way, method: str, path: str, request: Any = None) -> tuple[int, Any]:
    """Status and JSON."""
    status, body = ask(way, Case("", method, path, DONE, b"" if request is None else compact(request)))
    return status, json.loads(body)


def test_every_case_has_its_own_name() -> None:
    assert len({case.id for case in model_control.CASES}) == len(model_control.CASES)


@pytest.mark.parametrize("headers", [{}, {"TE": "trailers"}], ids=["lane", "road"])
def test_loading_and_unloading(tmp_path: Path, headers: dict[str, str]) -> None:
    """One after the other, from the first: what a model's name has been before shows in the sentences."""
    with (
        serving_to_the_end(write_models(tmp_path), *model_control.FLAGS) as server,
        closing((way := Way(server, **headers)).connection),
    ):
        for case in model_control.CASES:
            response = way.ask(case)
            got = (case.id, response.status, response.read(), response.getheader("Content-Type"))
            assert got == (case.id, case.answer.status, case.answer.body, case.answer.headers.get("Content-Type"))
            assert took_the_road(response) or not headers


def test_the_index_has_what_was_never_loaded_and_why_something_is_not(lane: Way) -> None:
    ask(lane, load("", "broken"))
    status, rows = told(lane, "POST", "/v2/repository/index")
    assert status == 200
    assert {"name": "grid"} in rows
    assert row("fixed", "1") in rows
    assert row("broken", "1", "UNAVAILABLE", BROKEN) in rows
    ask(lane, unload("", "broken"))


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[]", '{"nickname":"x"}', '{"max_batch_size":"many"}', '"' + r"\"" * 500_000],
    ids=lambda text: text[:30] or "empty",
)
def test_a_configuration_that_cannot_be_read(lane: Way, text: str) -> None:
    status, body = ask(lane, load("", "fixed", config=text))
    sentence = b"failed to load 'fixed', failed to poll from model repository: Invalid config override: "
    assert (status, body.startswith(b'{"error":"' + sentence)) == (500, True)
    assert told(lane, "GET", "/v2/models/fixed")[0] == 200


def test_names_in_a_configuration_may_be_in_any_case(lane: Way) -> None:
    lower = config("fixed").replace("TYPE_INT32", "type_int32").replace("KIND_CPU", "kind_cpu")
    assert ask(lane, load("", "fixed", config=lower)) == (200, b"")
    assert ask(lane, load("", "fixed")) == (200, b"")


def test_instances(lane: Way) -> None:
    status, body = told(lane, "GET", INSTANCES)
    assert (status, body["model"]) == (200, "fixed")
    ((version,),) = (body["versions"],)
    assert {key: version[key] for key in ("version", "state", "autoscale")} == {
        "version": "1", "state": "READY", "autoscale": False,
    }  # fmt: skip
    (instance,) = version["instances"]
    assert (instance["name"], instance["state"], instance["device"]) == ("fixed_0_0", "up", "CPU")
    assert instance["pid"] > 1
    assert instance["rss_bytes"] > 0
    assert told(lane, "GET", "/v2/repository/models/fixed/versions/1/instances")[0] == 200


def num_instances(lane: Way) -> int:
    (version,) = told(lane, "GET", INSTANCES)[1]["versions"]
    return sum(instance["state"] == "up" for instance in version["instances"])


def test_scaling_up_and_down(lane: Way) -> None:
    for count in (3, 1, 2):
        status, body = told(lane, "POST", INSTANCES, {"count": count})
        assert status == 200
        assert [instance["state"] for instance in body["versions"][0]["instances"]] == ["up"] * count
        assert num_instances(lane) == count
    answered = told(lane, "PUT", "/models/fixed?min_worker=1&synchronous=true")
    assert answered == (200, {"status": "Workers scaled to 1 for model: fixed"})
    assert num_instances(lane) == 1
    assert told(lane, "PUT", "/models/fixed/1?min_worker=1") == (202, {"status": "Processing worker updates..."})


@pytest.mark.parametrize("count", [0, 65])
def test_scaling_has_bounds(lane: Way, count: int) -> None:
    status, body = told(lane, "POST", INSTANCES, {"count": count})
    assert (status, "fixed" in body["error"]) == (400, True)
    assert told(lane, "PUT", f"/models/fixed?min_worker={count}")[1]["type"] == "BadRequestException"
    assert num_instances(lane) == 1


def test_a_model_that_is_not_there_has_no_instances(lane: Way) -> None:
    for method, path in (("GET", "/v2/repository/models/nobody/instances"), ("PUT", "/models/nobody")):
        assert told(lane, method, path)[0] == 404


@pytest.mark.parametrize(
    "flags", [(), ("--model-control-mode=explicit",), ("--model-control-mode=explicit", "--load-model=twin")]
)
def test_a_model_in_two_repositories_is_none(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The index says so in Triton's words, which scripts compare, whether somebody wanted the model or not."""
    repositories = [tmp_path / "one", tmp_path / "two"]
    for repository in repositories:
        write_model(repository, "twin", 1)
    with (
        serving(repositories, "--exit-on-error=false", *flags) as server,
        triton.InferenceServerClient(server.url) as client,
    ):
        reason = "model appears in two or more repositories"
        assert client.get_model_repository_index() == [{"name": "twin", "state": "UNAVAILABLE", "reason": reason}]


def test_triton_s_own_client_manages_models(server: Server) -> None:
    with triton.InferenceServerClient(server.url) as client:
        client.load_model("versions")
        assert client.is_model_ready("versions", "3")
        client.load_model("fresh", config=config("fresh"), files={"file:4/model": b"anything"})
        assert client.get_model_metadata("fresh")["versions"] == ["4"]
        states = {
            (each["name"], each.get("version")): each.get("state") for each in client.get_model_repository_index()
        }
        assert (states["fresh", "4"], states["versions", "1"]) == ("READY", "READY")
        for name in ("fresh", "versions"):
            client.unload_model(name, unload_dependents=True)
            assert not client.is_model_ready(name)

"""Rollouts on a real server whose versions, files or whole process come and go: what a rollout has decided stays."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.asking import fetch
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import Server, serving_to_the_end, wait_until

CONFIG = config_text("identity", "INPUT0 INT32 1", "OUTPUT0 INT32 1", "version_policy { all { } }", rows=1)
ASKED = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}
#: Goes on until it is ended by a verb.
PLAN = {"version": 2, "steps": "50", "every": "1h", "guard": "errors<50%"}


def add_versions(repository: Path, name: str = "m") -> None:
    model = add_model(repository, name, CONFIG).parent
    for number in "23":
        (model / number).mkdir()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_versions(tmp_path / "models")
    return tmp_path / "models"


def rollout(server: Server, name: str = "m", /, **said: object) -> Any:
    answer = fetch(server.http_port, f"/v2/models/{name}/rollout", said or None)
    assert answer.status == 200, answer.body
    return answer.json


def await_phase(server: Server, name: str, phase: str) -> None:
    wait_until(lambda: rollout(server, name).get("phase") == phase)


def load(server: Server, *versions: int, name: str = "m") -> None:
    has_it = fetch(server.http_port, f"/v2/models/{name}/ready").status == 200
    config = fetch(server.http_port, f"/v2/models/{name}/config").json if has_it else {}
    config |= {
        "name": name, "backend": "identity", "max_batch_size": 1,
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
        "version_policy": {"specific": {"versions": versions}},
    }  # fmt: skip
    said = {"parameters": {"config": json.dumps(config)}}
    assert fetch(server.http_port, f"/v2/repository/models/{name}/load", said).status == 200


def answered(server: Server, name: str = "m", num: int = 12) -> set[str]:
    """The versions that answer requests which name none."""
    answers = [fetch(server.http_port, f"/v2/models/{name}/infer", ASKED) for _ in range(num)]
    assert Counter(each.status for each in answers) == {200: num}, answers
    return {each.json["model_version"] for each in answers}


def test_without_its_stable_version_a_rollout_waits_and_no_request_fails(repository: Path) -> None:
    with serving_to_the_end(repository, "--model-control-mode=explicit", "--load-model=m") as server:
        load(server, 1, 2)
        assert rollout(server, **PLAN)["weights"] == {"1": 50, "2": 50}
        load(server, 2)
        assert answered(server) == {"2"}
        told = rollout(server)
        assert (told["phase"], told["weights"]) == ("running", {"1": 0, "2": 100})
        assert told["reason"].startswith("version 1 is not READY: ")
        assert told["reason"].endswith("version 2 answers all requests meanwhile")
        load(server, 1, 2)
        told = rollout(server)
        assert (told["phase"], told["reason"], told["weights"]) == ("running", "", {"1": 50, "2": 50})
        assert answered(server) == {"1", "2"}


def test_what_a_rollout_has_come_to_counts_for_a_model_that_is_loaded_after_a_restart(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for name in ("aborted", "promoted", "going_on"):
        add_versions(repository, name)
    flags = ("--model-control-mode=explicit", f"--rollout-file={tmp_path / 'rollouts.json'}")
    with serving_to_the_end(repository, *flags) as server:
        for name, action, chosen in (
            ("aborted", "abort", {"1"}),
            ("promoted", "promote", {"2"}),
            ("going_on", "", {"1", "2"}),
        ):
            load(server, 1, 2, name=name)
            rollout(server, name, **PLAN)
            if action:
                rollout(server, name, action=action)
            assert answered(server, name) == chosen
    with serving_to_the_end(repository, *flags) as server:
        for name, versions, chosen, phase in (
            ("aborted", (1, 2, 3), {"1"}, "rolled back"),
            ("promoted", (2, 3), {"2"}, "promoted"),  # the old version is gone for good
        ):
            load(server, *versions, name=name)
            assert answered(server, name) == chosen, "version 3 is the highest, and was never rolled out"
            await_phase(server, name, phase)
            assert rollout(server, name)["pinned"]
        load(server, 1, 2, name="going_on")
        await_phase(server, "going_on", "running")
        assert rollout(server, "going_on")["weights"] == {"1": 50, "2": 50}
        assert answered(server, "going_on") == {"1", "2"}


def test_a_plan_that_is_damaged_or_no_file_serves_the_model(repository: Path) -> None:
    (repository / "m" / "rollout.json").write_text("[" * 60_000)
    with serving_to_the_end(repository) as server:
        assert answered(server) == {"3"}
        assert server.read_log(b"its rollout.json is no rollout: ")

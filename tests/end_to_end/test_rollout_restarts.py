"""Rollouts on a real server whose versions, files or whole process come and go: what a rollout has decided stays."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.asking import fetch
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import Server, serving_to_the_end, wait_until

CONFIG = """
backend: "identity"
max_batch_size: 1
version_policy { all { } }
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""
ASKED = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}
#: Goes on until it is ended by a verb.
PLAN = {"version": 2, "steps": "50", "every": "1h", "guard": "errors<50%"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    model = add_model(tmp_path / "models", "m", CONFIG).parent
    for number in "23":
        (model / number).mkdir()
    return model.parent


def rollout(server: Server, **said: object) -> Any:
    answer = fetch(server.http_port, "/v2/models/m/rollout", said or None)
    assert answer.status == 200, answer.body
    return answer.json


def load(server: Server, *versions: int) -> None:
    config = fetch(server.http_port, "/v2/models/m/config").json if server_has(server) else {}
    config |= {
        "name": "m", "backend": "identity", "max_batch_size": 1,
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
        "version_policy": {"specific": {"versions": versions}},
    }  # fmt: skip
    said = {"parameters": {"config": json.dumps(config)}}
    assert fetch(server.http_port, "/v2/repository/models/m/load", said).status == 200


def server_has(server: Server) -> bool:
    return fetch(server.http_port, "/v2/models/m/ready").status == 200


def answered(server: Server, num: int = 12) -> set[str]:
    """The versions that answer requests which name none."""
    answers = [fetch(server.http_port, "/v2/models/m/infer", ASKED) for _ in range(num)]
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


@pytest.mark.parametrize(("action", "chosen"), [("abort", "1"), ("promote", "2")])
def test_how_a_rollout_ended_counts_for_a_model_that_is_loaded_after_a_restart(
    repository: Path, tmp_path: Path, action: str, chosen: str
) -> None:
    flags = ("--model-control-mode=explicit", f"--rollout-file={tmp_path / 'rollouts.json'}")
    with serving_to_the_end(repository, *flags, "--load-model=m") as server:
        load(server, 1, 2)
        rollout(server, **PLAN)
        rollout(server, action=action)
        assert answered(server) == {chosen}
    with serving_to_the_end(repository, *flags) as server:
        if action == "promote":
            load(server, 2, 3)  # the old version is gone for good
        else:
            load(server, 1, 2, 3)
        assert answered(server) == {chosen}, "version 3 is the highest, and was never rolled out"
        wait_until(lambda: rollout(server).get("phase") in ("rolled back", "promoted"))
        assert rollout(server)["pinned"]


def test_a_rollout_goes_on_when_its_model_is_loaded_after_a_restart(repository: Path, tmp_path: Path) -> None:
    flags = ("--model-control-mode=explicit", f"--rollout-file={tmp_path / 'rollouts.json'}")
    with serving_to_the_end(repository, *flags, "--load-model=m") as server:
        load(server, 1, 2)
        rollout(server, **PLAN)
    with serving_to_the_end(repository, *flags) as server:
        load(server, 1, 2)
        wait_until(lambda: rollout(server).get("phase") == "running")
        assert rollout(server)["weights"] == {"1": 50, "2": 50}
        assert answered(server) == {"1", "2"}


def test_a_plan_that_is_damaged_or_no_file_serves_the_model(repository: Path) -> None:
    (repository / "m" / "rollout.json").write_text("[" * 60_000)
    with serving_to_the_end(repository) as server:
        assert answered(server) == {"3"}
        assert server.read_log(b"its rollout.json is no rollout: maximum recursion depth")

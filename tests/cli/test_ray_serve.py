"""`shoal ray`: the configuration that it prints, what it says of applications, and every mistake said. Without Ray."""

import sys
from types import SimpleNamespace

import pytest
import yaml

from shoal.cli import main
from shoal.cli.ray_serve import described, status_lines


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["ray", "deploy", "--yaml", *arguments]) == 0
    return capsys.readouterr().out


def test_a_configuration_names_the_builder_and_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert yaml.safe_load(printed(capsys, "/models", "--num-replicas", "3", "--num-gpus", "1")) == {
        "applications": [
            {
                "name": "shoal",
                "route_prefix": "/",
                "import_path": "shoal.ray:build",
                "args": {"model_repository": ["/models"], "num_cpus": 1.0, "num_gpus": 1.0, "num_replicas": 3},
            }
        ]
    }


def test_flags_of_the_server_and_goals_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--name", "a: b", "--autoscale", "0:8", "--queue-age-ms", "250"]
    text = printed(capsys, "s3://b/m", "/x", *options, "--", "--id=a", "--strict-readiness=false")
    [application] = yaml.safe_load(text)["applications"]
    assert application["name"] == "a: b"
    assert application["args"]["model_repository"] == ["s3://b/m", "/x"]
    assert application["args"]["flags"] == ["--id=a", "--strict-readiness=false"]
    goals = {"min_replicas": 0, "max_replicas": 8, "queue_age_s": 0.25}
    assert application["args"]["autoscaling"] == goals
    assert "num_replicas" not in application["args"]


def test_the_status_has_the_reasons_of_a_replica_that_does_not_start() -> None:
    deployment = SimpleNamespace(
        status=SimpleNamespace(value="UNHEALTHY"), replica_states={"STARTING": 2}, message="no\nGPU"
    )
    application = SimpleNamespace(status="DEPLOY_FAILED", message="", deployments={"shoal": deployment})
    assert status_lines(described({"models": application})) == [
        "models  deploy_failed",
        "  shoal  unhealthy  2 starting",
        "  no",
        "  GPU",
    ]


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as Python marks a package that cannot be imported
    assert main(["ray", "status"]) == 1
    assert capsys.readouterr().err.startswith("Ray is not installed here: pip install 'shoal[ray]'")

"""repository/lifecycle.py: the moves of a model version, and what front ends are told of it."""

from pathlib import Path

import pytest

from shoal.messages.to_client import ModelChanged
from shoal.repository.lifecycle import UNLOADED, ModelVersion, VersionState


@pytest.fixture
def version() -> ModelVersion:
    config = {"name": "m"}
    return ModelVersion("m", 3, 7, 2, Path("repository/m/3"), config, labels={"OUT": ("zero", "one")})


def test_front_ends_are_told_the_labels_beside_the_configuration(version: ModelVersion) -> None:
    version.is_config_final = True
    version.num_instances, version.num_instances_up = 2, 1
    version.load_seconds = 0.5
    version.move(VersionState.READY)
    assert version.message() == ModelChanged(
        name="m",
        namespace="",
        version=3,
        model_id=7,
        row=2,
        state="READY",
        reason="",
        is_failed=False,
        is_polled=True,
        num_instances=2,
        num_instances_up=1,
        config={"name": "m"},
        groups=[],
        labels={"OUT": ("zero", "one")},
        load_seconds=0.5,
        has_ready_check=False,
        is_cached=False,
    )


def test_an_unfinished_configuration_is_not_told(version: ModelVersion) -> None:
    assert version.message().config is None
    assert version.message().state == "LOADING"


def test_a_move_that_the_table_does_not_have_changes_nothing(version: ModelVersion) -> None:
    before = version.message()
    with pytest.raises(ValueError, match=r"^model 'm' version 3 cannot go from VersionState.LOADING to"):
        version.move(VersionState.UNLOADING, "no")
    assert version.message() == before
    version.move(VersionState.UNAVAILABLE, "unloaded")
    with pytest.raises(ValueError, match="cannot go"):
        version.move(VersionState.LOADING)
    assert (version.state, version.reason) == (VersionState.UNAVAILABLE, "unloaded")


def test_a_version_is_unloaded_from_the_moment_it_is_unwanted(version: ModelVersion) -> None:
    seen = [version.is_unloaded]
    for state, reason in (("READY", ""), ("UNAVAILABLE", "Internal: no"), ("UNLOADING", ""), ("UNAVAILABLE", UNLOADED)):
        version.move(VersionState(state), reason)
        seen.append(version.is_unloaded)
    assert seen == [False, False, False, True, True]


def test_a_namespace_is_in_status_and_message(version: ModelVersion) -> None:
    assert version.status()[0] == "m"
    version.namespace = "/models"
    assert version.status()[0] == "/models::m"
    assert version.message().namespace == "/models"

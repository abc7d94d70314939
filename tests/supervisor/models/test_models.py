"""All models together: what an error in one load leaves to the others. Workers are played by the test."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError, ShoalError
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import VersionState
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served import Served
from shoal.supervisor.models.served_ensemble import ServedEnsemble
from shoal.supervisor.models.version_owner import Owner
from tests.supervisor.served_version import CONFIG, ENSEMBLE, Version
from tests.supervisor.sky import OPTIONS


class Faulty(Models):
    """Models of which a third version cannot be made, by a fault of ours."""

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        if number == 3:
            raise KeyError("row")
        return super().create(found, number, owner)


@pytest.fixture
def surroundings() -> Iterator[Version]:
    """What models are loaded with, one at a time."""
    made = Version("", replace(OPTIONS, model_load_thread_count=1))
    yield made
    made.close()


def found(name: str, *numbers: int) -> FoundModel:
    config = normalise(pbtxt.parse(CONFIG, Path("config.pbtxt")))
    versions = {number: FoundVersion(Path(f"/{name}/{number}"), 1) for number in numbers}
    return FoundModel(name, Path(f"/{name}"), config, {}, versions, 1)


def test_versions_that_go_before_they_are_up_leave_their_turn_to_others(surroundings: Version) -> None:
    outcomes = list[ShoalError | None]()
    models = Faulty(surroundings.host, lambda: None, lambda _: None, lambda _: None)
    models.load(found("a", 1, 2, 3), outcomes.append)  # the first begins, the second waits, the third is the error
    models.load(found("b", 1), outcomes.append)
    loading = [each.version for each in surroundings.roster]
    surroundings.until(lambda: {each.version.name for each in surroundings.roster} == {"b"})
    assert {(version.name, version.version) for version in loading} == {("a", 1)}
    surroundings.sky.settle()
    assert [str(error).partition(":")[0] for error in outcomes] == ["load failed for model 'a'"]
    for instance in surroundings.roster:
        surroundings.bring_up(instance)
    assert outcomes[1:] == [None]
    assert models.models[ModelIdentifier("b", "")].versions[1].version.state is VersionState.READY
    models.stop(lambda: None)


def test_an_error_of_an_ensemble_stops_no_announcement(surroundings: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = list[ShoalError | None]()
    models = Models(surroundings.host, lambda: None, lambda _: None, lambda _: None)
    ensemble = normalise(pbtxt.parse(ENSEMBLE, Path("config.pbtxt")))
    models.load(replace(found("e", 1), config=ensemble), lambda _: None)
    monkeypatch.setattr(ServedEnsemble, "look", lambda _: 1 / 0)
    models.load(replace(found("b"), error=InvalidArgumentError("no such field")), outcomes.append)
    surroundings.sky.settle()
    assert [str(error) for error in outcomes] == ["no such field"]
    models.stop(lambda: None)

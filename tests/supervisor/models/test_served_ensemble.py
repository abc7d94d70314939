"""A version of an ensemble: what clients and batcher hear of it when one of its models was loaded anew."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served import Served
from shoal.supervisor.models.served_ensemble import ServedEnsemble
from tests.scarcity import files_of_at_most_a_page
from tests.supervisor.served_version import CONFIG, ENSEMBLE, Owner, Version, version


@pytest.fixture
def step() -> Iterator[Version]:
    """The model that the ensemble is made of."""
    with version() as made:
        made.served.version.labels = {"B": ("old",)}
        yield made


class Heard(Owner):
    """The ensemble's model: it notes the labels that clients hear of."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[dict[str, tuple[str, ...]]] = []

    def on_changed(self, served: Served) -> None:
        self.labels.append(served.version.labels)


def ensemble_of(step: Version, owner: Owner) -> tuple[Model, ServedEnsemble]:
    """The model of the ensemble's only step, and the ensemble."""
    model = Model(
        ModelIdentifier("m", ""), Models(step.host, lambda: None, lambda _: None, lambda _: None).all_versions
    )
    model.versions[1] = step.served
    config = normalise(pbtxt.parse(ENSEMBLE, Path("config.pbtxt")))
    made = ModelVersion("e", 1, 10, 1, Path("/e/1"), config)
    return model, ServedEnsemble(made, step.served.source, step.host, owner, lambda _: model)


def test_clients_hear_the_labels_of_the_version_that_a_step_means_now(step: Version) -> None:
    owner = Heard()
    model, ensemble = ensemble_of(step, owner)
    ensemble.load()
    step.until(lambda: bool(ensemble.version.labels))
    assert ensemble.version.state.value == "LOADING"  # until the batcher knows of it
    step.sky.settle()
    assert ensemble.version.state.value == "READY"
    ensemble.look()
    assert owner.labels == [{}]  # nothing is new

    fresh = ModelVersion("m", 1, 11, 2, Path("/m/1"), normalise(pbtxt.parse(CONFIG, Path("config.pbtxt"))))
    fresh.labels, fresh.num_instances_up = {"B": ("new",)}, 1
    fresh.move(VersionState.READY)
    model.versions[1] = Served(fresh, step.served.source, step.host, step.owner)
    ensemble.look()
    assert owner.labels == [{}, {"B": ("new",)}]
    assert step.told_batcher()[-1].models == [11]


def test_an_ensemble_that_lacks_a_model_is_there_until_it_is_unloaded(step: Version) -> None:
    owner = Owner()
    model, ensemble = ensemble_of(step, owner)
    ensemble.load()
    step.until(lambda: bool(ensemble.version.labels))
    step.sky.settle()
    ensemble.publish()
    del model.versions[1]
    ensemble.look()
    assert (ensemble.version.state, ensemble.is_there) == (VersionState.UNAVAILABLE, True)
    model.versions[1] = step.served
    ensemble.look()
    assert (ensemble.version.state, ensemble.is_there) == (VersionState.READY, True)
    del model.versions[1]
    ensemble.look()
    ensemble.version.move(VersionState.UNLOADING)  # as its model does before front ends know
    assert not ensemble.is_there
    model.versions[1] = step.served
    ensemble.look()
    assert (ensemble.version.state, ensemble.is_there) == (VersionState.UNLOADING, False)


def test_an_ensemble_for_which_there_is_no_memory_fails_alone(step: Version) -> None:
    owner = Owner()
    _, ensemble = ensemble_of(step, owner)
    with files_of_at_most_a_page():
        ensemble.load()
        step.until(lambda: bool(owner.errors))
    assert str(owner.errors[0]).startswith("no shared memory for a batcher segment of ")
    assert ensemble.version.state is VersionState.UNAVAILABLE
    assert step.served.version.state is VersionState.READY

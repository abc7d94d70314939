"""A version of an ensemble: what clients and batcher hear of it when one of its models was loaded anew."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import ModelVersion, VersionState
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served_ensemble import ServedEnsemble
from shoal.supervisor.models.served_version import ServedVersion
from tests.scarcity import files_of_at_most_a_page
from tests.supervisor.served_version import CONFIG, ENSEMBLE, Version, version


@pytest.fixture
def step() -> Iterator[Version]:
    """The model that the ensemble is made of."""
    with version() as made:
        made.served.version.labels = {"B": ("old",)}
        yield made


def ensemble_of(step: Version) -> tuple[Model, ServedEnsemble, list[Any]]:
    """The model of the ensemble's only step, the ensemble, and what clients hear of it."""
    models = Models(step.context, step.roster, lambda: None, lambda _: None, lambda _: None)
    model = Model(ModelIdentifier("m", ""), models)
    announced = list[Any]()
    model.versions[1] = step.served
    config = normalise(pbtxt.parse(ENSEMBLE, Path("config.pbtxt")))
    made = ModelVersion("e", 1, 10, 1, Path("/e/1"), config)
    ensemble = ServedEnsemble(made, step.served.source, step.context, step.roster, announced.extend, lambda _: model)
    ensemble.is_public = True
    return model, ensemble, announced


def test_clients_hear_the_labels_of_the_version_that_a_step_means_now(step: Version) -> None:
    model, ensemble, announced = ensemble_of(step)
    step.rig.loop.start(ensemble.load())
    step.until(lambda: bool(ensemble.version.labels))
    assert not ensemble.loaded.done()  # until the batcher knows of it
    step.rig.settle()
    assert ensemble.loaded.result() is None
    ensemble.publish()
    ensemble.look()
    assert [message.labels for message in announced] == [{}]  # nothing is new

    fresh = ModelVersion("m", 1, 11, 2, Path("/m/1"), normalise(pbtxt.parse(CONFIG, Path("config.pbtxt"))))
    fresh.labels, fresh.num_instances_up = {"B": ("new",)}, 1
    fresh.move(VersionState.READY)
    model.versions[1] = ServedVersion(fresh, step.served.source, step.context, step.roster, announced.extend)
    ensemble.look()
    assert [message.labels for message in announced] == [{}, {"B": ("new",)}]
    assert step.told_batcher()[-1].models == [11]


def test_an_ensemble_that_lacks_a_model_is_there_until_it_is_unloaded(step: Version) -> None:
    model, ensemble, _ = ensemble_of(step)
    step.rig.loop.start(ensemble.load())
    step.rig.settle()
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
    _, ensemble, _ = ensemble_of(step)
    with (
        files_of_at_most_a_page(),
        pytest.raises(UnavailableError, match=r"^no shared memory for a batcher segment of "),
    ):
        step.rig.clock.run(ensemble.load())
    assert ensemble.version.state is VersionState.UNAVAILABLE
    assert step.served.version.state is VersionState.READY

"""The verb `scale`: who must have heard before it is answered."""

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.shared import Ping
from shoal.messages.to_batcher import RetireWorker
from shoal.repository.identifier import ModelIdentifier
from shoal.shm.counters import ZERO_ROW
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.scaling import Scaling
from shoal.supervisor.questions.questions import Questions
from tests.supervisor.models.test_served_ensemble import ensemble_of
from tests.supervisor.served_version import Version, version


@pytest.fixture
def pair() -> Iterator[Version]:
    """Two instances of one model."""
    with version("parameters { key: 'max_instances' value { string_value: '4' } }") as made:
        yield made


def scaling(served: Version) -> Scaling:
    """Of a server that has this version alone."""
    models = Models(served.context, served.roster, lambda: None, lambda _path: None, lambda _paths: None)
    identifier = ModelIdentifier("m", "")
    models.models[identifier] = model = Model(identifier, models)
    model.versions[1] = served.served
    return Scaling(models, lambda _row: ZERO_ROW, lambda: 0)


def test_it_is_answered_once_front_ends_and_the_batcher_act_upon_it(pair: Version) -> None:
    rig, asker = pair.rig, pair.rig.start()
    ask = Questions(rig.loop, scaling(pair).verbs)
    pair.rig.settle()
    ask.take(asker.member, QuestionAsked(7, "scale", {"model": "m", "version": None, "count": 1, "wait": True}))
    for process in (rig.a, rig.b, rig.batcher):
        assert asker.heard() == []
        rig.acknowledge(process)
    answers: list[Any] = []

    def is_answered() -> bool:
        answers.extend(asker.read())
        return bool(answers)

    rig.clock.until(is_answered)  # once the kernel has told of memory
    (answer,) = answers
    assert [each["name"] for each in answer.result["versions"][0]["instances"]] == ["m_0_0"]
    assert [type(message) for message in rig.batcher.all_heard[-2:]] == [RetireWorker, Ping]


def test_an_ensemble_is_not_scaled_and_a_refused_scaling_is_not_carried_to_a_new_server(pair: Version) -> None:
    """The ensemble's groups, of which there are none, were the error of the server's own that a client was told."""
    models = scaling(pair)
    _, ensemble, _ = ensemble_of(pair)
    with pytest.raises(InvalidArgumentError, match="'e' is an ensemble and has no instances; scale the models that it"):
        models._resize(ensemble, 2)
    with pytest.raises(InvalidArgumentError, match="can have 1 to 4 instances, got count 5"):
        models._resize(pair.served, 5)
    group = pair.served.version.config["instance_group"][0]
    pair.served.version.config["instance_group"] = [group, {**group, "count": 3}]
    with pytest.raises(InvalidArgumentError, match="cannot have 2 instances: its first instance group"):
        models._resize(pair.served, 2)
    assert models.carried() == []

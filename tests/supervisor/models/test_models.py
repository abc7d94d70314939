"""All models together: what a load leaves to the others, and the end. Workers are simulated by the test."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.messages.to_batcher import ModelAdded, ModelRemoved
from shoal.messages.to_client import ModelChanged
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import VersionState
from shoal.supervisor.event_loop import Task
from shoal.supervisor.models.load_slots import MOST_LOADS, YOUNG_S
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served_ensemble import ServedEnsemble
from tests.supervisor.served_version import CONFIG, ENSEMBLE, Version
from tests.supervisor.star_rig import OPTIONS


@pytest.fixture
def version() -> Iterator[Version]:
    """What models are loaded with, one at a time."""
    made = Version("", replace(OPTIONS, model_load_thread_count=1))
    yield made
    made.close()


def found(name: str, *numbers: int) -> FoundModel:
    config = normalise(pbtxt.parse(CONFIG, Path("config.pbtxt")))
    versions = {number: FoundVersion(Path(f"/{name}/{number}"), 1) for number in numbers}
    return FoundModel(name, Path(f"/{name}"), config, {}, versions, 1)


def models_of(version: Version, on_changed: Callable[[], None] = lambda: None) -> Models:
    return Models(version.context, version.roster, on_changed, lambda _: None, lambda _: None)


def outcome(load: Task[None]) -> str | None:
    """What a load raised, in words, to the first colon; it has ended."""
    error = load.exception()
    return None if error is None else str(error).partition(":")[0]


def loading(version: Version) -> list[tuple[str, int]]:
    """The versions of which an instance has been started."""
    version.rig.settle()
    return sorted({(each.version.name, each.version.version) for each in version.roster})


def test_versions_that_cannot_be_loaded_leave_their_turn_to_others(
    version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that fails as it begins, by a fault of ours, one whose worker fails, and one that comes up."""
    models = models_of(version)
    enrol, faults = version.roster.enrol, [KeyError("row")]

    def enrol_later(*arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return enrol(*arguments)

    monkeypatch.setattr(version.roster, "enrol", enrol_later)
    a, b = models.load(found("a", 1, 2)), models.load(found("b", 1))
    assert loading(version) == [("a", 2)]
    version.refuse(next(iter(version.roster)))
    version.until(lambda: {each.version.name for each in version.roster} == {"b"})
    assert loading(version) == [("b", 1)]
    assert outcome(a) == "load failed for model 'a'"
    for instance in version.roster:
        version.bring_up(instance)
    version.rig.settle()
    assert outcome(b) is None
    assert models.models[ModelIdentifier("b", "")].versions[1].version.state is VersionState.READY


def test_a_load_that_hangs_keeps_models_waiting_for_seconds_and_its_own_model_for_good(version: Version) -> None:
    """Of one slot. Of all loads, those that hang included, there are eight at once."""
    models = models_of(version)
    hung = [models.load(found(name, 1, 2)) for name in "abcdefghi"]
    for num_hung in range(1, MOST_LOADS + 1):
        assert loading(version) == [(name, 1) for name in "abcdefghi"[:num_hung]]
        version.rig.clock.pass_time(YOUNG_S)
    assert len(loading(version)) == MOST_LOADS
    for instance in [each for each in version.roster if each.version.name == "a"]:
        version.bring_up(instance)
    assert loading(version)[:2] == [("a", 1), ("a", 2)]
    assert not any(load.done() for load in hung)


def test_the_end_comes_for_versions_that_wait_for_their_turn_too(version: Version) -> None:
    """They are not begun any more, nor is what would have been tried again, or waits for another load."""
    models = models_of(version)
    loads = [models.load(found("a", 1, 2)), models.load(found("b", 1)), models.load(found("b", 2))]
    assert loading(version) == [("a", 1)]
    stop = version.rig.loop.begin(models.stop())
    version.until(stop.done)
    version.rig.settle()
    assert [outcome(load) for load in loads] == [f"load failed for model '{name}'" for name in "abb"]
    assert loading(version) == []


def test_a_batcher_that_joins_hears_of_no_version_that_has_just_ended(version: Version) -> None:
    def on_changed() -> None:
        models.introduce()

    models = models_of(version, on_changed)
    models.load(found("a", 1))
    version.rig.settle()
    stop = version.rig.loop.begin(models.stop())
    version.until(stop.done)
    told = [type(message) for message in version.told_batcher()]
    assert ModelAdded in told
    assert ModelAdded not in told[told.index(ModelRemoved) :]


def test_an_ensemble_waits_for_the_model_of_its_own_repository_whose_load_has_yet_to_begin(
    version: Version,
) -> None:
    """Its step's name is borne by a model of another repository, too, which loads before."""
    models = models_of(version)
    ensemble = normalise(pbtxt.parse(ENSEMBLE, Path("config.pbtxt")))
    load = models.load(replace(found("e", 1), config=ensemble, namespace="own"))
    models.load(replace(found("m", 1), namespace="other"))
    own = models.load(replace(found("m", 1), namespace="own"))
    version.rig.settle()
    assert not load.done()
    while not own.done():  # the one, then the other
        for instance in [each for each in version.roster if not each.has_been_up]:
            version.bring_up(instance)
        version.rig.settle()
    version.rig.settle()
    assert outcome(load) is None


def test_a_death_is_sent_to_front_ends_which_need_not_acknowledge_it(version: Version) -> None:
    """Front ends acknowledge only changes that a flow waits for, such as a load for which a client waits."""
    models, front_end = models_of(version), version.rig.a
    load = models.load(found("a", 1))
    version.rig.settle()
    first, *others = version.roster
    for instance in (first, *others):
        version.bring_up(instance)
    version.rig.settle()
    assert outcome(load) is None
    version.end(first)
    sent = [(each.state, each.num_instances_up) for each in front_end.heard() if type(each) is ModelChanged]
    assert sent == [("READY", len(others))]
    assert version.rig.star.acknowledgements.oldest(front_end.member) is None


def test_an_error_of_an_ensemble_stops_no_announcement(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    models = models_of(version)
    ensemble = normalise(pbtxt.parse(ENSEMBLE, Path("config.pbtxt")))
    models.load(replace(found("e", 1), config=ensemble))
    monkeypatch.setattr(ServedEnsemble, "look", lambda _: 1 / 0)
    refused = models.load(replace(found("b"), error=InvalidArgumentError("no such field")))
    version.rig.settle()
    assert outcome(refused) == "no such field"


def test_an_unexpected_error_in_what_follows_a_load_is_its_outcome_in_words(
    version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = models_of(version)
    monkeypatch.setattr(models, "announce", lambda _messages: 1 / 0)
    load = models.load(found("a"))
    version.rig.settle()
    assert outcome(load) == "an error of the server's own, ZeroDivisionError"

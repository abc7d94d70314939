"""TorchServe's registrations: what is loaded, what is known and not loaded, and what is left of a failure.

The test plays the poller and the workers.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.errors import ShoalError, UnavailableError
from shoal.model_config.load import parse_override, prepare_config
from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.torchserve.configuration import ArchiveFacts, Machine, StoreRequest, configuration
from shoal.repository.torchserve.manifest import Manifest
from shoal.store_settings import StoreSettings
from shoal.supervisor.event_loop import Future, Task
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.registration import number_for
from shoal.supervisor.models.registrations import Registrations
from shoal.supervisor.processes.repository import RepositoryPoller
from tests.supervisor.served_version import Version
from tests.supervisor.star_rig import OPTIONS


def found(name: str, text: str, workers: int, *, is_default: bool = False, archive: str = "") -> FoundModel:
    """A version as the poller finds it."""
    settings = StoreSettings(Path("/store"), models={name: {text: {"defaultVersion": True}}} if is_default else {})
    facts = ArchiveFacts(name, Manifest(name, text, "h.py"), {}, False)
    request = StoreRequest(f"{name}.mar", initial_workers=workers)
    written, _ = configuration(request, facts, settings, Machine(1, ()))
    config = prepare_config(parse_override(json.dumps(written), name), Path("/"), strict=True)
    directory = Path(f"/unpacked/{name}-{text}")
    return FoundModel(name, directory, config, {}, {1: FoundVersion(directory, 1)}, 0, origin=archive)


class Rig:
    """Registrations, and the poller and workers as the test plays them."""

    def __init__(self) -> None:
        self.made = Version("", OPTIONS)
        self.models = Models(self.made.context, self.made.roster, lambda: None, lambda _: None, lambda _: None)
        self.registrations = Registrations(cast(RepositoryPoller, self), self.models)
        self.finds: list[FoundModel | ShoalError] = []
        self.withdrawn: list[tuple[str, str]] = []
        self.changed: list[FoundModel | ShoalError | None] = []
        self.looked: list[tuple[str, int]] = []
        self._up: set[int] = set()

    # --- the poller ---

    def register(self, _request: dict[str, Any]) -> Future[FoundModel]:
        answer: Future[FoundModel] = self.made.rig.loop.future()
        model = self.finds.pop(0)
        if isinstance(model, ShoalError):
            answer.set_exception(model)
        else:
            answer.set_result(model)
        return answer

    def load_store(self) -> Future[list[FoundModel]]:
        answer: Future[list[FoundModel]] = self.made.rig.loop.future()
        answer.set_result([each for each in self.finds if isinstance(each, FoundModel)])
        return answer

    def look_again(self, request: dict[str, Any], modified_ns: int) -> Future[FoundModel | None]:
        self.looked.append((request["url"], modified_ns))
        answer: Future[FoundModel | None] = self.made.rig.loop.future()
        changed = self.changed.pop(0) if self.changed else None
        if isinstance(changed, ShoalError):
            answer.set_exception(changed)
        else:
            answer.set_result(changed)
        return answer

    def withdraw(self, directory: Path, archive: str) -> None:
        self.withdrawn.append((directory.name, archive))

    # --- the test ---

    def ask(self, verb: str, **arguments: Any) -> Task[Any]:
        asked = self.made.rig.loop.begin(self.registrations.verbs[verb](arguments))
        self.made.rig.settle()
        return asked

    def add(self, model: FoundModel, **arguments: Any) -> Task[Any]:
        self.finds.append(model)
        return self.ask("ts_register", url="x.mar", **arguments)

    def bring_up(self) -> None:
        """Every worker that is starting comes up."""
        for instance in tuple(self.made.roster):
            if instance.number not in self._up:
                self._up.add(instance.number)
                self.made.bring_up(instance)
        self.made.rig.settle()

    def refuse(self) -> None:
        """Every worker that is starting cannot load."""
        for instance in tuple(self.made.roster):
            if instance.number not in self._up:
                self.made.refuse(instance)
        self.made.rig.settle()

    def end(self, name: str, number: int) -> None:
        """The version has answered all, and its workers end."""
        (version,) = [each for each in self.models.versions if (each.name, each.version) == (name, number)]
        leaving = [each for each in tuple(self.made.roster) if each.version is version]
        self.models.on_drained(version.model_id)
        for instance in leaving:
            self._up.discard(instance.number)
            self.made.end(instance)
        self.made.rig.settle()

    def end_old(self, served: Any) -> None:
        """A copy of a version that another has replaced has answered all, and its workers end."""
        self.models.on_drained(served.version.model_id)
        for instance in [each for each in tuple(self.made.roster) if each.version is served.version]:
            self._up.discard(instance.number)
            self.made.end(instance)
        self.made.rig.settle()

    def states(self) -> dict[tuple[str, int], str]:
        return {(each.name, each.version): each.state.value for each in self.models.versions}

    def listed(self) -> list[tuple[str, str, int, bool, bool]]:
        rows = self.ask("ts_registered").result()
        return [(row["model"], row["version"], row["workers"], row["is_default"], row["is_loaded"]) for row in rows]

    def refusal(self, asked: Task[Any]) -> str:
        error = asked.exception()
        assert isinstance(error, ShoalError)
        return str(error)


@contextmanager
def rig() -> Iterator[Rig]:
    made = Rig()
    try:
        yield made
    finally:
        made.made.close()


NUMBERS = [
    ("1.0", [], 1), ("2", [], 2), ("3.0.0", [1], 3), ("1.0", [1], 2), ("1.5", [], 1), ("1.5", [4], 5), ("v2", [1], 2),
    ("0", [], 1), ("", [], 1), ("9999999999", [], 1), ("00", [7], 8),
]  # fmt: skip


@pytest.mark.parametrize(("text", "taken", "expected"), NUMBERS)
def test_a_version_gets_the_number_that_its_text_is_if_that_is_free(text: str, taken: list[int], expected: int) -> None:
    assert number_for(text, taken) == expected


def test_a_version_without_workers_is_known_and_loaded_when_it_is_scaled_up() -> None:
    with rig() as made:
        assert made.add(found("m", "1.0", 0)).result() == {"model": "m", "version": "1.0", "workers": 0}
        assert (made.listed(), made.states()) == ([("m", "1.0", 0, True, False)], {})
        scaled = made.ask("ts_scale", model="m", min_worker=2, synchronous=True)
        assert not scaled.done()
        made.bring_up()
        assert scaled.result()["workers"] == 2
        assert (made.listed(), made.states()) == ([("m", "1.0", 2, True, True)], {("m", 1): "READY"})
        assert len(list(made.made.roster)) == 2
        made.ask("ts_scale", model="m", min_worker=0)
        made.end("m", 1)
        assert (made.listed(), made.states()) == ([("m", "1.0", 0, True, False)], {("m", 1): "UNAVAILABLE"})
        assert made.withdrawn == []


def test_versions_come_and_go_beside_each_other_and_the_default_one_last() -> None:
    with rig() as made:
        first = made.add(found("m", "1.0", 1))
        made.bring_up()
        second = made.add(found("m", "2.0", 1, archive="m2.mar"))
        assert first.result()["version"] == "1.0"
        assert not second.done()
        made.bring_up()
        assert second.result() == {"model": "m", "version": "2.0", "workers": 1}
        assert made.listed() == [("m", "1.0", 1, True, True), ("m", "2.0", 1, False, True)]
        defaults = [row["parameters"].get("ts_default") for row in made.ask("ts_registered", model="m").result()]
        assert defaults == ["true", None]
        forbidden = "ts:403:InvalidModelVersionException:Cannot remove default version for model m"
        assert made.refusal(made.ask("ts_unregister", model="m", version=None)) == forbidden
        made.ask("ts_set_default", model="m", version="2.0")
        made.made.rig.settle()
        removed = made.ask("ts_unregister", model="m", version="1.0")
        assert made.states() == {("m", 1): "UNLOADING", ("m", 2): "READY"}
        made.end("m", 1)
        assert removed.exception() is None
        removed = made.ask("ts_unregister", model="m")
        made.end("m", 2)
        assert removed.exception() is None
        assert made.listed() == []
        assert made.withdrawn == [("m-1.0", ""), ("m-2.0", "m2.mar")]


def test_a_version_whose_workers_fail_is_registered_no_longer_and_the_old_one_serves_on() -> None:
    with rig() as made:
        made.add(found("m", "1.0", 1))
        made.bring_up()
        failing = made.add(found("m", "2.0", 1, archive="m2.mar"))
        made.refuse()
        sentence = "ts:500:InternalServerException:Failed to start workers for model m version: 2.0."
        assert made.refusal(failing).startswith(sentence)
        assert "no such file" in made.refusal(failing)
        assert made.listed() == [("m", "1.0", 1, True, True)]
        assert made.states()["m", 1] == "READY"
        assert made.withdrawn == [("m-2.0", "m2.mar")]


def test_a_first_version_that_fails_leaves_no_model() -> None:
    with rig() as made:
        failing = made.add(found("m", "1.0", 1))
        made.refuse()
        assert made.refusal(failing).startswith("ts:500:")
        assert made.listed() == []
        assert made.withdrawn == [("m-1.0", "")]
        again = made.add(found("m", "1.0", 1))
        made.bring_up()
        assert again.result()["workers"] == 1


def test_without_synchronous_the_answer_comes_at_once() -> None:
    with rig() as made:
        assert made.add(found("m", "1.0", 1), synchronous=False).result()["workers"] == 1
        made.bring_up()
        assert made.listed() == [("m", "1.0", 1, True, True)]


def test_conflicts_and_unknown_models_change_nothing() -> None:
    with rig() as made:
        made.add(found("m", "1.0", 0))
        conflict = "ts:409:ConflictStatusException:Model version 1.0 is already registered for model m"
        assert made.refusal(made.add(found("m", "1.0", 1, archive="again.mar"))) == conflict
        assert made.withdrawn == [("m-1.0", "again.mar")]
        made.finds.append(UnavailableError("ts:404:ModelNotFoundException:Model not found at: x"))
        assert made.refusal(made.ask("ts_register", url="x")) == "ts:404:ModelNotFoundException:Model not found at: x"
        unknown = "ts:404:ModelNotFoundException:Model not found: none"
        assert made.refusal(made.ask("ts_unregister", model="none")) == unknown
        assert made.refusal(made.ask("ts_scale", model="none")) == unknown
        version = "ts:404:ModelVersionNotFoundException:Model version: 9 does not exist for model: m"
        assert made.refusal(made.ask("ts_scale", model="m", version="9")) == version
        other_words = "ts:404:ModelVersionNotFoundException:Model version 9 does not exist for model m"
        assert made.refusal(made.ask("ts_set_default", model="m", version="9")) == other_words
        assert made.refusal(made.ask("ts_set_default", model="none", version="9")) == unknown
        less = "ts:400:BadRequestException:max_worker cannot be less than min_worker."
        assert made.refusal(made.ask("ts_scale", model="m", min_worker=2, max_worker=1)) == less
        assert made.refusal(made.ask("ts_scale", model="m", min_worker=65)).startswith("ts:400:")
        assert made.refusal(made.ask("ts_scale", model="m", min_worker=-1, max_worker=0)).startswith("ts:400:")
        assert made.listed() == [("m", "1.0", 0, True, False)]


def test_scaling_that_fails_leaves_the_workers_that_are_there() -> None:
    with rig() as made:
        made.add(found("m", "1.0", 1))
        made.bring_up()
        scaled = made.ask("ts_scale", model="m", min_worker=2, synchronous=True)
        made.refuse()
        assert made.refusal(scaled).startswith("ts:500:InternalServerException:Failed to start workers for model m")
        assert made.listed() == [("m", "1.0", 1, True, True)]


def changed(text: str) -> FoundModel:
    """A version as the poller finds it once its archive has changed."""
    made = found("m", text, 1)
    directory = Path(f"/unpacked/m-{text}-again")
    return replace(made, directory=directory, versions={1: FoundVersion(directory, 2)})


def look_again(made: Rig) -> Task[None]:
    looking = made.made.rig.loop.begin(made.registrations.look_again())
    made.made.rig.settle()
    return looking


def test_an_archive_that_has_changed_is_loaded_again_and_the_old_one_serves_until_then() -> None:
    with rig() as made:
        made.add(found("m", "1.0", 1))
        made.bring_up()
        assert look_again(made).exception() is None
        assert (made.looked, len(made.models.versions)) == ([("m.mar", 1)], 1)
        made.changed = [changed("1.0")]
        looking = look_again(made)
        assert made.states()["m", 1] == "READY"
        (old,) = made.models.models[ModelIdentifier("m")].serving.values()
        made.bring_up()
        assert looking.exception() is None
        (new,) = made.models.models[ModelIdentifier("m")].serving.values()
        assert new is not old
        assert made.withdrawn == []  # the old workers may still read their files
        made.end_old(old)
        assert made.withdrawn == [("m-1.0", "")]
        look_again(made)
        assert made.looked[-1] == ("m.mar", 2)


def test_a_changed_archive_may_be_another_version() -> None:
    with rig() as made:
        made.add(found("m", "1.0", 1))
        made.bring_up()
        made.changed = [changed("2.0")]
        look_again(made)
        made.bring_up()
        assert made.listed() == [("m", "2.0", 1, True, True)]


def test_a_changed_archive_whose_model_is_unregistered_while_it_is_loaded_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with rig() as made:
        made.add(found("m", "1.0", 1))
        made.bring_up()
        made.changed = [changed("2.0")]
        looking = look_again(made)
        (old,) = made.models.models[ModelIdentifier("m")].serving.values()
        unregistered = made.ask("ts_unregister", model="m")
        made.bring_up()
        made.end_old(old)
        made.end("m", 1)
        assert unregistered.exception() is None
        assert looking.exception() is None
        assert (made.listed(), made.registrations._rows, made.registrations._defaults) == ([], {}, {})
        assert sorted(made.withdrawn) == [("m-1.0", ""), ("m-2.0-again", "")]


def test_an_error_in_a_look_at_the_store_ends_no_later_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[int]()

    async def fail() -> None:
        looks.append(len(looks))
        raise KeyError

    with rig() as made:
        monkeypatch.setattr(made.registrations, "look_again", fail)
        made.made.rig.loop.begin(made.registrations.follow(10.0))
        for _ in range(2):
            with pytest.raises(KeyError):
                made.made.rig.clock.pass_time(10.0)
        assert looks == [0, 1]


def test_a_changed_archive_that_fails_leaves_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    with rig() as made:
        made.add(found("m", "1.0", 1))
        made.bring_up()
        made.changed = [changed("1.0")]
        looking = look_again(made)
        made.refuse()
        assert looking.exception() is None
        assert (made.listed(), made.states()["m", 1]) == ([("m", "1.0", 1, True, True)], "READY")
        assert made.withdrawn == [("m-1.0-again", "")]
        broken = UnavailableError("ts:400:InvalidModelException:no zip")
        made.changed = [broken]
        look_again(made)
        made.changed = [broken]
        look_again(made)
        assert len([each for each in caplog.messages if each.endswith("is not loaded: no zip")]) == 1
        assert made.looked[-1] == ("m.mar", 2)  # it is tried again after a further change


def test_the_start_loads_what_was_found_logs_what_was_not_and_takes_the_default_of_the_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with rig() as made:
        broken = FoundModel("broken", Path(), {}, {}, {}, 0, UnavailableError("ts:400:InvalidModelException:no zip"))
        made.finds = [
            found("m", "1.0", 1), found("m", "2.0", 1, is_default=True), found("m", "1.0", 1, archive="twice.mar"),
            broken, found("idle", "1.0", 0),
        ]  # fmt: skip
        loading = made.made.rig.loop.begin(made.registrations.load_at_start())
        made.made.rig.settle()
        made.bring_up()
        assert loading.exception() is None
        assert made.listed() == [
            ("idle", "1.0", 0, True, False), ("m", "1.0", 1, False, True), ("m", "2.0", 1, True, True),
        ]  # fmt: skip
        defaults = [row["parameters"].get("ts_default") for row in made.ask("ts_registered", model="m").result()]
        assert defaults == [None, "true"]
        assert made.withdrawn == [("m-1.0", "twice.mar")]
        (problem,) = [each for each in made.models.versions if each.name == "broken"]
        assert problem.reason == "Unavailable: no zip"
        assert [said for said in caplog.messages if "already registered" in said]

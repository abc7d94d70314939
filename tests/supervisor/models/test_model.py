"""A model: what its loads and unloads come to, and when. The test plays the versions, and those that hear first."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.messages.message import Message
from shoal.model_config.messages import Config
from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_ROW, NO_VERSION, UNLOADED, ModelVersion, VersionState
from shoal.repository.plan import source_of
from shoal.supervisor.event_loop import EventLoop, Future, Task, shared
from shoal.supervisor.models.model import Model
from tests.supervisor.clock import ClockLoop


class Copy:
    """A version that comes up, or fails, when the test says so."""

    def __init__(self, found: FoundModel, number: int, loop: EventLoop) -> None:
        self.version = ModelVersion(found.name, number, number, number, Path(f"/m/{number}"))
        self.source = source_of(found, number)
        self.loaded: Future[None] = loop.future()
        self.ended: Future[None] = loop.future()
        self.calls: list[str] = []
        self.is_ending = self.is_public = False

    @property
    def title(self) -> str:
        return f"version {self.version.version}"

    def contain(self, error: Exception) -> None:
        self.calls.append(repr(error))

    @property
    def is_there(self) -> bool:
        return self.version.state is VersionState.READY

    async def load(self) -> None:
        await shared(self.loaded)

    def resize(self, _groups: list[Config]) -> Future[None]:
        return self.loaded

    def publish(self) -> None:
        self.version.move(VersionState.READY)

    def discard(self) -> None:
        self.version.move(VersionState.UNAVAILABLE, UNLOADED)
        self.calls.append("discard")
        self.ended.set_result(None)

    def retire(self) -> None:
        self.calls.append("retire")

    def refuse(self, error: ShoalError) -> None:
        self.version.move(VersionState.UNAVAILABLE, str(error))

    def fail(self, sentence: str) -> None:
        self.version.move(VersionState.UNAVAILABLE, sentence)
        if not self.loaded.done():
            self.loaded.set_exception(UnavailableError(sentence))


class AllVersions:
    """Versions as a model needs them, without processes; `create_fault` and `announce_fault` are raised, where set."""

    num_retries = 0
    traffic = None
    look_at: Callable[[FoundModel], Future[FoundModel]] | None = None

    def __init__(self, clock: ClockLoop) -> None:
        self._clock = clock
        self.loop = EventLoop(clock)
        self.copies: list[Copy] = []
        self.announced: list[tuple[Sequence[Any], Future[None]]] = []
        self.lent: set[Path] = set()
        self.create_fault: Callable[[int], Exception | None] = lambda _number: None
        self.announce_fault: Callable[[], Exception | None] = lambda: None

    def create(self, found: FoundModel, number: int) -> Copy:
        if (fault := self.create_fault(number)) is not None:
            raise fault
        self.copies.append(Copy(found, number, self.loop))
        return self.copies[-1]

    def create_problem(self, identifier: ModelIdentifier, reason: str, *, is_polled: bool = True) -> ModelVersion:
        version = ModelVersion(identifier.name, NO_VERSION, 1, NO_ROW, Path(), is_polled=is_polled)
        version.move(VersionState.UNAVAILABLE, reason)
        return version

    def is_lent(self, directory: Path) -> bool:
        return directory in self.lent

    def slot_for(self, _copy: Copy) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def settle_retired(self) -> None: ...

    def announce(self, messages: Sequence[Message]) -> Future[None]:
        applied: Future[None] = self.loop.future()
        fault = self.announce_fault()
        if fault is not None:
            raise fault
        self.announced.append((messages, applied))
        return applied

    # --- what the test does ---

    def bring_up(self, copy: Copy) -> None:
        copy.loaded.set_result(None)
        self._clock.settle()

    def confirm(self) -> None:
        """Clients and batcher act upon what was announced."""
        self._clock.settle()
        while self.announced:
            self.announced.pop(0)[1].set_result(None)
            self._clock.settle()


class ModelRig:
    """A model, and what has become of its loads and unloads."""

    def __init__(self, clock: ClockLoop) -> None:
        self._clock = clock
        self.versions = AllVersions(clock)
        self.model = Model(ModelIdentifier("m", ""), self.versions)  # type: ignore[arg-type]  # what it needs of them

    def load(self, found: FoundModel) -> Task[None]:
        task = self.model.load(found)
        self._clock.settle()
        return task

    def unload(self) -> Task[None]:
        task = self.versions.loop.begin(self.model.unload())
        self._clock.settle()
        return task

    def up(self, *numbers: int) -> list[Copy]:
        """Versions that serve."""
        load = self.load(found(*numbers))
        for copy in self.versions.copies:
            self.versions.bring_up(copy)
        self.versions.confirm()
        assert outcome(load) is None
        return self.versions.copies[:]


@pytest.fixture
def rig(clock: ClockLoop) -> ModelRig:
    return ModelRig(clock)


def found(*numbers: int, error: ShoalError | None = None) -> FoundModel:
    return FoundModel(
        "m", Path("/m"), {"instance_group": []}, {}, {n: FoundVersion(Path(f"/m/{n}"), 0) for n in numbers}, 0, error
    )


def outcome(load: Task[None]) -> str | None:
    """What a load raised, in words; it has ended."""
    error = load.exception()
    return None if error is None else str(error)


def raise_once(error: Exception) -> Callable[[], Exception | None]:
    errors = [error]
    return lambda: errors.pop() if errors else None


def test_an_unexpected_error_fails_the_load_and_not_the_next_one(rig: ModelRig) -> None:
    rig.versions.create_fault = lambda _number: KeyError("instance_group")
    for _ in range(2):
        load = rig.load(found(1))
        assert not rig.model.is_loading
        rig.versions.confirm()
        assert outcome(load) == (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: "
            "Internal: an error of the server's own, KeyError: 'instance_group';\n"
        )
    assert [version.state for version in rig.model.known_versions] == [VersionState.UNAVAILABLE]


def test_an_unexpected_error_while_a_load_is_put_in_force_is_its_outcome(rig: ModelRig) -> None:
    rig.versions.announce_fault = lambda: KeyError("row")
    assert outcome(rig.load(found())) == "'row'"  # in words of the server's by `Models.load`
    assert not rig.model.is_loading


def test_a_model_that_cannot_even_be_refused_is_answered(rig: ModelRig) -> None:
    rig.versions.create_fault = lambda _number: UnavailableError("one too many")
    load = rig.load(found(1, error=InvalidArgumentError("no such field")))
    rig.versions.confirm()
    assert outcome(load) == "one too many"
    assert not rig.model.is_loading


@pytest.mark.parametrize("when", ["created", "loading", "up"])
def test_an_unexpected_error_of_one_version_fails_the_load_at_once(rig: ModelRig, when: str) -> None:
    """The other version goes, whether it has come up by then or not; a load that follows is another."""
    rig.versions.create_fault = lambda number: KeyError("row") if (number, when) == (2, "created") else None
    load = rig.load(found(1, 2))
    first = rig.versions.copies[0]
    if when != "created":
        second = rig.versions.copies[1]
        if when == "up":
            rig.versions.bring_up(first)
        assert first.calls == []
        second.loaded.set_exception(KeyError("row"))
    rig.versions.confirm()
    assert first.calls == ["discard"]
    fault = "UNAVAILABLE state: Internal: an error of the server's own, KeyError: 'row';\n"
    assert outcome(load) == f"load failed for model 'm': version 1 is at {fault}version 2 is at {fault}"
    rig.versions.create_fault = lambda _number: None
    load = rig.load(found(1, 2))
    one, two = rig.versions.copies[-2:]
    rig.versions.bring_up(one)
    assert rig.model.is_loading
    rig.versions.bring_up(two)
    rig.versions.confirm()
    assert outcome(load) is None


def test_an_error_in_what_follows_a_switch_does_not_touch_the_next_load(
    rig: ModelRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each load has an outcome, and all that is replaced is retired."""
    one, two = rig.up(1, 2)
    monkeypatch.setattr(one, "retire", lambda: 1 / 0)
    second, third = rig.load(found()), rig.load(found(3))
    rig.versions.confirm()
    assert (one.calls, two.calls) == (["ZeroDivisionError('division by zero')"], ["retire"])
    assert outcome(second) is None
    assert rig.model.is_loading
    rig.versions.bring_up(rig.versions.copies[2])
    rig.versions.confirm()
    assert outcome(third) is None


@pytest.mark.parametrize("is_load", [False, True])
def test_versions_are_retired_once_though_their_end_cannot_be_announced(rig: ModelRig, is_load: bool) -> None:
    """Neither an unload nor a load that replaces them leaves them behind."""
    one, two = rig.up(1, 2)
    rig.versions.announce_fault = raise_once(OSError("no notification"))
    task = rig.load(found()) if is_load else rig.unload()
    assert outcome(task) == "no notification"
    rig.versions.confirm()
    assert (one.calls, two.calls) == (["retire"], ["retire"])
    again = rig.unload()
    rig.versions.confirm()
    assert outcome(again) is None
    assert (one.calls, two.calls) == (["retire"], ["retire"])


def test_a_version_that_comes_up_and_then_fails_is_counted_once(rig: ModelRig) -> None:
    load = rig.load(found(1, 2))
    one, two = rig.versions.copies
    rig.versions.bring_up(one)
    one.fail("an error of the server's own")
    assert rig.model.is_loading
    rig.versions.bring_up(two)
    rig.versions.confirm()
    assert not rig.model.is_loading
    assert (one.calls, two.calls) == ([], ["discard"])
    assert outcome(load) == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: an error of the server's own;\n"
    )


def test_a_version_that_fails_is_tried_again_as_often_as_retries_are_wanted(rig: ModelRig) -> None:
    rig.versions.num_retries = 1
    first, second = rig.load(found(1)), rig.load(found(2))
    for _ in range(2):
        rig.versions.copies[-1].fail("no such file")
        rig.versions.confirm()
    assert (
        outcome(first) == "load failed for model 'm': version 1 is at UNAVAILABLE state: Unavailable: no such file;\n"
    )
    assert [copy.version.version for copy in rig.versions.copies] == [1, 1, 2]
    rig.versions.copies[-1].fail("no such file")
    rig.versions.confirm()
    rig.versions.bring_up(rig.versions.copies[-1])
    rig.versions.confirm()
    assert outcome(second) is None


def test_a_load_is_refused_once_all_front_ends_know_why(rig: ModelRig) -> None:
    load = rig.load(found(error=InvalidArgumentError("no such field")))
    ((messages, _),) = rig.versions.announced
    assert [(each.state, each.reason) for each in messages] == [("UNAVAILABLE", "Invalid argument: no such field")]
    assert not load.done()
    rig.versions.confirm()
    assert outcome(load) == "no such field"


def test_what_goes_on_serving_says_why_nothing_newer_does(rig: ModelRig) -> None:
    (one,) = rig.up(1)
    load = rig.load(found(1, 2))
    rig.versions.copies[-1].fail("no such file")
    rig.versions.confirm()
    assert outcome(load) is not None
    assert (one.calls, one.version.state) == ([], VersionState.READY)
    assert one.version.reason == "serving what was loaded before: Unavailable: no such file"


def test_what_comes_during_a_load_waits_for_its_turn(rig: ModelRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model, begin, ended = rig.model, rig.versions.loop.begin, list[Task[None]]()
    tasks = [model.load(found(1)), model.load(found(2)), begin(model.unload()), model.load(found(3))]
    for task in tasks:
        task.add_done_callback(ended.append)
    rig.versions.confirm()
    for number in (1, 2, 3):
        assert [copy.version.version for copy in rig.versions.copies] == list(range(1, number + 1))
        assert model.is_loading
        rig.versions.bring_up(rig.versions.copies[-1])
    rig.versions.confirm()
    rig.versions.confirm()
    assert ended == tasks
    assert not model.is_loading
    assert list(model.serving) == [3]
    assert [each for each in caplog.messages if "waits" in each] == [
        "a load of model 'm' waits: an earlier load of the model is under way",
        "a load of model 'm' waits: an earlier load of the model is under way",
        "an unload of model 'm' waits: an earlier load of the model is under way",
    ]


def test_any_number_of_loads_may_wait(rig: ModelRig) -> None:
    """Those behind the first find everything as they want it, and end at once."""
    loads = [rig.model.load(found(1)) for _ in range(2000)]
    rig.versions.confirm()
    rig.versions.bring_up(rig.versions.copies[0])
    rig.versions.confirm()
    assert [outcome(load) for load in loads] == [None] * len(loads)


def test_a_load_s_unexpected_error_does_not_keep_what_waits_from_its_turn(rig: ModelRig) -> None:
    load, unload = rig.load(found(1)), rig.unload()
    rig.versions.announce_fault = raise_once(KeyError("row"))
    rig.versions.bring_up(rig.versions.copies[0])
    rig.versions.confirm()
    assert outcome(load) == "'row'"
    assert outcome(unload) is None


def test_while_a_load_is_under_way_a_scaling_is_refused(rig: ModelRig) -> None:
    rig.model.load(found(1))
    with pytest.raises(InternalError, match="is currently loading or unloading"):
        rig.model.refuse_while_loading()
    rig.versions.confirm()
    rig.versions.bring_up(rig.versions.copies[0])
    rig.model.refuse_while_loading()


class Disk:
    """A model's directory, in one state after the other; each state is named by its fingerprint."""

    def __init__(self, rig: ModelRig, *states: str) -> None:
        self._loop, self._states = rig.versions.loop, list(states)
        self.looked_at: list[str] = []

    def look_at(self, seen: FoundModel) -> Future[FoundModel]:
        self.looked_at.append(seen.fingerprint)
        looked: Future[FoundModel] = self._loop.future()
        looked.set_result(replace(seen, fingerprint=self._states.pop(0)))
        return looked


def load_with(rig: ModelRig, *, num_instances: int) -> Task[None]:
    load = rig.load(replace(found(1), fingerprint="first"))
    bring_up_last(rig, num_instances=num_instances)
    return load


def bring_up_last(rig: ModelRig, *, num_instances: int = 3) -> None:
    copy = rig.versions.copies[-1]
    copy.version.num_instances = num_instances
    rig.versions.bring_up(copy)


def test_files_that_change_while_several_instances_load_are_loaded_once_more(rig: ModelRig) -> None:
    """Instances may have read different states of the files: none of them serves."""
    disk = Disk(rig, "second", "second")
    rig.versions.look_at = disk.look_at
    load = load_with(rig, num_instances=3)
    mixed, copy = rig.versions.copies
    assert (mixed.calls, list(rig.model.serving)) == (["discard"], [])
    bring_up_last(rig)
    rig.versions.confirm()
    assert outcome(load) is None
    assert (copy.calls, copy.version.state) == ([], VersionState.READY)
    assert disk.looked_at == ["first", "second"]


def test_files_that_change_during_every_load_are_served_with_a_warning(
    rig: ModelRig, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of a model that writes into its own directory."""
    rig.versions.look_at = Disk(rig, "second", "third").look_at
    load = load_with(rig, num_instances=2)
    bring_up_last(rig)
    rig.versions.confirm()
    assert outcome(load) is None
    assert rig.versions.copies[1].version.state is VersionState.READY
    assert "the files of model 'm' have changed during both of its loads" in caplog.text


def test_one_instance_reads_one_state_of_the_files(rig: ModelRig) -> None:
    disk = Disk(rig)
    rig.versions.look_at = disk.look_at
    load = load_with(rig, num_instances=1)
    rig.versions.confirm()
    assert outcome(load) is None
    assert disk.looked_at == []


def test_files_that_came_with_the_request_are_loaded_once(rig: ModelRig) -> None:
    """The directory is removed with the versions that a second load would end."""
    disk = Disk(rig)
    rig.versions.look_at, rig.versions.lent = disk.look_at, {found(1).directory}
    load = load_with(rig, num_instances=2)
    rig.versions.confirm()
    assert outcome(load) is None
    assert (list(rig.model.serving), len(rig.versions.copies), disk.looked_at) == ([1], 1, [])


def test_a_load_goes_on_where_the_files_cannot_be_looked_at_again(
    rig: ModelRig, caplog: pytest.LogCaptureFixture
) -> None:
    lost: Future[FoundModel] = rig.versions.loop.future()
    lost.set_exception(InternalError("the reader is gone"))
    rig.versions.look_at = lambda _found: lost
    load = load_with(rig, num_instances=2)
    rig.versions.confirm()
    assert outcome(load) is None
    assert "whether the files of model 'm' have changed is not known: the reader is gone" in caplog.text


def test_a_version_that_fails_while_its_files_are_looked_at_is_not_served(rig: ModelRig) -> None:
    looked: Future[FoundModel] = rig.versions.loop.future()
    rig.versions.look_at = lambda _found: looked
    load = load_with(rig, num_instances=2)
    rig.versions.copies[0].fail("an error of the server's own")
    looked.set_result(replace(found(1), fingerprint="first"))
    rig.versions.confirm()
    assert outcome(load) == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: an error of the server's own;\n"
    )

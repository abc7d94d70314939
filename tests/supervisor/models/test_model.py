"""A model: when whoever asked for a load hears what it came to. The test plays those that hear of it first."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_ROW, NO_VERSION, UNLOADED, ModelVersion, VersionState
from shoal.repository.plan import source_of
from shoal.supervisor.models.model import Model
from shoal.supervisor.models.served import Served
from shoal.supervisor.models.version_owner import Owner


class Registry:
    """What is told, and who waits until it is in force. There is nothing to load."""

    num_retries = 0

    def __init__(self) -> None:
        self.told: list[tuple[Sequence[Any], Callable[[], None]]] = []

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        raise AssertionError(f"version {number} of {found.name} must not be created")

    def create_problem(self, identifier: ModelIdentifier, error: ShoalError, *, is_polled: bool = True) -> ModelVersion:
        version = ModelVersion(identifier.name, NO_VERSION, 1, NO_ROW, Path())
        version.move(VersionState.UNAVAILABLE, str(error))
        return version

    def queue(self, served: Served) -> None: ...

    def settled(self, served: Served) -> None: ...

    def release(self, served: Served) -> None: ...

    def settle_retired(self, then: Callable[[], None]) -> None:
        then()

    def tell(self, messages: Sequence[Any], then: Callable[[], None]) -> None:
        self.told.append((messages, then))


class Faulty(Registry):
    """A registry with a fault of ours."""

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        raise KeyError("instance_group")


class Silent(Registry):
    """A registry that fails to tell."""

    def tell(self, messages: Sequence[Any], then: Callable[[], None]) -> None:
        raise KeyError("row")


class Full(Registry):
    """A registry that has no room for another version."""

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        raise UnavailableError("one too many")


class Copy:
    """A version that comes up, or fails, when the test says so."""

    def __init__(self, found: FoundModel, number: int) -> None:
        self.version = ModelVersion(found.name, number, number, number, Path(f"/m/{number}"))
        self.source = source_of(found, number)
        self.calls: list[str] = []
        self.is_ending = False

    @property
    def title(self) -> str:
        return f"version {self.version.version}"

    def contain(self, error: Exception) -> None:
        self.calls.append(repr(error))

    @property
    def is_there(self) -> bool:
        return self.version.state is VersionState.READY

    def publish(self) -> None:
        self.version.move(VersionState.READY)

    def discard(self) -> None:
        self.version.move(VersionState.UNAVAILABLE, UNLOADED)
        self.calls.append("discard")

    def retire(self) -> None:
        self.calls.append("retire")

    def refuse(self, error: ShoalError) -> None:
        self.version.move(VersionState.UNAVAILABLE, str(error))


class Room(Registry):
    """A registry that makes versions, and fails to make the one numbered `fault_at`."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []
        self.fault_at = 0

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        if number == self.fault_at:
            raise KeyError("row")
        self.copies.append(Copy(found, number))
        return self.copies[-1]  # type: ignore[return-value]  # what a model needs of one

    def confirm(self) -> None:
        """Everybody acts upon what was told."""
        told, self.told = self.told, []
        for _, then in told:
            then()


def found(*numbers: int, error: ShoalError | None = None) -> FoundModel:
    return FoundModel(
        "m", Path("/m"), {"instance_group": []}, {}, {n: FoundVersion(Path(f"/m/{n}"), 0) for n in numbers}, 0, error
    )


def test_an_unexpected_error_fails_the_load_and_not_the_next_one() -> None:
    registry, outcomes = Faulty(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)
    versions = {1: FoundVersion(Path("/m/1"), 0)}
    for _ in range(2):
        model.load(FoundModel("m", Path("/m"), {}, {}, versions, 0), outcomes.append)
        assert not model.is_loading
        registry.told.pop()[1]()
        assert str(outcomes.pop()) == (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: "
            "Internal: an error of the server's own, KeyError: 'instance_group';\n"
        )
    assert [row.state for row in model.rows] == [VersionState.UNAVAILABLE]


def test_an_unexpected_error_while_a_load_is_put_in_force_is_its_outcome() -> None:
    outcomes = list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), Silent())
    model.load(FoundModel("m", Path("/m"), {}, {}, {}, 0), outcomes.append)
    assert [str(error) for error in outcomes] == ["an error of the server's own, KeyError: 'row'"]
    assert not model.is_loading


def test_a_model_that_cannot_even_be_refused_is_answered() -> None:
    outcomes = list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), Full())
    model.load(found(1, error=InvalidArgumentError("no such field")), outcomes.append)
    assert [str(error) for error in outcomes] == ["one too many"]
    assert not model.is_loading


def test_an_error_of_one_version_takes_those_along_that_come_up() -> None:
    registry, outcomes = Room(), list[ShoalError | None]()
    registry.fault_at = 2
    model = Model(ModelIdentifier("m", ""), registry)
    model.load(found(1, 2), outcomes.append)
    (first,) = registry.copies
    assert first.calls == ["discard"]
    registry.confirm()
    assert len(outcomes) == 1
    model.on_ready(first)  # type: ignore[arg-type]
    registry.fault_at = 0
    model.load(found(1, 2), outcomes.append)
    model.on_ready(first)  # type: ignore[arg-type]  # of an earlier load: no part of this one
    model.on_ready(registry.copies[1])  # type: ignore[arg-type]
    assert model.is_loading
    model.on_ready(registry.copies[2])  # type: ignore[arg-type]
    registry.confirm()
    assert outcomes[1:] == [None]


def test_an_error_in_what_follows_a_switch_does_not_touch_the_next_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of each load is called once, and all that is replaced is retired."""
    registry, outcomes = Room(), list[tuple[str, ShoalError | None]]()
    model = Model(ModelIdentifier("m", ""), registry)
    model.load(found(1, 2), lambda error: outcomes.append(("first", error)))
    one, two = registry.copies
    model.on_ready(one)  # type: ignore[arg-type]
    model.on_ready(two)  # type: ignore[arg-type]
    registry.confirm()
    monkeypatch.setattr(one, "retire", lambda: 1 / 0)
    model.load(found(), lambda error: outcomes.append(("second", error)))
    model.load(found(3), lambda error: outcomes.append(("third", error)))
    registry.confirm()
    assert (one.calls, two.calls) == (["ZeroDivisionError('division by zero')"], ["retire"])
    assert outcomes == [("first", None), ("second", None)]
    assert model.is_loading
    model.on_ready(registry.copies[2])  # type: ignore[arg-type]
    registry.confirm()
    assert outcomes[2:] == [("third", None)]


def test_an_error_after_an_announcement_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, outcomes = Room(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)

    def tell(messages: Sequence[Any], then: Callable[[], None]) -> None:
        registry.told.append((messages, then))
        raise OSError("no notification")

    monkeypatch.setattr(registry, "tell", tell)
    model.load(found(), outcomes.append)
    registry.confirm()
    assert [str(error) for error in outcomes] == ["an error of the server's own, OSError: no notification"]


@pytest.mark.parametrize("is_told", [False, True])
def test_versions_are_retired_once_though_their_end_cannot_be_announced(
    monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """Neither an unload nor a load that replaces them leaves them behind, whether clients are told or not."""
    registry, outcomes = Room(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)
    model.load(found(1, 2), outcomes.append)
    one, two = registry.copies
    model.on_ready(one)  # type: ignore[arg-type]
    model.on_ready(two)  # type: ignore[arg-type]
    registry.confirm()

    def tell(messages: Sequence[Any], then: Callable[[], None]) -> None:
        if is_told:
            registry.told.append((messages, then))
        raise OSError("no notification")

    monkeypatch.setattr(registry, "tell", tell)
    model.load(found(2), outcomes.append)
    with pytest.raises(OSError, match="no notification"):
        model.unload(lambda: None)
    registry.confirm()
    assert (one.calls, two.calls) == (["retire"], ["retire"])
    assert [str(error) for error in outcomes[1:]] == ["an error of the server's own, OSError: no notification"]


def test_a_version_that_comes_up_and_then_fails_is_counted_once() -> None:
    registry, outcomes = Room(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)
    model.load(found(1, 2), outcomes.append)
    one, two = registry.copies
    model.on_ready(one)  # type: ignore[arg-type]
    model.on_load_failed(one, InternalError("an error of the server's own"))  # type: ignore[arg-type]
    assert model.is_loading
    model.on_ready(two)  # type: ignore[arg-type]
    registry.confirm()
    assert not model.is_loading
    assert two.calls == ["discard"]
    assert [type(error) for error in outcomes] == [InvalidArgumentError]


def test_a_load_is_refused_once_everybody_knows_why() -> None:
    registry, outcomes = Registry(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)
    error = InvalidArgumentError("no such field")
    model.load(FoundModel("m", Path("/m"), {}, {}, {}, 0, error), outcomes.append)
    ((messages, then),) = registry.told
    assert [(message.state, message.reason) for message in messages] == [("UNAVAILABLE", "no such field")]
    assert outcomes == []
    then()
    assert outcomes == [error]


def test_what_comes_during_a_load_waits_for_its_turn() -> None:
    registry, ended = Room(), list[str]()
    model = Model(ModelIdentifier("m", ""), registry)
    model.load(found(1), lambda _error: ended.append("load of 1"))
    model.load(found(2), lambda _error: ended.append("load of 2"))
    model.unload(lambda: ended.append("unload"))
    model.load(found(3), lambda _error: ended.append("load of 3"))
    for number in (1, 2, 3):
        assert [copy.version.version for copy in registry.copies] == list(range(1, number + 1))
        model.on_ready(registry.copies[-1])  # type: ignore[arg-type]
    registry.confirm()
    registry.confirm()
    assert ended == ["load of 1", "load of 2", "unload", "load of 3"]
    assert not model.is_loading
    assert list(model.serving) == [3]


def test_any_number_of_loads_may_wait() -> None:
    """Those behind the first find everything as they want it, and end at once."""
    registry, outcomes = Room(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)
    num_loads = 2 * sys.getrecursionlimit()
    for _ in range(num_loads):
        model.load(found(1), outcomes.append)
    model.on_ready(registry.copies[0])  # type: ignore[arg-type]
    registry.confirm()
    assert outcomes == [None] * num_loads


def test_a_load_s_unexpected_error_does_not_keep_what_waits_from_its_turn() -> None:
    registry, outcomes, unloads = Room(), list[ShoalError | None](), list[bool]()
    model = Model(ModelIdentifier("m", ""), registry)
    model.load(found(1), outcomes.append)
    model.unload(lambda: unloads.append(True))

    def tell(messages: Sequence[Any], then: Callable[[], None]) -> None:
        del registry.tell
        raise KeyError("row")

    registry.tell = tell  # type: ignore[method-assign]
    model.on_ready(registry.copies[0])  # type: ignore[arg-type]
    registry.confirm()
    assert [str(error) for error in outcomes] == ["an error of the server's own, KeyError: 'row'"]
    assert unloads == [True]
